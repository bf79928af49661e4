"""The pipeline of a source, a preset or the user's own, and the stage after which it is presaved."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from etl.functions import call_by_name, find_function
from etl.sources import Cifar10, Idx, ImageFolder, Tar
from etl.stages import DECODERS, ChannelsFirst, Decode, Normalise, Resize
from etl.stages.pipeline import READ, Pipeline
from etl.stages.stage import is_random, stage_name
from presave.thread_safety import chosen_from

# Mean and standard deviation of all pixels, from 0 to 1, of CIFAR-10's 50,000 training images (E. Stevens, L. Antiga,
# T. Viehmann: Deep Learning with PyTorch, 2020, section 7.1, whose mean of 0.4915, 0.4823, 0.4468 was summed in
# float32). The often-quoted 0.2023, 0.1994, 0.2010 are means of the standard deviations of single images.
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)
# What `--decoder` takes: the decoders of `image_pipeline`, and each with `dct_scaling`.
PRESET_DECODERS = (*DECODERS, *(f"{each}-scaled" for each in DECODERS))


def image_pipeline(
    size: int | tuple[int, int] = 224, decoder: str = "pillow", *, dct_scaling: bool = False
) -> Pipeline:
    """Make the pipeline for photographs: decode, resize, channels_first, normalise (with ImageNet's statistics).

    The bytes of an image file become float32 of shape `(3, height, width)`.

    Parameters
    ----------
    size : int or (int, int)
        Side of a square, or height and width, in pixels.
    decoder : str
        "pillow" decodes and resizes with Pillow. "turbo" decodes with libjpeg-turbo and resizes with OpenCV, which is
        faster and gives other pixels when an image shrinks (see `Resize`).
    dct_scaling : bool
        Let the decoder scale JPEG files down while it decodes them (see `Decode`).

    Examples
    --------
    >>> iterator = etl.RawIterator(etl.ImageFolder("photos"), etl.image_pipeline(size=64), batch_size=8)
    >>> next(iter(iterator)).features.shape
    (8, 3, 64, 64)
    """
    height, width = (size, size) if isinstance(size, int) else size
    decode = Decode(decoder, (height, width) if dct_scaling else None)
    resize = Resize(height, width, "opencv" if decoder == "turbo" else "pillow")
    return Pipeline([decode, resize, ChannelsFirst(), Normalise()])


def digits_pipeline() -> Pipeline:
    """Make the pipeline for MNIST's digits: channels_first, normalise to -1..1.

    uint8 of shape `(28, 28)` becomes float32 of shape `(1, 28, 28)`.
    """
    return Pipeline([ChannelsFirst(), Normalise(mean=(0.5,), std=(0.5,))])


def cifar10_pipeline() -> Pipeline:
    """Make the pipeline for CIFAR-10's images: channels_first, normalise (with the statistics of its training set).

    uint8 of shape `(32, 32, 3)` becomes float32 of shape `(3, 32, 32)`.
    """
    return Pipeline([ChannelsFirst(), Normalise(CIFAR10_MEAN, CIFAR10_STD)])


def default_split(pipeline: Pipeline) -> str:
    """Return the name of the stage after which records are presaved by default.

    It is "resize" if there is such a stage, since uint8 takes a quarter of the space of float32. Otherwise it is the
    last stage, so that nothing is left to do, or `READ` if there are no stages. Random stages cannot be presaved, so
    only those before them count.
    """
    names = [stage_name(stage) for stage in takewhile(lambda stage: not is_random(stage), pipeline.stages)]
    if "resize" in names:
        return "resize"
    return names[-1] if names else READ


def open_pipeline(name: str | None, source: Any, size: int, decoder: str) -> Pipeline:
    """Return the pipeline that the user's function `name` makes, or `default_pipeline` if there is no name.

    Stores are tied to the pipeline that wrote them. A stage of a class is identified by its class, its fields and its
    `version`; a stage that is a function by its module and name, its `version`, its default values, and the variables
    that it captures. Code is not compared: if what a stage does changes, its `version` must change, too.

    Parameters
    ----------
    name : str or None
        "package.module:function", or what `pickle_function` returned. The function is called with the source if it has
        a parameter, and returns a `Pipeline`.

    Raises
    ------
    ValueError
        If there is no such function, it raises an error, or it returns something else.
    """
    if name is None:
        return default_pipeline(source, size, decoder)
    function = find_function(name, "--pipeline")
    try:
        pipeline = call_by_name(function, {"source": lambda: source}, source)
    except (Exception, SystemExit) as error:  # the user's function may raise anything
        raise ValueError(f"--pipeline {name} raised {type(error).__name__}: {error}") from error
    if not isinstance(pipeline, Pipeline):
        raise ValueError(f"--pipeline {name} returned a {type(pipeline).__name__}; return an etl.Pipeline")
    return pipeline


def default_pipeline(source: Any, size: int = 224, decoder: str = "pillow") -> Pipeline:
    """Return the pipeline that turns records of `source` into training arrays.

    It has no stages unless the source is one of this package whose records need some, or a `Subset` of torch of one.

    Parameters
    ----------
    decoder : str
        One of `PRESET_DECODERS`, for photographs.
    """
    source = chosen_from(source)
    if isinstance(source, Idx):
        return digits_pipeline()
    if isinstance(source, Cifar10):
        return cifar10_pipeline()
    if isinstance(source, (ImageFolder, Tar)):
        name, _, scaled = decoder.partition("-")
        return image_pipeline(size, name, dct_scaling=bool(scaled))
    return Pipeline([])
