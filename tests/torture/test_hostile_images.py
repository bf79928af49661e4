"""Images that somebody made to fill memory, to hang a loader, or to have something else read or run."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import etl
from tests.image_files import encode
from tests.torture.conftest import Tally
from tests.torture.hostile import attempt, bomb, refusal

SIDE = 50_000
DECODERS = ["pillow", "turbo"]


def _encoded(format: str) -> bytearray:
    image = Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3))
    return bytearray(encode(image, format).tobytes())


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _png(*further: bytes, side: int = 4) -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    pixels = _chunk(b"IDAT", zlib.compress(b"\0" * (1 + 3 * 4) * 4))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(further) + pixels + _chunk(b"IEND", b"")


def _jpeg_that_claims(height: int, width: int) -> bytes:
    encoded = _encoded("JPEG")
    frame = encoded.index(b"\xff\xc0")
    encoded[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(encoded)


def _webp_that_claims_much() -> bytes:
    extended = b"VP8X" + struct.pack("<I", 10) + bytes(4) + (2**24 - 1).to_bytes(3, "little") * 2
    content = b"WEBP" + extended + bytes(_encoded("WEBP"))[12:]
    return b"RIFF" + struct.pack("<I", len(content)) + content


def _bmp_that_claims_much() -> bytes:
    encoded = _encoded("BMP")
    encoded[18:26] = struct.pack("<ii", SIDE, SIDE)
    return bytes(encoded)


CLAIMS: dict[str, Callable[[], bytes]] = {
    "PNG": lambda: _png(side=SIDE),
    "PNG of the largest size": lambda: _png(side=2**31 - 1),
    "JPEG": lambda: _jpeg_that_claims(SIDE, SIDE),
    "JPEG of the largest size": lambda: _jpeg_that_claims(65_500, 65_500),
    "JPEG, long and thin": lambda: _jpeg_that_claims(65_500, 8_000),
    "WebP": _webp_that_claims_much,
    "BMP": _bmp_that_claims_much,
    "PPM": lambda: b"P6 %d %d 255\n" % (SIDE, SIDE),
    "TIFF": lambda: b"II*\0\x08\0\0\0\x02\0" + struct.pack("<HHIIHHIII", 256, 4, 1, SIDE, 257, 4, 1, SIDE, 0),
    "GIF": lambda: b"GIF89a" + struct.pack("<HH", 65_535, 65_535) + bytes(3) + b"," + bytes(4) + b"\xff" * 4 + bytes(3),
}


def _folder(root: Path, encoded: bytes) -> etl.ImageFolder:
    (root / "cat").mkdir(parents=True)
    (root / "cat" / "1.jpg").write_bytes(encoded)
    return etl.ImageFolder(root)


def _load(source: etl.ImageFolder, decoder: str = "pillow") -> tuple[int, ...]:
    shape: tuple[int, ...] = etl.records(source, etl.image_pipeline(size=32, decoder=decoder))[0]["features"].shape
    return shape


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", CLAIMS)
def test_an_image_that_claims_billions_of_pixels_is_refused(
    name: str, decoder: str, tmp_path: Path, tally: Tally
) -> None:
    source = _folder(tmp_path, CLAIMS[name]())
    where = f"record 0 of {tmp_path} (cat/1.jpg): failed at stage 'decode': "
    refusal(lambda: _load(source, decoder), where, kinds=("RecordError",))
    tally(
        f"hostile input, image of a few bytes that claims gigabytes, {decoder}",
        "refused, with file, record and reason",
    )


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_limit_is_pillows_own_and_can_be_lifted(
    decoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _folder(tmp_path, bytes(_encoded("JPEG")))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    refusal(lambda: _load(source, decoder), "PIL.Image.MAX_IMAGE_PIXELS", kinds=("RecordError",))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert attempt(lambda: _load(source, decoder)).kind is None


@pytest.mark.parametrize(
    "chunk",
    [
        lambda: _chunk(b"zTXt", b"Comment\0\0" + bomb(4 << 30)),
        lambda: _chunk(b"iTXt", b"Comment\0\1\0\0\0" + bomb(4 << 30)),
        lambda: _chunk(b"iCCP", b"profile\0\0" + bomb(4 << 30)),
        lambda: _chunk(b"zTXt", b"1\0\0" + zlib.compress(bytes(1_000_000))) * 2000,
        lambda: _chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0)),
        lambda: struct.pack(">I", 2**31 - 1) + b"tEXt",
    ],
    ids=["zTXt", "iTXt", "iCCP", "many zTXt", "2^31 frames", "chunk of 2 GiB"],
)
def test_what_is_packed_beside_the_pixels_fills_no_memory(
    chunk: Callable[[], bytes], tmp_path: Path, tally: Tally
) -> None:
    source = _folder(tmp_path, _png(chunk()))
    ending = attempt(lambda: _load(source))
    assert ending.kind in (None, "RecordError"), ending
    tally(
        "hostile input, PNG with gigabytes packed beside its pixels",
        "decoded without them" if ending.kind is None else "refused",
    )


def test_a_program_that_is_called_an_image_is_not_run(tmp_path: Path, tally: Tally) -> None:
    ran = tmp_path / "ran"
    program = f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n({ran}) (w) file closefile\n%%EOF\n"
    source = _folder(tmp_path / "photos", program.encode())
    refusal(lambda: _load(source), "(cat/1.jpg)", "not an image", kinds=("RecordError",))
    assert not ran.exists()
    tally("hostile input, PostScript that is called .jpg", "refused, nothing was run")


def test_a_pipe_that_is_called_an_image_is_not_waited_for(tmp_path: Path, tally: Tally) -> None:
    source = _folder(tmp_path, b"")
    (tmp_path / "cat" / "1.jpg").unlink()
    os.mkfifo(tmp_path / "cat" / "1.jpg")
    refusal(lambda: _load(source), "(cat/1.jpg)", "'read': it is not a regular file", kinds=("RecordError",))
    tally("hostile input, pipe or device that is called an image", "refused, with file, record and reason")


def test_a_device_that_is_called_an_image_is_not_read(tmp_path: Path, tally: Tally) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.jpg").symlink_to("/dev/zero")
    refusal(lambda: etl.ImageFolder(tmp_path), str(tmp_path / "cat" / "1.jpg"), "/dev/zero")
    source = etl.ImageFolder(tmp_path, follow_links=True)
    refusal(lambda: _load(source), "(cat/1.jpg)", "it is not a regular file", kinds=("RecordError",))
    tally("hostile input, pipe or device that is called an image", "refused, with file, record and reason", 2)


def test_a_file_with_a_terabyte_of_nothing_is_not_read(tmp_path: Path, tally: Tally) -> None:
    source = _folder(tmp_path, b"")
    os.truncate(tmp_path / "cat" / "1.jpg", 1 << 40)
    refusal(lambda: _load(source), "(cat/1.jpg)", "1,099,511,627,776 bytes", kinds=("RecordError",))
    tally("hostile input, image file of a terabyte without blocks", "refused, with file, record and reason")
