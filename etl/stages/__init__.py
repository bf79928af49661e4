"""Stages: the steps from encoded bytes to a training array."""

from etl.stages.cast import Cast
from etl.stages.channels_first import ChannelsFirst
from etl.stages.colour_jitter import ColourJitter
from etl.stages.decode import DECODERS, Decode
from etl.stages.normalise import IMAGENET_MEAN, IMAGENET_STD, Normalise
from etl.stages.random_crop import RandomCrop
from etl.stages.random_flip import RandomFlip
from etl.stages.random_resized_crop import RandomResizedCrop
from etl.stages.resize import RESIZERS, Resize
from etl.stages.rng import RecordRng
from etl.stages.stage import Stage

# The former name of `RecordRng`.
Draw = RecordRng

__all__ = [
    "DECODERS",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "RESIZERS",
    "Cast",
    "ChannelsFirst",
    "ColourJitter",
    "Decode",
    "Draw",
    "Normalise",
    "RandomCrop",
    "RandomFlip",
    "RandomResizedCrop",
    "RecordRng",
    "Resize",
    "Stage",
]
