"""Memory for batches that is used again, for libraries that leave the making of batches to their user.

A batch of 64 images has 38.5 MB. New memory of that size comes page by page from the kernel, which costs as much as
normalising into it, and more in shared memory. FFCV and DALI use theirs again, too; like theirs, a batch is valid until
the next is asked for.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from benchmarks.peers.imagenet import SIZE


class ReusedBatches:
    """Batches for threads of one process. As many are made as are in use at once."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._free = deque[np.ndarray]()

    def take(self, count: int) -> np.ndarray:
        """A batch for `count` images, with any content."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty((self._batch_size, 3, SIZE, SIZE), np.float32)
        return memory[:count]

    def give_back(self, batch: np.ndarray) -> None:
        """Take back what `take` returned, when it is no longer read."""
        memory: Any = batch.base
        self._free.append(memory)


class SharedBatches:
    """Batches for the workers of a torch DataLoader, which write them where the training process reads them.

    A tensor that is not in shared memory is copied there when a worker sends it, and both processes map new pages for
    it: "Reuse buffers passed through a Queue", docs.pytorch.org/docs/stable/notes/multiprocessing.html. Each worker
    writes into its own batches in turn. `ahead` is how many a worker may have begun that were not asked for:
    `prefetch_factor` for a map-style data set; for an iterable one those of all workers, as they fall to the last
    worker once the others are at their end. One more is the one that is in use.
    """

    def __init__(self, workers: int, batch_size: int, ahead: int) -> None:
        import torch

        self._memory = torch.empty((workers, ahead + 1, batch_size, 3, SIZE, SIZE)).share_memory_()
        self._turn = 0

    def take(self, count: int) -> Any:
        """A tensor for `count` images, with any content. To be called in a worker."""
        from torch.utils.data import get_worker_info

        worker: Any = get_worker_info()
        self._turn = (self._turn + 1) % self._memory.shape[1]
        return self._memory[worker.id, self._turn, :count]
