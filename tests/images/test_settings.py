"""Settings of Pillow that the user has made reach every process that is started for the user."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from joblib.externals import loky
from PIL import Image, ImageFile, PngImagePlugin

import etl
import presave
from etl.images.settings import take_over

pytestmark = pytest.mark.usefixtures("pillow_settings_kept")
NOTHING = etl.Pipeline([])


def seen() -> list[int]:
    """Return what Pillow's settings are in this process."""
    return [
        -1 if Image.MAX_IMAGE_PIXELS is None else Image.MAX_IMAGE_PIXELS,
        int(ImageFile.LOAD_TRUNCATED_IMAGES),
        PngImagePlugin.MAX_TEXT_CHUNK,
        PngImagePlugin.MAX_TEXT_MEMORY,
    ]


class Seen:
    """Records of what Pillow's settings are in the process that loads them, and its number."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> presave.Record:
        return {"features": np.array(seen(), np.int64), "label": os.getpid()}


def change(max_image_pixels: int | None) -> list[int]:
    """Set all settings as a user does, and return them."""
    Image.MAX_IMAGE_PIXELS = max_image_pixels
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY = 1 << 21, 1 << 27
    return seen()


def epoch_of(iterator: Any) -> list[list[int]]:
    return [row.tolist() for batch in iterator for row in batch.features]


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_worker_processes_have_the_settings_of_the_moment_at_which_an_epoch_begins(start_method: str) -> None:
    raw = etl.RawIterator(Seen(), NOTHING, 2, dtype=None)
    first = change(12_345)
    with etl.AsyncIterator(raw, workers="process", processes=2, start_method=start_method) as iterator:
        assert epoch_of(iterator) == [first] * 4
        for pixels in (None, 777):
            changed = change(pixels)
            assert epoch_of(iterator) == [changed] * 4


def test_a_worker_process_that_replaces_another_has_them_too() -> None:
    changed = change(None)
    raw = etl.RawIterator(Seen(), NOTHING, 2, dtype=None)
    with etl.AsyncIterator(raw, workers="process", processes=1) as iterator:
        pids = [label for batch in iterator for label in batch.labels.tolist()]
        os.kill(pids[0], signal.SIGKILL)
        assert epoch_of(iterator) == [changed] * 4


def write_seen(path: Path, records: presave.RecordSequence) -> None:
    """Write `records` in other processes, which have the settings of this one."""
    with presave.write(path, records, shard_nbytes=40, jobs=-1) as store:
        written = store.gather(range(4))
    assert written["features"].tolist() == [seen()] * 4
    assert os.getpid() not in written["label"].tolist()


def test_processes_that_write_a_store_have_the_settings_of_each_write(tmp_path: Path) -> None:
    with joblib.parallel_config(backend="loky", n_jobs=2):
        write_seen(tmp_path / "first", Seen())
        change(None)
        write_seen(tmp_path / "second", etl.records(Seen(), NOTHING))
        change(777)
        write_seen(tmp_path / "third", Seen())
    loky.get_reusable_executor().shutdown(wait=True)


@pytest.mark.filterwarnings("ignore:`apply_async` is deprecated:DeprecationWarning:joblib")
@pytest.mark.filterwarnings("ignore:Creating scratch directories:UserWarning")  # a busy disk
def test_workers_of_a_cluster_have_them_too(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="the cluster extra is not installed")
    change(None)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, local_directory=tmp_path, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        write_seen(tmp_path / "store", Seen())


def test_settings_of_a_library_that_is_not_installed_are_no_error() -> None:
    take_over([("there_is_no_such_library", "LIMIT", 1)])
