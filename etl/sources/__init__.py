"""Sources: random access to encoded records."""

from etl.sources.cifar10 import Cifar10
from etl.sources.csv import Csv
from etl.sources.detect import open_source
from etl.sources.idx import Idx
from etl.sources.image_folder import ImageFolder
from etl.sources.map_dataset import MapDataset
from etl.sources.record import Record, RecordError
from etl.sources.sequences import Sequences
from etl.sources.tar import Tar

__all__ = [
    "Cifar10",
    "Csv",
    "Idx",
    "ImageFolder",
    "MapDataset",
    "Record",
    "RecordError",
    "Sequences",
    "Tar",
    "open_source",
]
