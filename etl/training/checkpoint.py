"""`Checkpoint`: saves model, optimizer and position in the data together, and resumes from them."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from etl.arguments import whole_number
from etl.training.listeners import Iteration
from presave.files import flush, remove_unfinished, replacing, usual_mode

if TYPE_CHECKING:
    from etl.training.training import Training


class Checkpoint:
    """A listener that saves the training to a file, and goes on from the file if it is there when a fit starts.

    A program that was ended anywhere therefore does the rest of its training when it is run again, on any number of
    ranks. Rank 0 writes; all ranks read, so the file must be where all can see it.

    Parameters
    ----------
    path : str or Path
        The file. A new one replaces it in one step, so that it is whole at any time.
    every : int, optional
        Iterations from one save to the next. By default, it is saved at the end of each epoch, and of the fit; if the
        batches are of a loader that cannot resume within an epoch, at the end of each epoch alone.

    Raises
    ------
    ValueError
        At the start of the fit, if the file is of another model, optimizer, data set or list of listeners, or is no
        checkpoint; if `every` is given and the batches are of a loader that cannot resume within an epoch. At the
        first save, if the optimizer or a listener has a state that torch would not load again, such as numbers of
        numpy.
    OSError
        If the file cannot be read or written.

    Warns
    -----
    UserWarning
        If the training is stopped within an epoch, and the batches cannot be resumed there: with the number of
        iterations that are not saved.

    Notes
    -----
    If parameters are averaged every few iterations, it is saved after the next averaging, when all models are equal.
    After a resume, records that were trained on since the last save are trained on again, by the model that had not
    seen them; each other record of the epoch comes once. States of random number generators are not saved.

    Examples
    --------
        etl.fit(model, batches, epochs=10, listeners=[etl.training.Checkpoint("training.checkpoint", every=500)])
    """

    needs_times = False
    runs_last = True

    def __init__(self, path: str | Path, every: int | None = None) -> None:
        self._path = Path(path)
        self._is_first = True
        self._every = None if every is None else whole_number("every", every, least=1)
        self._training: Training | None = None
        self._unsaved = 0
        # Of the last iteration: a loader may name the epoch of its next loop.
        self._epoch = 0

    def training_started(self, training: Training) -> None:
        """Go on from the file, if it is there."""
        if self._every is not None and not training.can_resume:
            raise ValueError("these batches cannot be resumed within an epoch: leave out `every`, to save at its end")
        training.check_whole_model("Checkpoint")
        self._training, self._unsaved, self._is_first = training, 0, True
        if training.ranks.rank == 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            remove_unfinished(self._path.resolve())
        # Rank 0 decides, for a file might appear, or disappear, between two looks.
        if training.ranks.first(self._path.exists()):
            self._load(training)

    def fit_started(self) -> None:
        """Do nothing."""

    def iteration_done(self, iteration: Iteration) -> None:
        """Save if it is time; after the last batch of an epoch, `epoch_done` does."""
        self._unsaved, self._epoch = self._unsaved + 1, iteration.epoch
        training = self._running
        if self._every is None or self._unsaved < self._every or not training.are_models_equal:
            return
        if training.position is not None and training.position[0] == iteration.epoch:
            self._save()

    def epoch_done(self, epoch: int) -> None:  # noqa: ARG002 - the iterator knows it
        """Save."""
        self._save()

    def fit_ended(self) -> None:
        """Save what was trained in an epoch that was not finished, unless the training has failed."""
        training = self._running
        if self._unsaved and training.can_resume and not training.failed:
            self._save()
        self._training = None
        if self._unsaved and not training.failed and training.ranks.rank == 0:
            warnings.warn(
                f"epoch {self._epoch} was stopped after iterations that are not in {self._path}: "
                f"{self._unsaved:,}. These batches cannot be resumed within an epoch, so a program that is run again "
                "trains on all of it, by the model before it; RawIterator and PresavedIterator resume at any batch",
                UserWarning,
                stacklevel=2,
            )

    @property
    def _running(self) -> Training:
        if self._training is None:
            raise RuntimeError("Checkpoint is a listener of etl.fit, which has not begun")
        return self._training

    def _load(self, training: Training) -> None:
        state = _read(self._path, f"{self._path} is not a checkpoint")
        try:
            training.load_state_dict(state)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self._path} cannot be resumed from: {error}") from error
        try:
            training.ranks.check_order(training.iterator)
        except ValueError as error:
            raise ValueError(f"{self._path} is not the same file on all ranks: {error}") from error

    def _save(self) -> None:
        self._unsaved = 0
        training = self._running
        if training.ranks.rank == 0:
            _write(self._path.resolve(), training.state_dict(), self._is_first)
            self._is_first = False


def _write(path: Path, state: object, reads_back: bool) -> None:
    import torch

    with replacing(path, mode=usual_mode(path)) as file:
        torch.save(state, file)
        if reads_back:  # torch saves some values that it does not load
            file.flush()
            with os.fdopen(os.dup(file.fileno()), "rb") as written:
                written.seek(0)
                _read(written, f"{path}: what the optimizer or a listener has to save could not be loaded again")
    flush(path.parent)


def _read(file: Path | BinaryIO, wrong: str) -> dict[str, Any]:
    import torch

    try:
        state: object = torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # of zipfile, pickle and torch
        raise ValueError(f"{wrong}: {type(error).__name__}: {error}") from error
    if not isinstance(state, dict):
        raise ValueError(f"{wrong}: it holds a {type(state).__name__}")
    return state
