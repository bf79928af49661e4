"""An examination: all checks on a machine or a training, with the most useful finding first. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from etl.arguments import whole_number
from etl.doctor.check import STEP_WITH_RANKS, Case, Check, Finding, Severity
from etl.doctor.checks import CHECKS, RANK_CHECKS
from etl.doctor.machine import Machine, look_at_machine
from etl.doctor.memory_need import MemoryNeed
from etl.doctor.observation import observe_training
from etl.doctor.rank import Rank, find_rank
from etl.doctor.setup import Setup, StepSetup, make_setup
from etl.doctor.steps import try_remedy
from etl.iterators.ahead import AheadIterator
from etl.measuring.noise import ThrottleWatch
from etl.measuring.structure import record_count
from etl.training.backends import Backend
from etl.training.backends import backend as find_backend
from etl.training.ranks import own_device_name

if TYPE_CHECKING:
    import torch

    from etl.training.step import Loss

SCHEMA_VERSION = 1
# Called with the current activity, the number of checks that are done, and the number of all checks.
ShowProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Examination:
    """The findings of all checks.

    Attributes
    ----------
    machine : Machine
        The machine.
    findings : list of Finding
        One finding per check: first serious ones with an unknown saving, then those with remedies in the order of what
        they save, largest saving first, then those without a remedy.
    seconds_per_batch : float or None
        Median seconds of a batch; None if no training was examined.
    batches_per_epoch : int or None
        Batches of an epoch; None if no training was examined, or if the iterator has no length.
    rank : Rank or None
        The rank that was examined; None if this process trains alone.
    memory : MemoryNeed or None
        Memory of the training; None if none was examined.
    """

    machine: Machine
    findings: list[Finding]
    seconds_per_batch: float | None = None
    batches_per_epoch: int | None = None
    rank: Rank | None = None
    memory: MemoryNeed | None = None

    @property
    def is_serious(self) -> bool:
        """True if a finding is serious."""
        return any(each.severity is Severity.SERIOUS for each in self.findings)

    @property
    def first(self) -> Finding | None:
        """The finding to act on first; None if nothing needs a remedy."""
        return next((each for each in self.findings if each.remedy is not None), None)

    def as_dict(self) -> dict[str, Any]:
        """Return the examination as JSON values."""
        return {
            "schema_version": SCHEMA_VERSION,
            "machine": self.machine.as_dict(),
            "rank": None if self.rank is None else asdict(self.rank),
            "seconds_per_batch": self.seconds_per_batch,
            "batches_per_epoch": self.batches_per_epoch,
            "memory": None
            if self.memory is None
            else {**asdict(self.memory), "allow_nbytes": self.memory.allow_nbytes},
            "findings": [each.as_dict() for each in self.findings],
        }

    def __str__(self) -> str:
        lines = [] if self.rank is None else [f"examined: {self.rank}"]
        for each in self.findings:
            if each.remedy is not None:
                saves = "" if each.saving is None else f"; this {each.saving}"
                lines.append(
                    f"{each.severity.value}: {each.title}: {each.found} ({each.evidence}). {each.remedy}{saves}."
                )
        if self.first is None:
            lines.append("nothing was found that slows training down")
        if self.memory is not None:
            lines.append(f"memory: {self.memory}")
        return "\n".join(lines)


def examine(
    model: torch.nn.Module | None = None,
    iterator: Iterable[Any] | None = None,
    *,
    step: Callable[[Any], Any] | None = None,
    backend: Backend | str = "auto",
    loss: Loss | None = None,
    batches: int = 20,
    try_remedies: bool = False,
    progress: ShowProgress | None = None,
) -> Examination:
    """Look for what makes training slow: on this machine and, if there is an iterator, in training from it.

    Call it between epochs. It trains a copy of `model` on a few batches, or calls `step` with them. Afterwards it
    resets the iterator to the position that it had before, if the iterator has `state_dict` and `load_state_dict`. An
    `AsyncIterator` or `DeviceIterator` over a loader without a position is reset to the start of its epoch.

    A step is called as it is: whatever it trains has changed afterwards. What only a model can show is not looked at:
    who calls its modules, its data type, its size, and operations that leave the device.

    On one of several ranks, give it this rank's part of the batches. A copy of a model is trained by this rank alone:
    its times include no wait for other ranks, and they need not be examined. A step that averages with other ranks must
    be examined on all of them at once, with equal `batches`. torch's profiler then measures the waits under gloo, which
    do not count as compute or loading, and nothing is done that takes a number of steps that depends on time.

    Parameters
    ----------
    model : torch.nn.Module, optional
        The model; it is copied, not changed.
    iterator : iterable of batches, optional
        An iterator of etl, or any other iterable that `etl.fit` accepts, such as a DataLoader. With a step, its
        batches may have any structure.
    step : callable, optional
        `step(batch)`, a training step of your own instead of `model`, `backend` and `loss`. It gets each batch as
        `iterator` yields it, some of them several times, and must leave them as they are. If batches have less than 32
        records, it also gets some in which a batch is repeated, up to 128 records.
    backend : Backend or str
        Where to train. If "auto" fails, the CPU is used and a finding says so.
    loss : callable, optional
        `loss(output, labels)`. The default is cross entropy for integer labels and the mean squared error for others.
    batches : int
        Batches to measure, at least 2.
    try_remedies : bool
        Measure each remedy that can be applied in this process. Each takes about five seconds.
    progress : callable, optional
        Called with the current activity, the number of checks that are done, and the number of all checks.

    Raises
    ------
    ValueError
        If other arguments are given than a model and an iterator, a step and an iterator, or none of them; the model
        cannot be copied; or the batches cannot be trained on. Errors of the iterator and the step are raised unchanged.

    Examples
    --------
    >>> train = etl.SyntheticIterator((8,), classes=4, batches=10)
    >>> print(etl.doctor.examine(etl.models.create("mlp", (8,), 4), train))  # doctest: +SKIP
    """
    whole_number("batches", batches, least=2)
    if (model is None and step is None) is not (iterator is None):
        raise ValueError("give a model and an iterator, or a step and an iterator, or none of them")
    if step is not None and not (model is None and loss is None and backend == "auto"):
        raise ValueError("a step has a model, a loss and a device of its own: give no model, loss or backend with it")
    show = progress or (lambda *_: None)
    show("the machine", 0, len(CHECKS))
    case = Case(look_at_machine(), rank=find_rank())
    if iterator is None:
        return Examination(case.machine, _ordered(_look(CHECKS, case, show)), rank=case.rank)
    checks = CHECKS if case.rank is None else (*CHECKS, *RANK_CHECKS)
    reset = _reset_to_here(iterator)
    try:
        show("training", 0, len(checks))
        setup: Setup
        if step is not None:
            setup = StepSetup(iterator, step)
        elif model is not None:
            setup = make_setup(model, iterator, backend_or_cpu(backend) if isinstance(backend, str) else backend, loss)
        with ThrottleWatch() as quota:
            observation = observe_training(model, setup, batches, is_rank=case.rank is not None)
        machine = replace(case.machine, throttled=quota.throttled)
        case = replace(case, machine=machine, setup=setup, observation=observation)
        findings = _look(checks, case, show)
        if try_remedies:
            findings = [
                _try(check, finding, case, checks, show) for check, finding in zip(checks, findings, strict=True)
            ]
    finally:
        reset()
    return Examination(
        case.machine,
        _ordered(findings),
        observation.times.typical,
        setup.batches_per_epoch,
        case.rank,
        observation.memory,
    )


def backend_or_cpu(name: str) -> Backend:
    """Return this rank's backend called `name`; or the CPU if "auto" fails, which a check then reports."""
    try:
        return find_backend(own_device_name(name))
    except RuntimeError:
        if name != "auto":
            raise
        return find_backend("cpu")


