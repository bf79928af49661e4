"""Arrays on disk: write once, read many.

    store = presave.write("photos.store", records, format="npy", jobs=2)
    store = presave.open_store("photos.store")
    arrays = store.gather([3, 1, 2])

Knows nothing of images, models or torch.
"""

from presave.convert import convert
from presave.errors import StoreError
from presave.formats import formats
from presave.manifest import Manifest, load_manifest
from presave.schema import Field, Record, RecordSequence
from presave.store import Store, open_store
from presave.verify import verify
from presave.write import Progress, write

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
