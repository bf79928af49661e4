"""Sources: random access to encoded records."""

from etl.sources.idx import Idx
from etl.sources.image_folder import ImageFolder
from etl.sources.open_source import open_source, usual_pipeline

__all__ = ["Idx", "ImageFolder", "open_source", "usual_pipeline"]
