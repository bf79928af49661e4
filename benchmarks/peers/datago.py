"""datago: github.com/Photoroom/datago, "Use the package from Python" and "Process images on the fly".

It decodes and resizes on its own threads, one for each CPU (`DATAGO_MAX_TASKS`), keeps the aspect ratio by cropping,
and gives one sample after another, with its path as JSON. Random sampling draws files with replacement, so an epoch of
every file once has the order of its threads only. Its user makes the batches.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from datago import DatagoClient, initialize_logging

from benchmarks.peers.loader import SIZE, ReusedBatches, list_photographs, normalise


class LoadRaw:
    def __init__(self, path: str, batch_size: int, workers: int, prefetch_buffer_size: int = 64) -> None:
        initialize_logging(log_level="error")
        os.environ["DATAGO_MAX_TASKS"] = str(workers)
        files, labels = list_photographs(path)
        self.labels = {file.parent.name: label for file, label in zip(files, labels, strict=True)}
        self.batches, self.batch_size = ReusedBatches(batch_size), batch_size
        self.config = {
            "source_type": "file",
            "source_config": {"root_path": path, "random_sampling": False, "rank": 0, "world_size": 1},
            "image_config": {
                "crop_and_resize": True,
                "default_image_size": SIZE,
                "downsampling_ratio": 32,
                "min_aspect_ratio": 1.0,
                "max_aspect_ratio": 1.0,
            },
            "prefetch_buffer_size": prefetch_buffer_size,
            "samples_buffer_size": prefetch_buffer_size,
            "limit": len(files),
        }
        self.client = DatagoClient(json.dumps(self.config))

    def __iter__(self) -> Any:
        self.client.start()
        samples = iter(self.client.get_sample, None)
        while True:
            batch, labels = self.batches.take(self.batch_size), []
            for image, sample in zip(batch, samples, strict=False):
                normalise(np.asarray(sample.image.to_numpy_array()), image)
                labels.append(self.labels[Path(json.loads(sample.id)).parent.name])
            if labels:
                yield batch[: len(labels)], np.array(labels, np.int64)
            self.batches.give_back(batch)
            if len(labels) < self.batch_size:
                return

    def close(self) -> None:
        self.client.stop()


LoadRaw.settings = {"workers": (1, 2, 3), "prefetch_buffer_size": (32, 64, 128)}
