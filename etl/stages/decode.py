"""Stage "decode": from the bytes of an image file to upright RGB pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from etl.images import jpeg_crop, pillow, turbo
from etl.stages.random_resized_crop import DecodedCrop, RandomResizedCrop
from etl.stages.resize import Resize
from etl.stages.stage import ADDED_LATER, AnyStage
from presave import Record

# Functions from encoded bytes to a Pillow image or an array of pixels.
DECODERS: dict[str, Callable[[np.ndarray, tuple[int, int] | None], Any]] = {
    "pillow": pillow.open_image,
    "turbo": turbo.decode,
}


@dataclass(frozen=True)
class Decode:
    """Decode an image file to RGB pixels, upright according to its EXIF orientation.

    `features` go from uint8 of shape `(bytes,)` to uint8 of shape `(height, width, 3)`.

    Attributes
    ----------
    decoder : str
        "pillow", or "turbo" for libjpeg-turbo, which is faster and gives the same pixels. Before `RandomResizedCrop`,
        "turbo" decodes only the crop of a JPEG file if this machine has TurboJPEG 3 (see `etl.images.jpeg_crop`).
    at_least : (int, int) or None
        Height and width. JPEG files are scaled down while they are decoded, to an eighth, a quarter or half of their
        size, whichever is the smallest that is at least this large. This is faster for large photographs, and gives
        other pixels than decoding the whole image. None decodes at full size.

    Raises
    ------
    ValueError
        If the decoder is unknown, or the bytes are not a whole image.
    OSError
        If the file is damaged, in some cases.
    ImportError
        For "turbo", if simplejpeg is not installed, or `FAIR_ETL_TURBOJPEG` is not the path of TurboJPEG 3.
    """

    decoder: str = "pillow"
    at_least: tuple[int, int] | None = field(default=None, metadata=ADDED_LATER)
    name: ClassVar[str] = "decode"
    fingerprint_kind: ClassVar[str] = "etl.stages.decode.Decode"
    changes_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.decoder not in DECODERS:
            raise ValueError(f"unknown decoder {self.decoder!r}; known: {', '.join(DECODERS)}")
        if self.at_least is not None and (len(self.at_least) != 2 or min(self.at_least) < 1):  # type: ignore[redundant-expr]
            raise ValueError(f"at_least is a height and a width of at least 1 pixel, not {self.at_least}")

    @property
    def version(self) -> int:
        """2 if the decoder scales as "pillow" does, to an eighth, a quarter or half; 1 took five eighths, too."""
        return 2 if self.decoder == "turbo" and self.at_least is not None else 1

    def __call__(self, record: Record) -> Record:
        return {**record, "features": np.asarray(self.open(record["features"]))}

    def open(self, encoded: NDArray[np.uint8]) -> Any:
        """Return the image in the decoder's own form: an array, or a Pillow image."""
        _check_encoded(encoded)
        return DECODERS[self.decoder](encoded, self.at_least)

    def fused_before(self, following: AnyStage) -> AnyStage:
        """Return the stage to run in place of this one if `following` is next."""
        # Exact types, since subclasses may do something else.
        if type(following) is RandomResizedCrop and self == Decode("turbo") and _may_decode_crops():
            return _DecodeCrop(following)
        takes_image = type(following) in (Resize, RandomResizedCrop)
        keeps_image = takes_image and getattr(following, "resizer", None) == self.decoder == "pillow"
        return _DecodeForResize(self) if keeps_image and type(self).__call__ is Decode.__call__ else self


@dataclass(frozen=True)
class _DecodeForResize:
    """Leaves the image in the decoder's own form, which `Resize` accepts, too.

    This saves two copies of the whole photograph, made while holding the GIL: with Pillow, a photograph of 514 x 358
    took 0.6 times as long.
    """

    decode: Decode
    name: ClassVar[str] = "decode"

    def __call__(self, record: Record) -> Record:
        return {**record, "features": self.decode.open(record["features"])}


@dataclass(frozen=True)
class _DecodeCrop:
    """Decodes only the crop that the following stage draws, if this is possible."""

    crop: RandomResizedCrop
    name: ClassVar[str] = "decode"
    is_random: ClassVar[bool] = True
    draws_for_following: ClassVar[bool] = True

    def __call__(self, record: Record, random: np.random.Generator) -> Record:
        _check_encoded(record["features"])
        pixels, is_crop = jpeg_crop.decode(
            record["features"], lambda height, width: self.crop.draw(height, width, random)
        )
        return {**record, "features": DecodedCrop(pixels) if is_crop else pixels}


def _may_decode_crops() -> bool:
    """Return whether the library can be used, or its error must be raised when the stage runs."""
    try:
        return jpeg_crop.find_library() is not None
    except ImportError:
        return True


def _check_encoded(features: Any) -> None:
    """Raise `ValueError` unless `features` are the bytes of a file as an array."""
    is_array = isinstance(features, np.ndarray)
    if not is_array or features.dtype != np.uint8 or features.ndim != 1:
        shown = f"{features.dtype} of shape {features.shape}" if is_array else f"a {type(features).__name__}"
        raise ValueError(
            f"features are {shown}, not an array of the bytes of an image file, uint8 of shape (bytes,); leave the "
            "stage out if they are pixels already"
        )
