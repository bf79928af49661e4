"""Stages: the steps from encoded bytes to a training array."""

from etl.stages.cast import Cast
from etl.stages.channels_first import ChannelsFirst
from etl.stages.decode import DECODERS, Decode
from etl.stages.normalise import IMAGENET_MEAN, IMAGENET_STD, Normalise
from etl.stages.resize import Resize
from etl.stages.stage import Stage

__all__ = [
    "DECODERS",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Cast",
    "ChannelsFirst",
    "Decode",
    "Normalise",
    "Resize",
    "Stage",
]
