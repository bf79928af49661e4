"""The pipelines that people start from."""

from __future__ import annotations

from etl.stages import ChannelsFirst, Decode, Normalise, Resize
from etl.stages.pipeline import READ, Pipeline

# Mean and standard deviation of all pixels of CIFAR-10's 50,000 training images, in units of 1 (E. Stevens, L. Antiga,
# T. Viehmann: Deep Learning with PyTorch, 2020, section 7.1, whose mean of 0.4915, 0.4823, 0.4468 was summed up in
# float32). The 0.2023, 0.1994, 0.2010 that are often seen are means of the standard deviations of single images.
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)


def image_pipeline(
    size: int | tuple[int, int] = 224, decoder: str = "pillow", *, dct_scaling: bool = False
) -> Pipeline:
    """Photographs to training arrays: decode, resize, channels_first, normalise (ImageNet's statistics).

    `size` is a side in pixels or `(height, width)`. Encoded bytes become float32 of shape `(3, height, width)`.
    `decoder` "pillow" resizes with Pillow, too; "turbo" decodes with libjpeg-turbo and resizes with OpenCV, which is
    faster and gives other pixels where an image shrinks (see `Resize`). `dct_scaling` lets the decoder scale JPEG files
    down on the way (see `Decode`).
    """
    height, width = (size, size) if isinstance(size, int) else size
    decode = Decode(decoder, (height, width) if dct_scaling else None)
    resize = Resize(height, width, "opencv" if decoder == "turbo" else "pillow")
    return Pipeline([decode, resize, ChannelsFirst(), Normalise()])


def digits_pipeline() -> Pipeline:
    """MNIST digits to training arrays: channels_first, normalise to -1..1.

    uint8 of shape `(28, 28)` becomes float32 of shape `(1, 28, 28)`.
    """
    return Pipeline([ChannelsFirst(), Normalise(mean=(0.5,), std=(0.5,))])


def cifar10_pipeline() -> Pipeline:
    """CIFAR-10's images to training arrays: channels_first, normalise (statistics of its training set).

    uint8 of shape `(32, 32, 3)` becomes float32 of shape `(3, 32, 32)`.
    """
    return Pipeline([ChannelsFirst(), Normalise(CIFAR10_MEAN, CIFAR10_STD)])


def default_split(pipeline: Pipeline) -> str:
    """Return the stage to presave after, unless the user asks for another.

    "resize" for photographs, whose bytes are a quarter of floats; otherwise the last, so that nothing is left to do;
    `READ` for a pipeline without stages.
    """
    if "resize" in pipeline.names:
        return "resize"
    return pipeline.names[-1] if pipeline.names else READ
