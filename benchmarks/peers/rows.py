"""The rows of the tables: which functions and classes of this folder load, for which task.

Nothing here imports a peer's file, since that imports the peer's library.
"""

from __future__ import annotations

from dataclasses import dataclass

RAW, CROPS, PRESAVED = "raw", "crops", "presaved"
TASKS = (RAW, CROPS, PRESAVED)
OURS = "fair-etl"
# Two rows that show how far off the table is: this project's loader again, and a copy that is truly slower by
# `SLOWER`, because only one in `1 + SLOWER` of its images counts.
AGAIN, SLOWED, SLOWER = "fair-etl, again", "fair-etl, slowed by 2%", 0.02


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
        `RAW`: photographs are decoded and resized in every epoch. `CROPS`: so are random crops, every other one of
        which is flipped. `PRESAVED`: pixels are kept, and normalised in every epoch.
    peer : str
        The file of this folder, without its suffix, and the file in requirements/ that says what its environment needs.
    loader : str
        A function or class of that file, called with those of `path`, `folder`, `batch_size` and `workers` that it
        takes. What it returns yields images, float32 of shape `(batch, 3, 224, 224)`, normalised, in the CPU's memory,
        and their labels, int64.
    note : str
        Shown beside the row.
    """

    name: str
    task: str
    peer: str
    loader: str
    note: str = ""


_SHUFFLES = "shuffles its shards, and records in a buffer of 1,000"
# The first row of a task is the reference.
ROWS = (
    Row(OURS, RAW, "fair_etl", "load_raw", 'decoder="turbo", prefetch_size=3'),
    Row(AGAIN, RAW, "fair_etl", "load_raw"),
    Row(SLOWED, RAW, "fair_etl", "load_raw"),
    Row("threads, simplejpeg", RAW, "threads", "load_raw", "a pool of threads"),
    Row("DataLoader, Pillow", RAW, "torch_dataloader", "load_with_pillow", "antialiased"),
    Row("DataLoader, simplejpeg", RAW, "torch_dataloader", "load_with_simplejpeg"),
    Row("SPDL, simplejpeg", RAW, "spdl", "load_raw"),
    Row("Grain, simplejpeg", RAW, "grain", "load_raw"),
    Row(
        "FFCV, JPEG",
        RAW,
        "ffcv",
        "load_jpeg",
        "encoded again at quality 90, decoded with the fast DCT, resized by area",
    ),
    Row("DALI on the CPU", RAW, "dali", "LoadRaw", "its own decoder"),
    Row("tf.data", RAW, "tf_data", "load_jpeg", "its own decoder"),
    Row("LitData, simplejpeg", RAW, "litdata", "load_jpeg"),
    Row("MosaicML, simplejpeg", RAW, "mosaicml", "load_jpeg"),
    Row("HF datasets, simplejpeg", RAW, "hf_datasets", "load_jpeg"),
    Row("WebDataset, simplejpeg", RAW, "webdataset", "load_jpeg", _SHUFFLES),
    Row("datago", RAW, "datago", "LoadRaw", "antialiased, crops to a square, in the order of the files"),
    Row(OURS, CROPS, "fair_etl", "load_crops", "without antialiasing"),
    Row(AGAIN, CROPS, "fair_etl", "load_crops"),
    Row(SLOWED, CROPS, "fair_etl", "load_crops"),
    Row("fair-etl, antialiased", CROPS, "fair_etl", "load_antialiased_crops", "resized by Pillow"),
    Row("threads, simplejpeg", CROPS, "threads", "load_crops", "a pool of threads"),
    Row("DataLoader, simplejpeg", CROPS, "torch_dataloader", "load_crops"),
    Row("DataLoader, torchvision", CROPS, "torch_dataloader", "load_with_torchvision", "antialiased"),
    Row("SPDL, simplejpeg", CROPS, "spdl", "load_crops"),
    Row("Grain, simplejpeg", CROPS, "grain", "load_crops"),
    Row("FFCV", CROPS, "ffcv", "load_crops", "encoded again at quality 90, decoded with the fast DCT, resized by area"),
    Row("DALI on the CPU", CROPS, "dali", "LoadCrops", "its own decoder, which decodes only the crop"),
    Row("tf.data", CROPS, "tf_data", "load_crops", "its own decoder, which decodes only the crop"),
    Row(OURS, PRESAVED, "fair_etl", "load_store", 'format="npy", prefetch_size=3'),
    Row(AGAIN, PRESAVED, "fair_etl", "load_store"),
    Row(SLOWED, PRESAVED, "fair_etl", "load_store"),
    Row(
        "fair-etl, their loop",
        PRESAVED,
        "fair_etl",
        "load_store_with_their_loop",
        "the loop of the other rows, as a function of a record",
    ),
    Row(
        "fair-etl, their loop in place",
        PRESAVED,
        "fair_etl",
        "load_store_with_their_loop_in_place",
        "the same, written into the batch",
    ),
    Row("threads, our loop", PRESAVED, "fair_etl", "load_map_with_our_loop", "a memory map and our compiled loop"),
    Row("threads, memmap", PRESAVED, "threads", "load_memmap", "a pool of threads"),
    Row("DataLoader, memmap", PRESAVED, "torch_dataloader", "load_memmap"),
    Row("SPDL, memmap", PRESAVED, "spdl", "load_memmap"),
    Row("Grain, memmap", PRESAVED, "grain", "load_memmap"),
    Row("FFCV, channels last", PRESAVED, "ffcv", "load_channels_last", "its own layout in memory"),
    Row("FFCV, channels first", PRESAVED, "ffcv", "load_channels_first"),
    Row("DALI, npy", PRESAVED, "dali", "LoadNpy"),
    Row("tf.data, a file each", PRESAVED, "tf_data", "load_files"),
    Row("tf.data, TFRecord", PRESAVED, "tf_data", "load_records", _SHUFFLES),
    Row("LitData", PRESAVED, "litdata", "load_pixels"),
    Row("MosaicML", PRESAVED, "mosaicml", "load_pixels"),
    Row("HF datasets", PRESAVED, "hf_datasets", "load_pixels"),
    Row("WebDataset", PRESAVED, "webdataset", "load_pixels", _SHUFFLES),
    Row("h5py", PRESAVED, "hdf5", "load_hdf5"),
    Row("TensorStore, zarr", PRESAVED, "tensorstore", "load_zarr"),
)
PEERS = tuple(dict.fromkeys(row.peer for row in ROWS))
