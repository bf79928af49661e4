"""Arrays on disk: write once, read many times.

    store = presave.write("photos.store", records, format="npy", jobs=2)
    store = presave.open_store("photos.store")
    arrays = store.gather([3, 1, 2])

This package knows nothing of images, models or torch.
"""

from presave.conversion import convert
from presave.errors import StoreError
from presave.manifest import Manifest
from presave.manifest_file import load_manifest
from presave.parallel_write import Progress
from presave.schema import Field, Record, RecordSequence
from presave.shard_formats import formats
from presave.store import Store, open_store
from presave.verification import verify
from presave.writer import write

__all__ = [
    "Field",
    "Manifest",
    "Progress",
    "Record",
    "RecordSequence",
    "Store",
    "StoreError",
    "convert",
    "formats",
    "load_manifest",
    "open_store",
    "verify",
    "write",
]
