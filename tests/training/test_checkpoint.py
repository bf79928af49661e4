"""`Checkpoint` in a fit on one rank; those with several are in `test_ranks.py`."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import etl
from etl.iterators import BatchIterator
from etl.training import Checkpoint, EarlyStopping, Iteration
from etl.training.ranks import Ranks
from tests.presave.records import fail_at
from tests.programs import run_python
from tests.training.null_listener import NullListener
from tests.training.rank_jobs import Numbered, make_model, raw

EPOCHS = 3


class StopError(Exception):
    """Ends a fit where a test wants it."""


class FailAfter(NullListener):
    def __init__(self, iterations: int) -> None:
        self.left = iterations

    def iteration_done(self, iteration: Iteration) -> None:
        self.left -= 1
        if self.left < 0:
            raise StopError


def fit(path: Path, fails_after: int = 10**6, every: int | None = 1, batches: Any = None, **options: Any) -> Any:
    model = make_model()
    listeners = [FailAfter(fails_after), Checkpoint(path, every)]
    options = {"backend": "cpu", "optimizer": "adam", "epochs": EPOCHS, "listeners": listeners, **options}
    result = etl.fit(model, raw(20) if batches is None else batches, **options)
    return model.state_dict(), result


def same(first: Any, second: Any) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("fails_after", [1, 4, 5, 9, 14])
@pytest.mark.parametrize("wrap", [lambda batches: batches, etl.AsyncIterator])
def test_a_training_that_has_failed_goes_on_to_the_same_bits(tmp_path: Path, fails_after: int, wrap: Any) -> None:
    expected, whole = fit(tmp_path / "whole")
    path = tmp_path / "checkpoint"
    with pytest.raises(StopError):
        fit(path, fails_after, batches=wrap(raw(20)))
    found, rest = fit(path, batches=wrap(raw(20)))
    assert same(found, expected)
    assert rest.scores == whole.scores[fails_after:]
    again, nothing = fit(path)
    assert (nothing.scores, nothing.epochs) == ([], 0)
    assert same(again, expected)


def test_by_default_it_is_saved_after_each_epoch_and_at_the_end_of_the_fit(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with pytest.raises(StopError):
        fit(path, 7, every=None)
    assert torch.load(path)["iterator"]["epoch"] == 1
    stopped = EarlyStopping(max_seconds=1e-9)
    etl.fit(make_model(), raw(20), backend="cpu", epochs=1, listeners=[stopped, Checkpoint(tmp_path / "stopped")])
    assert torch.load(tmp_path / "stopped")["iterator"]["position"] == 4


@pytest.mark.parametrize("every", [None, 1, 5, 3])
@pytest.mark.parametrize("fails_after", [3, 5, 9, 10])
def test_scores_of_early_stopping_are_those_of_a_training_that_did_not_fail(
    tmp_path: Path, every: int | None, fails_after: int
) -> None:
    def run(path: Path, fails_after: int) -> tuple[EarlyStopping, Any]:
        stopping, model = EarlyStopping(max_epochs=3), make_model()
        # Whatever the order: what is saved includes the score of the epoch.
        listeners = [Checkpoint(path, every), stopping, FailAfter(fails_after)]
        etl.fit(model, raw(20), backend="cpu", epochs=None, listeners=listeners)
        return stopping, model.state_dict()

    expected, weights = run(tmp_path / "whole", 10**6)
    path = tmp_path / "checkpoint"
    with pytest.raises(StopError):
        run(path, fails_after)
    for _ in range(2):  # the second time, nothing is left to do
        found, other = run(path, 10**6)
        assert found.scores == pytest.approx(expected.scores, rel=1e-6)
        assert found.best_epoch == expected.best_epoch
        assert same(other, weights)


def test_a_stop_after_the_last_batch_of_an_epoch_ends_the_epoch(tmp_path: Path) -> None:
    class StopAtFifth(NullListener):
        def iteration_done(self, iteration: Iteration) -> None:
            if iteration.number == 4:
                self.training.stop("enough")

    batches = raw(20)
    stopping = EarlyStopping(max_epochs=3)
    listeners = [StopAtFifth(), stopping, Checkpoint(tmp_path / "checkpoint")]
    result = etl.fit(make_model(), batches, backend="cpu", epochs=3, listeners=listeners)
    assert (result.epochs, len(result.scores), len(stopping.scores), batches.epoch) == (1, 5, 1, 1)


def test_the_rest_of_an_epoch_may_have_no_whole_batch(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    options: dict[str, Any] = {"shuffle": True, "drop_last": True}
    with pytest.raises(StopError):
        fit(path, 4, batches=etl.RawIterator(Numbered(20), etl.Pipeline([]), 4, **options))
    _, rest = fit(path, batches=etl.RawIterator(Numbered(20), etl.Pipeline([]), 8, **options))
    assert (rest.epochs, len(rest.scores)) == (3, 4)


def test_a_loader_without_a_position_resumes_at_the_start_of_an_epoch(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(torch.randn(8, 6), torch.zeros(8, dtype=torch.long)), 4)
    path = tmp_path / "checkpoint"
    with pytest.raises(StopError):
        fit(path, 3, every=None, batches=loader)
    _, rest = fit(path, every=None, batches=loader)
    assert rest.epochs == EPOCHS - 1
    with pytest.raises(ValueError, match="cannot be resumed within an epoch: leave out `every`"):
        fit(tmp_path / "other", batches=loader)


def test_iterations_that_a_loader_without_a_position_leaves_unsaved_are_warned_of(tmp_path: Path) -> None:
    pairs = TensorDataset(torch.randn(8, 6), torch.zeros(8, dtype=torch.long))
    loaders: list[Any] = [DataLoader(pairs, 4), etl.TorchDataset(raw(8))]
    for batches in loaders:
        stopping, path = EarlyStopping(max_seconds=1e-9), tmp_path / "checkpoint"
        with pytest.warns(UserWarning, match="epoch 0 was stopped after iterations that are not in .*checkpoint: 1"):
            etl.fit(make_model(), batches, backend="cpu", epochs=2, listeners=[stopping, Checkpoint(path)])
        assert not path.exists()


def test_an_iterator_of_ones_own_needs_no_state() -> None:
    class Own(BatchIterator):
        async_supported = True
        batch_size, dtype, epoch = 4, "float32", 0

        def __iter__(self) -> Any:
            return iter([next(iter(raw(4)))])

        def set_epoch(self, epoch: int) -> None:
            """Do nothing."""

    stopping = EarlyStopping(max_seconds=1e-9)
    assert etl.fit(make_model(), Own(), backend="cpu", epochs=2, listeners=[stopping]).epochs == 0
    assert etl.fit(make_model(), Own(), backend="cpu", epochs=2).epochs == 2


@pytest.mark.parametrize("wrap", [lambda batches: batches, etl.AsyncIterator])
def test_an_iterator_of_ones_own_without_a_state_resumes_at_the_start_of_an_epoch(tmp_path: Path, wrap: Any) -> None:
    class Own(BatchIterator):
        async_supported = True
        batch_size, dtype, epoch = 4, "float32", 0

        def __iter__(self) -> Any:
            yield from raw(8)
            self.epoch += 1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    path = tmp_path / "checkpoint"
    with pytest.raises(StopError):
        fit(path, 3, every=None, batches=wrap(Own()))
    _, rest = fit(path, every=None, batches=wrap(Own()))
    assert rest.epochs == EPOCHS - 1
    with pytest.raises(ValueError, match="cannot be resumed within an epoch: leave out `every`"):
        fit(tmp_path / "other", batches=wrap(Own()))


def test_a_save_that_is_killed_keeps_the_file_before_and_leaves_nothing_once_the_training_goes_on(
    tmp_path: Path,
) -> None:
    program = """
