"""What a row of the table is: one library's way of doing one kind of work."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

RAW, PRESAVED = "raw", "presaved"
TASKS = (RAW, PRESAVED)
OURS = "fair_etl"
# Each is a file of this folder with `LOADERS`, and a file in requirements/ with what its environment needs.
PEERS = (
    OURS,
    "torch_dataloader",
    "spdl",
    "grain",
    "ffcv",
    "dali",
    "tf_data",
    "litdata",
    "mosaicml",
    "hf_datasets",
    "webdataset",
    "numpy_memmap",
    "hdf5",
    "tensorstore",
)

# (folder, batch size, threads) to an iterable of (images, numbers), one epoch an iteration.
Load = Callable[[str, int, int], Iterable[tuple[Any, Any]]]
# (what it is made from, folder to write into).
Prepare = Callable[[str, str], None]


@dataclass(frozen=True)
class Loader:
    """One way of loading. `load` is the code that a user writes, and nothing else: its lines are counted.

    `load(folder, batch_size, threads)` gives an object that is iterated once an epoch and yields pairs of images,
    float32 of shape `(batch, 3, 224, 224)`, normalised, in memory of the CPU as numpy or torch takes it, and numbers
    of the photographs, integers of shape `(batch,)`. A pair is valid until the next is asked for. Photographs are
    decoded at full size, and none are kept in memory from one epoch to the next: the page cache is warm for all.

    `folder` is that of the photographs, `000017/photograph.jpg`, or what `prepare(source, folder)` has filled from it,
    or for task "presaved" from a .npy of all pixels, uint8 of shape `(photographs, 224, 224, 3)`. `imports` are
    imported before the clock starts. `channels_last` says that images lie in memory as `(batch, 224, 224, 3)` under the
    shape above.
    """

    name: str
    task: str
    load: Load
    imports: tuple[str, ...] = ()
    prepare: Prepare | None = None
    channels_last: bool = False
    note: str = ""

    @property
    def module(self) -> str:
        """The module that it is defined in."""
        return self.load.__module__

    @property
    def peer(self) -> str:
        """The file that it is defined in, without the suffix."""
        return self.module.rpartition(".")[2]

    @property
    def key(self) -> str:
        """Its name among all rows of both tables."""
        return f"{self.task}/{self.name}"


def find_loaders(tasks: Iterable[str], peers: Iterable[str]) -> list[Loader]:
    """The loaders of these tasks in these files of this folder, in the order of `PEERS`."""
    modules = [importlib.import_module(f"benchmarks.peers.{peer}") for peer in PEERS if peer in set(peers)]
    return [loader for module in modules for loader in module.LOADERS if loader.task in set(tasks)]
