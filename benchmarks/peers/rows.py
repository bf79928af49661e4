"""The rows of the tables: which functions and classes of this folder load, for which task.

Nothing here imports a peer's file, since that imports the peer's library.
"""

from __future__ import annotations

from dataclasses import dataclass

RAW, PRESAVED = "raw", "presaved"
TASKS = (RAW, PRESAVED)
OURS = "fair-etl"


@dataclass(frozen=True)
class Row:
    """One library's way to do one task.

    Photographs are decoded at full size, and none are kept in memory from one epoch to the next: the page cache is warm
    for all loaders.

    Attributes
    ----------
    name : str
        As the table shows it.
    task : str
        `RAW`: photographs are decoded in every epoch. `PRESAVED`: pixels are kept, and normalised in every epoch.
    peer : str
        The file of this folder, without its suffix, and the file in requirements/ that says what its environment needs.
    loader : str
        A function or class of that file, as `etl compare --strategies` takes it. It yields images, float32 of shape
        `(batch, 3, 224, 224)`, normalised, in the CPU's memory, and their labels, int64.
    note : str
        Shown beside the row.
    """

    name: str
    task: str
    peer: str
    loader: str
    note: str = ""

    @property
    def strategy(self) -> str:
        """The loader as a strategy of `etl compare`."""
        return f"{self.name}=benchmarks.peers.{self.peer}:{self.loader}"


_SHUFFLES = "shuffles its shards, and records in a buffer of 1,000"
# The first row of a task is the reference.
ROWS = (
    Row(OURS, RAW, "fair_etl", "load_raw", 'decoder="turbo", prefetch_size=3'),
    Row(OURS, PRESAVED, "fair_etl", "load_store", 'format="npy", prefetch_size=3'),
    Row("DataLoader, Pillow", RAW, "torch_dataloader", "load_with_pillow", "resized with antialiasing"),
    Row("DataLoader, simplejpeg", RAW, "torch_dataloader", "load_with_simplejpeg"),
    Row("DataLoader, memmap", PRESAVED, "torch_dataloader", "load_memmap"),
    Row("SPDL, simplejpeg", RAW, "spdl", "load_raw"),
    Row("SPDL, memmap", PRESAVED, "spdl", "load_memmap"),
    Row("Grain, simplejpeg", RAW, "grain", "load_raw"),
    Row("Grain, memmap", PRESAVED, "grain", "load_memmap"),
    Row(
        "FFCV, JPEG",
        RAW,
        "ffcv",
        "load_jpeg",
        "encoded again at quality 90, decoded with the fast DCT, resized by area",
    ),
    Row("FFCV, channels last", PRESAVED, "ffcv", "load_channels_last", "its own layout in memory"),
    Row("FFCV, channels first", PRESAVED, "ffcv", "load_channels_first"),
    Row("DALI on the CPU", RAW, "dali", "LoadRaw", "its own decoder"),
    Row("DALI, npy", PRESAVED, "dali", "LoadNpy"),
    Row("tf.data", RAW, "tf_data", "load_jpeg", "its own decoder"),
    Row("tf.data, a file each", PRESAVED, "tf_data", "load_files"),
    Row("LitData, simplejpeg", RAW, "litdata", "load_jpeg"),
    Row("LitData", PRESAVED, "litdata", "load_pixels"),
    Row("MosaicML, simplejpeg", RAW, "mosaicml", "load_jpeg"),
    Row("MosaicML", PRESAVED, "mosaicml", "load_pixels"),
    Row("HF datasets, simplejpeg", RAW, "hf_datasets", "load_jpeg"),
    Row("HF datasets", PRESAVED, "hf_datasets", "load_pixels"),
    Row("WebDataset, simplejpeg", RAW, "webdataset", "load_jpeg", _SHUFFLES),
    Row("WebDataset", PRESAVED, "webdataset", "load_pixels", _SHUFFLES),
    Row("numpy memmap", PRESAVED, "numpy_memmap", "load_memmap"),
    Row("h5py", PRESAVED, "hdf5", "load_hdf5"),
    Row("TensorStore, zarr", PRESAVED, "tensorstore", "load_zarr"),
)
PEERS = tuple(dict.fromkeys(row.peer for row in ROWS))