import os, signal, sys, torch
from tests.training.test_checkpoint import Path, fit
torch.save = lambda state, file: os.kill(os.getpid(), signal.SIGKILL)
fit(Path(sys.argv[1]))
"""
    path = tmp_path / "checkpoint"
    fit(path, epochs=1)
    saved = path.read_bytes()
    assert run_python("-c", program, path).returncode == -signal.SIGKILL
    assert path.read_bytes() == saved
    assert sorted(each.suffix for each in tmp_path.iterdir()) == ["", ".unfinished"]
    fit(path)
    assert list(tmp_path.iterdir()) == [path]


def test_what_could_not_be_loaded_again_is_said_at_the_first_save(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "checkpoint"  # its folder is made
    with pytest.raises(ValueError, match="what the optimizer or a listener has to save could not be loaded again: "):
        fit(path, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=np.float64(0.1)))
    assert list(path.parent.iterdir()) == []


def test_a_file_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_text("nothing")
    with pytest.raises(ValueError, match="checkpoint is not a checkpoint: "):
        fit(path)
    assert path.read_text() == "nothing"
    torch.save(torch.zeros(2), path)
    with pytest.raises(ValueError, match="checkpoint is not a checkpoint: it holds a Tensor"):
        fit(path)
    path.unlink()
    fit(path)
    with pytest.raises(ValueError, match="the state was taken with the optimizer Adam, this training has SGD"):
        fit(path, optimizer="sgd")
    with pytest.raises(ValueError, match="checkpoint cannot be resumed from: the state was taken with records=20"):
        fit(path, batches=raw(24))
    with pytest.raises(ValueError, match=r"cannot be resumed from: the state was taken with the listeners FailAfter, "):
        fit(path, listeners=[Checkpoint(path)])
    batches = raw(20)
    with pytest.raises(ValueError, match="cannot be resumed from: the state is of another model or optimizer"):
        etl.fit(
            torch.nn.Linear(6, 4),
            batches,
            backend="cpu",
            optimizer="adam",
            listeners=[FailAfter(9), Checkpoint(path)],
        )
    assert batches.epoch == 0  # not that of the checkpoint
    with pytest.raises(ValueError, match="of another model or optimizer: loaded state dict has a different number of"):
        fit(
            path,
            batches=batches,
            optimizer=lambda model: torch.optim.Adam([{"params": [each]} for each in model.parameters()]),
        )
    assert batches.epoch == 0


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES])
def test_a_folder_that_cannot_be_flushed_does_not_end_a_training(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, os, "fsync", number, only_folders=True)
    fit(tmp_path / "checkpoint", epochs=1)
    assert torch.load(tmp_path / "checkpoint")["iterator"]["epoch"] == 1


def test_a_disk_that_fails_ends_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, os, "fsync", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        fit(tmp_path / "checkpoint", epochs=1)


def test_a_checkpoint_of_other_records_of_the_same_number_is_refused(tmp_path: Path) -> None:
    def batches(first: int) -> etl.RawIterator:
        records = [{"features": np.full(6, first + number, np.float32), "label": number % 3} for number in range(8)]
        return etl.RawIterator(records, etl.Pipeline([]), 2)

    with pytest.raises(StopError):
        fit(tmp_path / "checkpoint", 2, batches=batches(0))
    with pytest.raises(ValueError, match="cannot be resumed from: the state was taken over other records"):
        fit(tmp_path / "checkpoint", batches=batches(1))


def test_ranks_that_resume_from_files_of_their_own_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(_: Ranks, batches: BatchIterator) -> None:
        if batches.epoch == 1:  # as of an earlier time than that of rank 0
            raise ValueError("rank 0 has epoch=2, and rank 1 has epoch=1")

    fit(tmp_path / "checkpoint", epochs=1)
    monkeypatch.setattr(Ranks, "check_order", check)
    with pytest.raises(ValueError, match="checkpoint is not the same file on all ranks: rank 0 has epoch=2"):
        fit(tmp_path / "checkpoint")