def _reset_to_here(iterator: Any) -> Callable[[], object]:
    """Return a function that resets `iterator` to its current position, or epoch if that is all it knows."""
    if hasattr(iterator, "load_state_dict") and getattr(iterator, "can_resume", True):
        with suppress(AttributeError, KeyError, NotImplementedError, TypeError):  # a wrapper of what has no state
            return partial(iterator.load_state_dict, iterator.state_dict())
    if isinstance(iterator, AheadIterator):
        return partial(iterator.set_epoch, iterator.epoch)
    return lambda: None


def _look(checks: Sequence[Check], case: Case, show: ShowProgress) -> list[Finding]:
    findings = []
    for number, check in enumerate(checks):
        show(check.title, number, len(checks))
        findings.append(check.look(case))
    return findings


def _try(check: Check, finding: Finding, case: Case, checks: Sequence[Check], show: ShowProgress) -> Finding:
    """Return `finding` with the measured saving of its remedy, or with the reason why this could not be measured."""
    if finding.remedy is None or case.setup is None or case.observation is None:
        return finding
    if case.waits_for_ranks:
        return replace(finding, trial_failed=STEP_WITH_RANKS)
    show(f"trying: {finding.remedy}", checks.index(check), len(checks))
    try:
        trial = check.measure(case)
        changed = check.apply(case.setup, case) if trial is None else None
        if changed is not None:
            trial = try_remedy(case.setup, changed, record_count(case.observation.batch))
    except Exception as error:  # noqa: BLE001 - without the remedy, this training has just run
        return replace(finding, trial_failed=f"{type(error).__name__}: {error}")
    if trial is None:
        return replace(finding, trial_failed="it cannot be applied in this process")
    batches = case.batches_per_epoch
    if changed is None or batches is None or finding.is_suggestion:
        return replace(finding, trial=trial, saves_seconds=None)
    # No more than there is: the trial may have run at another speed than the epoch.
    saves_per_batch = min(trial.without_seconds - trial.with_seconds, case.observation.times.typical)
    return replace(finding, trial=trial, saves_seconds=saves_per_batch * batches)


def _ordered(findings: list[Finding]) -> list[Finding]:
    """Return `findings` in the order of `Examination.findings`."""

    def key(finding: Finding) -> tuple[bool, float, int]:
        unknown = math.inf if finding.severity is Severity.SERIOUS else 0.0
        saves = unknown if finding.saves_seconds is None else finding.saves_seconds
        return finding.remedy is None, -saves, finding.severity.place

    return sorted(findings, key=key)
