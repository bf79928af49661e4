"""Photographs of other decoders and filters are close, and those of other arithmetic, geometry or labels are not.

`pytest -s` prints the distances that the limits in `etl.comparison.judge.sameness` were chosen from.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image

import etl
from etl.comparison.judge.sameness import find_partners
from etl.comparison.request.epoch_content import Signatures
from etl.measuring.signatures import signatures_of

SIZE = 224
MEANS = np.array([123.675, 116.28, 103.53], np.float32)
DEVIATIONS = np.array([58.395, 57.12, 57.375], np.float32)


@pytest.fixture(scope="module")
def encoded(photographs: Path) -> list[bytes]:
    return [(photographs / file).read_bytes() for file in etl.ImageFolder(photographs).files[::2]]


@pytest.fixture(scope="module")
def images(encoded: list[bytes]) -> list[np.ndarray]:
    return [pillow(each) for each in encoded]


@pytest.fixture(scope="module")
def reference(images: list[np.ndarray]) -> np.ndarray:
    return signatures_of([normalised(images)])


def pillow(encoded: bytes, method: Image.Resampling = Image.Resampling.BILINEAR) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB").resize((SIZE, SIZE), method))


def opencv(encoded: bytes, method: int) -> np.ndarray:
    decoded = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(cv2.resize(decoded, (SIZE, SIZE), interpolation=method), cv2.COLOR_BGR2RGB)


def turbo(encoded: bytes, smallest: int) -> np.ndarray:
    decoded = simplejpeg.decode_jpeg(
        encoded, min_width=smallest, min_height=smallest, min_factor=1, fastdct=True, fastupsample=True
    )
    return cv2.resize(decoded, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)


def pytorch(encoded: bytes, antialias: bool) -> np.ndarray:
    decoded = torch.from_numpy(np.array(Image.open(io.BytesIO(encoded)).convert("RGB"))).permute(2, 0, 1)
    resized = torch.nn.functional.interpolate(decoded[None].float(), (SIZE, SIZE), mode="bilinear", antialias=antialias)
    return resized[0].permute(1, 2, 0).numpy()


def normalised(images: list[np.ndarray], means: np.ndarray = MEANS, deviations: np.ndarray = DEVIATIONS) -> np.ndarray:
    return (np.stack(images).astype(np.float32) - means) / deviations


Decoder = Callable[[bytes], np.ndarray]
CLOSE: dict[str, Decoder] = {
    "pillow bicubic": lambda each: pillow(each, Image.Resampling.BICUBIC),
    "pillow box": lambda each: pillow(each, Image.Resampling.BOX),
    "pillow nearest": lambda each: pillow(each, Image.Resampling.NEAREST),
    "cv2 linear": lambda each: opencv(each, cv2.INTER_LINEAR),
    "cv2 area": lambda each: opencv(each, cv2.INTER_AREA),
    "torch with antialiasing": lambda each: pytorch(each, antialias=True),
    "torch without antialiasing": lambda each: pytorch(each, antialias=False),
    "turbo": lambda each: turbo(each, 10_000),
    "turbo scaled while decoding": lambda each: turbo(each, SIZE),
}


@pytest.mark.parametrize("decoder", CLOSE.values(), ids=CLOSE)
def test_other_decoders_and_filters_are_close(encoded: list[bytes], reference: np.ndarray, decoder: Decoder) -> None:
    order = np.random.default_rng(0).permutation(len(encoded))
    epoch = signatures_of([normalised([decoder(each) for each in encoded])])[order]
    found = find_partners(Signatures(epoch, None), Signatures(reference, None))
    print(f"largest {found.largest:.3f}, mean {found.mean:.3f}")
    assert not found.reason
    assert [order[found.positions[row]] for row in range(len(encoded))] == list(range(len(encoded)))


Change = Callable[[list[np.ndarray]], np.ndarray]
OTHER_WORK: dict[str, Change] = {
    "a channel less another's mean": lambda images: normalised(images, MEANS[[1, 1, 2]]),
    "a channel with another's statistics": lambda images: normalised(images, MEANS[[0, 0, 2]], DEVIATIONS[[0, 0, 2]]),
    "statistics in BGR order": lambda images: normalised(images, MEANS[::-1], DEVIATIONS[::-1]),
    "BGR": lambda images: normalised(images)[..., ::-1],
    "between 0 and 1": lambda images: np.stack(images).astype(np.float32) / 255,
    "flipped": lambda images: normalised(images)[:, :, ::-1],
    "without a border": lambda images: normalised([cv2.resize(each[6:-6, 6:-6], (SIZE, SIZE)) for each in images]),
}


@pytest.mark.parametrize("change", OTHER_WORK.values(), ids=OTHER_WORK)
def test_other_arithmetic_and_geometry_are_not_close(
    images: list[np.ndarray], reference: np.ndarray, change: Change
) -> None:
    epoch = signatures_of([change(images)])
    assert find_partners(Signatures(epoch, None), Signatures(reference, None)).reason
