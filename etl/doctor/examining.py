"""The thirteen checks, on a machine or on a training. Loads torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from etl.arguments import whole_number
from etl.doctor.check import Case, Check
from etl.doctor.checks import CHECKS
from etl.doctor.examination import Examination, order
from etl.doctor.finding import Finding
from etl.doctor.machine import look_at_machine
from etl.doctor.seen import watch_training
from etl.doctor.setup import Setup, make_setup
from etl.doctor.trial import try_remedy
from etl.training.backends import Backend
from etl.training.backends import backend as find_backend

if TYPE_CHECKING:
    import torch

    from etl.training.fit import Loss

# Told what is done now, how many things are done, and how many there are.
Progress = Callable[[str, int, int], None]


def examine(
    model: torch.nn.Module | None = None,
    iterator: Iterable[Any] | None = None,
    *,
    backend: Backend | str = "auto",
    loss: Loss | None = None,
    batches: int = 20,
    try_remedies: bool = False,
    progress: Progress | None = None,
) -> Examination:
    """Look for what makes training slow: on this machine, and in `model` trained from `iterator`, where given.

    `iterator` is one of etl, or anything that yields batches or pairs of features and labels, such as a DataLoader; so
    many `batches` of it are trained on, with a copy of `model`, and it stands afterwards where it stood before if it
    can be told to (`state_dict`). Call it between epochs. `loss(output, labels)` is cross entropy for whole numbers and
    the mean squared error for others, if None. With `try_remedies` each remedy that can be applied in this process is
    measured, which takes about five seconds each.

    Raises `ValueError` for one of the two without the other and for what cannot be trained, and what loading raises.
    """
    whole_number("batches", batches, least=2)
    if (model is None) is not (iterator is None):
        raise ValueError("give a model and an iterator, or neither of them")
    tell = progress or _no_progress
    tell("the machine", 0, len(CHECKS))
    case = Case(look_at_machine())
    if model is None or iterator is None:
        findings = [_look(check, case, number, tell) for number, check in enumerate(CHECKS)]
        return Examination(case.machine, order(findings), None, None)
    state = iterator.state_dict() if hasattr(iterator, "load_state_dict") else None  # type: ignore[attr-defined]
    try:
        tell("training", 0, len(CHECKS))
        setup = make_setup(model, iterator, backend_to_look_at(backend) if isinstance(backend, str) else backend, loss)
        case = replace(case, setup=setup, seen=watch_training(model, setup, batches))
        findings = [_look(check, case, number, tell) for number, check in enumerate(CHECKS)]
        if try_remedies:
            findings = [_tried(check, finding, case, tell) for check, finding in zip(CHECKS, findings, strict=True)]
    finally:
        if state is not None:
            iterator.load_state_dict(state)  # type: ignore[attr-defined]
    typical = None if case.seen is None else case.seen.times.typical
    return Examination(case.machine, order(findings), typical, setup.batches_per_epoch)


def backend_to_look_at(name: str) -> Backend:
    """The backend; where "auto" fails the first check says so, and the CPU is looked at."""
    try:
        return find_backend(name)
    except RuntimeError:
        if name != "auto":
            raise
        return find_backend("cpu")


def _look(check: Check, case: Case, number: int, tell: Progress) -> Finding:
    tell(check.title, number, len(CHECKS))
    return check.look(case)


def _tried(check: Check, finding: Finding, case: Case, tell: Progress) -> Finding:
    """`finding` with what its remedy saves, measured, or why that could not be."""
    if finding.remedy is None or case.setup is None or case.seen is None:
        return finding
    tell(f"trying: {finding.remedy}", CHECKS.index(check), len(CHECKS))
    try:
        changed: Setup | None = check.apply(case.setup, case)
        if changed is None:
            return replace(finding, trial_failed="it cannot be applied in this process")
        trial = try_remedy(case.setup, changed, len(case.seen.batch))
    except Exception as error:  # noqa: BLE001 - the remedy is at fault, not what is examined
        return replace(finding, trial_failed=f"{type(error).__name__}: {error}")
    batches = case.batches_per_epoch
    saves = None if batches is None else (trial.without_seconds - trial.with_seconds) * batches
    return replace(finding, trial=trial, saves_seconds=saves)


def _no_progress(what: str, done: int, total: int) -> None:
    pass
