"""`ParallelInference`: a model answers requests from any number of threads."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from etl.arguments import whole_number
from etl.training.backends import Backend, import_torch
from etl.training.backends import backend as find_backend
from etl.training.request_queue import Request, RequestQueue, closed_error
from presave import interrupts

if TYPE_CHECKING:
    from typing import Self

    import torch

MODES = ("batched", "sequential")
# Seconds that the end of a server waits for an answer.
ANSWER_PATIENCE_SECONDS = 10.0


class ParallelInference:
    """A server for predictions: each worker thread has a copy of the model, and requests are answered in batches.

    It is a context manager: on leaving, all requests that wait are answered.

    Parameters
    ----------
    model : torch.nn.Module
        The model. It is copied for each worker, in evaluation mode, and is itself left as it is. A single worker uses
        a model that cannot be copied itself: on the device, and in evaluation mode from then on.
    workers : int
        Threads that answer. They share the compute threads of the process: each has `torch.get_num_threads() //
        workers`, and at least one.
    mode : {"batched", "sequential"}
        Answer as many requests at once as fit into a batch; or each by itself.
    batch_limit : int
        The most records in a batch. A request that has more is answered alone.
    queue_limit : int
        The most requests that wait for a worker. See `submit` for what happens to more.
    max_wait_ms : float
        The longest that a request waits for others to share its batch, in milliseconds, while a worker is idle. It
        waits less if the model is quick: no longer than a quarter of the time that the last answer took.
    backend : Backend or str
        "auto", "cpu" or "cuda".

    Raises
    ------
    ValueError
        If an argument is invalid, or the model cannot be copied for several workers.
    RuntimeError
        If the backend is not available.

    Notes
    -----
    Requests are only batched if the shapes of their records and their dtypes are equal. In a batch, the sums in a
    matrix product may be rounded differently than for one record. A model that mixes records of a batch, even in
    evaluation mode, needs `mode="sequential"`.

    If a batch fails, its requests are answered one by one, so that only those that are wrong get an error.

    Source: ParallelInference and "Inference: One Model per Thread" in the Deeplearning4j documentation. There, a batch
    that is not full waits forever, and callers hang after a shutdown.

    Examples
    --------
        with etl.training.ParallelInference(model, workers=2) as server:
            probabilities = server.output(image[None])
    """

    def __init__(
        self,
        model: torch.nn.Module,
        workers: int = 2,
        mode: Literal["batched", "sequential"] = "batched",
        batch_limit: int = 32,
        queue_limit: int = 64,
        max_wait_ms: float = 5.0,
        backend: Backend | str = "auto",
    ) -> None:
        torch = import_torch()
        workers = whole_number("workers", workers, least=1)
        batch_limit = whole_number("batch_limit", batch_limit, least=1)
        queue_limit = whole_number("queue_limit", queue_limit, least=1)
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        if not 0 <= max_wait_ms < float("inf"):
            raise ValueError(f"max_wait_ms must be a finite number of at least 0, not {max_wait_ms!r}")
        chosen = find_backend(backend) if isinstance(backend, str) else backend
        alone = mode == "sequential"
        self._owner = os.getpid()
        self._queue = RequestQueue(1 if alone else batch_limit, queue_limit, 0.0 if alone else max_wait_ms / 1000)
        models = [each.to(chosen.device).eval() for each in _copies(model, workers)]
        threads = torch.get_num_threads()
        is_set: SimpleQueue[None] = SimpleQueue()
        self._workers = [
            interrupts.Worker(
                _work,
                (self._queue, each, chosen, max(1, threads // workers), is_set),
                name=f"ParallelInference-{number}",
            )
            for number, each in enumerate(models)
        ]
        self._end = interrupts.end_with(self, partial(_end, self._queue, self._workers))
        try:
            interrupts.start(self._workers)
            for _ in self._workers:
                is_set.get()
        finally:
            torch.set_num_threads(threads)  # what a worker sets is the default of new threads, too

    @property
    def waiting(self) -> int:
        """Requests that no worker has begun to answer."""
        return len(self._queue)

    def output(self, features: Any, timeout: float | None = None) -> Any:
        """Return the model's output for `features`. Parameters and errors are those of `submit`.

        An error of the model for these features is raised here.
        """
        return self.submit(features, timeout).result()

    def submit(self, features: Any, timeout: float | None = None) -> Future[Any]:
        """Queue a request, and return a future for the model's output.

        Parameters
        ----------
        features : array, tensor or tuple of them
            Inputs of the model, one argument each, on the CPU or on its device. The first axis counts records. They
            must not change until they are answered.
        timeout : float, optional
            Seconds to wait for a place if the queue is full; by default as long as it takes, and with 0 not at all.

        Returns
        -------
        Future
            Its result is the output, with a row for each record: in the structure that the model gives, of numpy arrays
            if the features are, otherwise of tensors on the CPU. A request that is cancelled before a worker has begun
            is not answered.

        Raises
        ------
        ValueError
            If the features have no records, or not all inputs have the same number.
        QueueFullError
            If there was no place in time.
        RuntimeError
            If the server is closed, or was made in another process.
        """
        if os.getpid() != self._owner:
            raise RuntimeError("the server's threads are in the process that made it; make a server in this one")
        request = _make_request(features)
        self._queue.put(request, timeout)
        return request.answer

    def close(self, answer_waiting: bool = True) -> None:
        """Take no more requests, and end the workers.

        If the model answers none for `ANSWER_PATIENCE_SECONDS`, or four times as long as it took before, requests that
        wait for it get a `RuntimeError`, and its thread is left, with a warning.

        Parameters
        ----------
        answer_waiting : bool
            Answer the requests that wait. Otherwise they get a `RuntimeError`, and only those are answered that a
            worker has begun.
        """
        if os.getpid() != self._owner:
            return
        for request in self._queue.close(answer_waiting):
            _refuse(request, closed_error())
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(answer_waiting=error is None)


def _copies(model: torch.nn.Module, count: int) -> list[torch.nn.Module]:
    """Return `count` copies of `model`; or `model` if one is needed and it cannot be copied."""
    try:
        return [copy.deepcopy(model) for _ in range(count)]
    except Exception as error:  # of any class: attributes of a model may be anything
        if count == 1:
            return [model]
        raise ValueError(
            f"{type(model).__name__} cannot be copied for each of {count} workers "
            f"({type(error).__name__}: {error}); use workers=1"
        ) from error


def _make_request(features: Any) -> Request:
    from etl.training.backends.tensors import as_tensor  # loads torch

    inputs = features if isinstance(features, tuple) else (features,)
    tensors = tuple(map(as_tensor, inputs))
    if not tensors or any(each.ndim == 0 for each in tensors):
        raise ValueError("features need a first axis that counts records: for one record, pass features[None]")
    counts = {len(each) for each in tensors}
    if len(counts) > 1 or counts == {0}:
        shapes = ", ".join(str(tuple(each.shape)) for each in tensors)
        raise ValueError(f"features need at least one record, and as many in each input, not shapes {shapes}")
    kind = tuple((each.dtype, each.shape[1:], each.device) for each in tensors)
    wants_tensors = any(isinstance(each, import_torch().Tensor) for each in inputs)
    return Request(tensors, counts.pop(), kind, wants_tensors)


def _work(
    queue: RequestQueue,
    model: torch.nn.Module,
    backend: Backend,
    compute_threads: int,
    is_set: SimpleQueue[None],
) -> None:
    try:
        torch = import_torch()
        torch.get_num_threads()  # a thread takes the default at its first use of torch, which would undo the next line
        torch.set_num_threads(compute_threads)
    finally:
        is_set.put(None)
    while (taken := queue.take()) is not None:
        requests = [each for each in taken if each.answer.set_running_or_notify_cancel()]
        if requests:
            began = time.perf_counter()
            queue.begun[threading.get_ident()] = requests
            _answer(model, backend, requests)
            del queue.begun[threading.get_ident()]
            queue.answer_seconds = time.perf_counter() - began
            queue.answered += 1
        del taken, requests  # features and answers are not kept while the next request is waited for


def _answer(model: torch.nn.Module, backend: Backend, requests: Sequence[Request]) -> None:
    """Answer `requests` at once; if that fails, one by one."""
    try:
        answers = _predict(model, backend, requests)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the caller must know, and the worker must live
        if len(requests) == 1:
            _refuse(requests[0], error)
            return
    else:
        for request, answer in zip(requests, answers, strict=True):
            with contextlib.suppress(InvalidStateError):  # refused meanwhile
                request.answer.set_result(answer)
        return
    for request in requests:
        _answer(model, backend, [request])


def _predict(model: torch.nn.Module, backend: Backend, requests: Sequence[Request]) -> list[Any]:
    """Return the model's output for each of `requests`, which are all of one kind."""
    torch = import_torch()
    from torch.utils._pytree import tree_flatten, tree_unflatten

    columns = zip(*(each.features for each in requests), strict=True)
    inputs = [(column[0] if len(column) == 1 else torch.cat(column)).to(backend.device) for column in columns]
    with torch.inference_mode():
        leaves, structure = tree_flatten(model(*inputs))
        leaves = [leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    if len(requests) > 1 and not all(isinstance(leaf, torch.Tensor) for leaf in leaves if leaf is not None):
        raise TypeError("which part of the output belongs to which request is unknown")  # each is answered alone then
    parts = [_split(leaf, requests) for leaf in leaves]
    return [tree_unflatten([part[number] for part in parts], structure) for number in range(len(requests))]


def _split(leaf: Any, requests: Sequence[Request]) -> list[Any]:
    """Return the part of a model's output that answers each request.

    That is a copy of its rows, since a view would keep the whole batch alive; or `leaf` itself if it is not a tensor.
    """
    torch = import_torch()
    if not isinstance(leaf, torch.Tensor):
        return [leaf] * len(requests)
    ends = list(itertools.accumulate(each.records for each in requests))
    if leaf.ndim == 0 or len(leaf) != ends[-1]:
        raise ValueError(
            f"the model returned an array of shape {tuple(leaf.shape)} for {ends[-1]} records; it must have a row for "
            "each record"
        )
    from etl.training.backends.tensors import as_array

    # numpy copies a row in 0.4 us, torch in 2.8.
    array = None if all(each.wants_tensors for each in requests) else as_array(leaf)
    return [
        leaf[end - each.records : end].clone()
        if each.wants_tensors or array is None
        else array[end - each.records : end].copy()
        for each, end in zip(requests, ends, strict=True)
    ]


def _refuse(request: Request, error: BaseException) -> None:
    """Let the answer be `error`, unless there is one."""
    with contextlib.suppress(InvalidStateError):
        # One that was cancelled is told so, too: `concurrent.futures.wait` waits for that.
        is_open = request.answer.cancelled() or not request.answer.done()
        if request.answer.running() or (is_open and request.answer.set_running_or_notify_cancel()):
            request.answer.set_exception(error)


def _end(queue: RequestQueue, workers: Sequence[interrupts.Worker]) -> None:
    queue.close(answers_waiting=True)
    if queue.is_given_up:
        return

    def patience() -> float:
        return max(ANSWER_PATIENCE_SECONDS, 4 * queue.answer_seconds)

    if interrupts.wait_while_busy(workers, patience, lambda: queue.answered):
        return
    begun = [each for requests in list(queue.begun.values()) for each in requests]
    refused = [*begun, *queue.close(answers_waiting=False)]
    for request in refused:
        _refuse(request, RuntimeError("the server is closed, and its model does not return"))
    queue.is_given_up = True  # before the warning, which may be an error
    shapes = ", ".join(str(tuple(each.shape)) for each in (begun[0].features if begun else ()))
    warnings.warn(
        f"the model has answered nothing for {patience():g} s, and not its features of shape {shapes}: the server is "
        f"closed, {len(refused)} requests get an error, and threads that wait for the model are left until it returns",
        RuntimeWarning,
        stacklevel=2,
    )
