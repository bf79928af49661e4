"""Steps 6 and 10: do several threads call the model, and do tensors leave its device?"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from etl.doctor.check import Case, Check, Finding, Severity, Trial
from etl.doctor.steps import take_turns
from etl.training.backends.tensors import as_tensor
from etl.training.inference import ANSWER_PATIENCE_SECONDS, ParallelInference
from presave import interrupts

SERVING_SECONDS = 0.5


class SharedModel(Check):
    """A check that only one thread calls each module of the model."""

    name = "sharing"
    title = "One model used from several threads"
    why = (
        "a module keeps state while it runs (gradients, running means, hooks): calls from several threads mix up this "
        "state, or wait for each other"
    )

    def look(self, case: Case) -> Finding:
        if case.observation is None or case.observation.trace is None:
            return self.not_looked_at(case.unknown_model)
        callers = case.observation.trace.callers
        shared = {name: len(threads) for name, threads in callers.items() if len(threads) > 1}
        evidence = (
            f"a hook on each of the {len(callers)} modules that were called, during {case.observation.count} batches "
            "of training"
        )
        if not shared:
            return self.fine("one thread calls the model", evidence)
        name, threads = max(shared.items(), key=lambda each: each[1])
        remedy = "give each thread its own model (copy.deepcopy), or let one thread compute for all of them"
        clients = case.observation.trace.predicting & callers[name]
        if clients:
            case.notes[self.name] = len(clients)
            evidence += (
                "; gradients are off in some of these threads, as for predictions, for which the guide's step 6 names "
                '"one model per thread (as this avoids locks)", or "ParallelInference"'
            )
            remedy = (
                "let etl.training.ParallelInference(model) answer these threads: each of its workers has its own copy"
            )
        return self.wrong(
            Severity.SERIOUS,
            f"{threads} threads call {f'module {name}' if name else 'the model'}",
            evidence,
            remedy,
        )

    def measure(self, case: Case) -> Trial | None:
        """Let as many threads as were seen predict with one copy of the model, and in turns with `ParallelInference`.

        Nothing is trained meanwhile. None if `look` saw none, so that its remedy is another one.
        """
        setup, observation = case.of_model, case.observation
        if setup is None or observation is None or observation.trace is None:
            return None
        trace, clients = observation.trace, case.notes.get(self.name, 0)
        if not clients or not trace.predicted_records:
            return None
        features = observation.batch.features
        inputs = tuple(
            as_tensor(each)[: trace.predicted_records]
            for each in (features if isinstance(features, tuple) else (features,))
        )
        shared = copy.deepcopy(setup.model).eval()

        def predict() -> None:
            with torch.no_grad():
                tree_map_only(torch.Tensor, torch.Tensor.cpu, shared(*(each.to(setup.device) for each in inputs)))

        with ExitStack() as stack:
            server = stack.enter_context(ParallelInference(setup.model, backend=setup.backend))
            ways = (predict, lambda: server.output(inputs))
            return take_turns(lambda turn: _seconds_an_answer(ways[turn], clients), "an answer")


class Fallback(Check):
    """A search for operations that move tensors to another device or out of torch during the forward pass."""

    name = "fallback"
    title = "Operations that leave the device"
    why = "the device is idle during the copies to the host and back"

    def look(self, case: Case) -> Finding:
        if case.observation is None or case.observation.trace is None:
            return self.not_looked_at(case.unknown_model)
        departures = case.observation.trace.departures
        if not departures:
            return self.fine("all operations of the model stay on its device", "every call of torch in two batches")
        times = ", ".join(f"{name} ({count:g} a batch)" for name, count in departures.items())
        is_device = case.observation.device.type != "cpu"
        return self.wrong(
            Severity.SERIOUS if is_device else Severity.WARNING,
            f"tensors leave {'the device' if is_device else 'torch'} during the forward pass",
            f"{times}, seen in two batches",
            "replace them with torch's own operations, on the device that holds the tensors",
        )


def _seconds_an_answer(answer: Callable[[], Any], clients: int) -> float:
    """Return the seconds of an answer while threads ask for them one after the other, all at the same time."""
    counts = [0] * clients
    errors: list[BaseException] = []
    started = time.perf_counter()

    def ask(number: int) -> None:
        try:
            while not counts[number] or time.perf_counter() - started < SERVING_SECONDS:
                answer()
                counts[number] += 1
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [interrupts.Worker(ask, (number,), name=f"serving-{number}") for number in range(clients)]
    interrupts.start(threads)
    if not interrupts.wait_while_busy(threads, lambda: ANSWER_PATIENCE_SECONDS, lambda: sum(counts)):
        raise TimeoutError(
            f"the model has not answered any of {clients} threads for {ANSWER_PATIENCE_SECONDS:g} s; those that wait "
            "for it are left"
        )
    if errors:
        raise errors[0]
    return (time.perf_counter() - started) / sum(counts)
