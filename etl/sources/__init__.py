"""Sources: random access to encoded records."""

from etl.sources.idx import Idx
from etl.sources.image_folder import ImageFolder
from etl.sources.map_dataset import MapDataset
from etl.sources.open_source import open_source, usual_pipeline

__all__ = ["Idx", "ImageFolder", "MapDataset", "open_source", "usual_pipeline"]
