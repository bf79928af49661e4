"""`ParallelInference` gives every caller the right answer or an error, soon, whatever the others do."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import numpy as np
import pytest
import torch

from etl.training import ParallelInference, QueueFullError, inference
from tests.forked_child import forked
from tests.programs import output_of, run_python

FEATURES, CLASSES = 4, 3
# Longer than any answer takes, even on a busy machine.
LONG_SECONDS = 60.0


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.Dropout(0.9), torch.nn.Linear(8, CLASSES))


def rows(count: int, start: int = 0) -> np.ndarray:
    """Return `count` records; record `i` has the value `start + i` everywhere."""
    return np.repeat(np.arange(start, start + count, dtype=np.float32)[:, None], FEATURES, axis=1)


class Doubles(torch.nn.Module):
    """Doubles its input, once `gate` is open; notes the shape of each batch, of all copies together."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Semaphore(0)
        self.shapes: list[tuple[int, ...]] = []

    def __deepcopy__(self, memo: Any) -> Doubles:
        return self

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.shapes.append(tuple(features.shape))
        self.began.release()
        assert self.gate.wait(LONG_SECONDS)
        if (features < 0).any():
            raise ArithmeticError("a negative number")
        return 2 * features


@pytest.fixture
def doubles() -> Iterator[Doubles]:
    """A model whose gate is open after the test, so that servers can be closed."""
    model = Doubles()
    yield model
    model.gate.set()


def held(server: ParallelInference, model: Doubles) -> Future[Any]:
    """Let the only worker begin a request, and hold it there."""
    model.gate.clear()
    first = server.submit(rows(1))
    assert model.began.acquire(timeout=LONG_SECONDS)
    return first


def serving_threads() -> int:
    return sum(thread.name.startswith("ParallelInference-") for thread in threading.enumerate())


@pytest.mark.parametrize("mode", ["batched", "sequential"])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_answers_are_those_of_the_model_whatever_batches_they_were_in(mode: Any, workers: int) -> None:
    model = make_model()
    features = torch.from_numpy(rows(40))
    with torch.no_grad():
        expected = model.eval()(features)
    with ParallelInference(model, workers, mode, batch_limit=8, queue_limit=100) as server:
        answers = [server.submit(features[start : start + 1 + start % 3]) for start in range(37)]
        for start, answer in enumerate(answers):
            torch.testing.assert_close(answer.result(LONG_SECONDS), expected[start : start + 1 + start % 3])


def test_answers_have_the_kind_of_the_features_and_the_structure_of_the_output() -> None:
    class Several(torch.nn.Module):
        def forward(self, one: torch.Tensor, other: torch.Tensor) -> dict[str, Any]:
            return {"sum": one + other, "parts": (one, [other]), "name": "several", "none": None}

    with ParallelInference(Several()) as server:
        answer = server.output((rows(2), rows(2, 10)))
        assert type(answer["sum"]) is np.ndarray
        np.testing.assert_array_equal(answer["sum"], rows(2) + rows(2, 10))
        np.testing.assert_array_equal(answer["parts"][1][0], rows(2, 10))
        assert (answer["name"], answer["none"]) == ("several", None)
        tensors = server.output((torch.ones(1, 2), torch.ones(1, 2)))
        assert torch.equal(tensors["sum"], torch.full((1, 2), 2.0))
        assert tensors["sum"].untyped_storage().nbytes() == 2 * 4
        assert not tensors["sum"].is_inference()


def test_what_is_no_tensor_is_not_given_to_several_requests(doubles: Doubles) -> None:
    class Arrays(torch.nn.Module):
        def forward(self, features: torch.Tensor) -> np.ndarray:
            return doubles(features).numpy()

    with ParallelInference(Arrays(), workers=1) as server:
        held(server, doubles)
        answers = [server.submit(rows(1, start)) for start in (1, 2, 3)]
        doubles.gate.set()
        for start, answer in zip((1, 2, 3), answers, strict=True):
            np.testing.assert_array_equal(answer.result(LONG_SECONDS), 2 * rows(1, start))


def test_the_model_itself_and_the_threads_of_the_caller_stay_as_they_are() -> None:
    class Threads(torch.nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return torch.full((len(features), 1), torch.get_num_threads())

    model, threads = make_model().train(), torch.get_num_threads()
    weights = [each.clone() for each in model.parameters()]
    with ParallelInference(model) as server, ParallelInference(Threads(), workers=2) as counting:
        server.output(rows(3))
        assert counting.output(rows(1)).item() == max(1, threads // 2)
        assert torch.get_num_threads() == threads
    assert model.training
    assert all(map(torch.equal, model.parameters(), weights))


def test_one_worker_serves_a_model_that_cannot_be_copied_and_several_say_what_to_do() -> None:
    model = make_model().train()
    model.lock = threading.Lock()
    expected = model.eval()(torch.from_numpy(rows(3))).detach()
    with ParallelInference(model.train(), workers=1) as server:
        torch.testing.assert_close(server.output(torch.from_numpy(rows(3))), expected)
    with pytest.raises(ValueError, match=r"cannot be copied for each of 2 workers .*; use workers=1"):
        ParallelInference(model, workers=2)


def test_requests_that_wait_are_answered_together_up_to_the_limit(doubles: Doubles) -> None:
    with ParallelInference(doubles, workers=1, batch_limit=8, max_wait_ms=0) as server:
        held(server, doubles)
        waiting = [server.submit(rows(3, number)) for number in range(5)]
        too_large = server.submit(rows(20))
        assert server.waiting == 6
        doubles.gate.set()
        for number, answer in enumerate(waiting):
            np.testing.assert_array_equal(answer.result(LONG_SECONDS), 2 * rows(3, number))
        assert too_large.result(LONG_SECONDS).shape == (20, FEATURES)
    assert [shape[0] for shape in doubles.shapes] == [1, 6, 6, 3, 20]


def test_in_sequential_mode_each_request_is_answered_by_itself(doubles: Doubles) -> None:
    with ParallelInference(doubles, workers=1, mode="sequential") as server:
        held(server, doubles)
        waiting = [server.submit(rows(2)) for _ in range(4)]
        doubles.gate.set()
        wait(waiting, LONG_SECONDS)
    assert [shape[0] for shape in doubles.shapes] == [1, 2, 2, 2, 2]


def test_a_batch_that_is_not_full_waits_no_longer_than_allowed(doubles: Doubles) -> None:
    with ParallelInference(doubles, workers=1, batch_limit=1000, max_wait_ms=200) as server:
        slow = held(server, doubles)
        time.sleep(0.8)  # requests wait for a quarter of that
        doubles.gate.set()
        slow.result(LONG_SECONDS)
        started = time.monotonic()
        together = [server.submit(rows(1)) for _ in range(3)]
        wait(together, LONG_SECONDS)
        assert time.monotonic() - started >= 0.2
    assert [shape[0] for shape in doubles.shapes] == [1, 3]


def test_requests_to_a_quick_model_do_not_wait_for_a_batch_that_never_fills() -> None:
    with ParallelInference(make_model(), batch_limit=1000, max_wait_ms=1e9) as server:
        for number in range(20):
            assert server.submit(rows(1, number)).result(LONG_SECONDS).shape == (1, CLASSES)


def test_records_of_other_shapes_and_dtypes_are_answered_apart(doubles: Doubles) -> None:
    requests = [rows(1), rows(2)[:, :2], rows(1).astype(np.float64), rows(3)[:, :2], torch.from_numpy(rows(1))]
    with ParallelInference(doubles, workers=1, max_wait_ms=0) as server:
        held(server, doubles)
        waiting = [server.submit(each) for each in requests]
        doubles.gate.set()
        for request, answer in zip(requests, waiting, strict=True):
            torch.testing.assert_close(torch.as_tensor(answer.result(LONG_SECONDS)), torch.as_tensor(2 * request))
    assert sorted(doubles.shapes[1:]) == [(1, FEATURES), (2, FEATURES), (5, 2)]


def test_an_error_in_one_request_fails_that_one_alone(doubles: Doubles) -> None:
    with ParallelInference(doubles, workers=1) as server:
        held(server, doubles)
        waiting = [server.submit(rows(1, number)) for number in (1, 2, -9, 3)]
        doubles.gate.set()
        assert isinstance(waiting.pop(2).exception(LONG_SECONDS), ArithmeticError)
        assert [answer.result(LONG_SECONDS)[0, 0] for answer in waiting] == [2, 4, 6]
        with pytest.raises(ArithmeticError, match="a negative number"):
            server.output(rows(1, -1))
        assert server.output(rows(1, 5))[0, 0] == 10


def test_a_model_that_would_end_the_interpreter_fails_only_its_request() -> None:
    class Exits(torch.nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            if features[0, 0] == 0:
                sys.exit("no more")
            return features

    with ParallelInference(Exits(), workers=1) as server:
        with pytest.raises(SystemExit, match="no more"):
            server.output(rows(1))
        assert server.output(rows(1, 1))[0, 0] == 1


@pytest.mark.parametrize("output", [lambda features: features.sum(), lambda features: features[:1]])
def test_an_output_without_a_row_for_each_record_is_an_error(output: Any) -> None:
    class Reduces(torch.nn.Module):
        def forward(self, features: torch.Tensor) -> Any:
            return output(features)

    with (
        ParallelInference(Reduces()) as server,
        pytest.raises(ValueError, match="for 2 records; it must have a row"),
    ):
        server.output(rows(2))


def test_a_full_queue_is_an_error_in_time_or_a_wait(doubles: Doubles) -> None:
    with ParallelInference(doubles, workers=1, queue_limit=2) as server:
        held(server, doubles)
        waiting = [server.submit(rows(1)) for _ in range(2)]
        for timeout in (0, 0.05):
            with pytest.raises(QueueFullError, match="2 requests wait already"):
                server.submit(rows(1), timeout)
        answers: list[Any] = []
        later = threading.Thread(target=lambda: answers.append(server.output(rows(1, 7))))
        later.start()
        later.join(0.1)
        assert later.is_alive()
        doubles.gate.set()
        later.join(LONG_SECONDS)
        assert answers[0][0, 0] == 14
        assert wait(waiting, LONG_SECONDS).not_done == set()


def test_closing_answers_all_that_wait(doubles: Doubles) -> None:
    server = ParallelInference(doubles, workers=1, batch_limit=2)
    first = held(server, doubles)
    waiting = [server.submit(rows(1, number)) for number in range(5)]
    threading.Timer(0.1, doubles.gate.set).start()
    server.close()
    assert first.done()
    assert [answer.result(0)[0, 0] for answer in waiting] == [0, 2, 4, 6, 8]
    with pytest.raises(RuntimeError, match="the server is closed"):
        server.submit(rows(1))
    server.close()


def test_closing_without_answers_fails_all_that_wait_and_those_that_wait_for_a_place(doubles: Doubles) -> None:
    server = ParallelInference(doubles, workers=1, queue_limit=2)
    first = held(server, doubles)
    waiting = [server.submit(rows(1)) for _ in range(2)]
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            server.output(rows(1))
        except RuntimeError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join(0.1)
    threading.Timer(0.1, doubles.gate.set).start()
    server.close(answer_waiting=False)
    asking.join(LONG_SECONDS)
    assert first.result(0)[0, 0] == 0
    for error in (*errors, *(answer.exception(0) for answer in waiting)):
        assert str(error) == "the server is closed: it takes no more requests"
    assert len(errors) == 1


def test_a_request_that_is_cancelled_in_time_is_not_answered(doubles: Doubles) -> None:
    with ParallelInference(doubles, workers=1, max_wait_ms=0) as server:
        first = held(server, doubles)
        cancelled, kept = server.submit(rows(5)), server.submit(rows(2))
        assert cancelled.cancel()
        assert not first.cancel()
        doubles.gate.set()
        assert kept.result(LONG_SECONDS).shape == (2, FEATURES)
        with pytest.raises(CancelledError):
            cancelled.result(0)
    assert [shape[0] for shape in doubles.shapes] == [1, 2]


def test_a_cancelled_request_is_waited_for_no_longer_once_the_server_is_closed(doubles: Doubles) -> None:
    server = ParallelInference(doubles, workers=1)
    held(server, doubles)
    cancelled = server.submit(rows(1))
    assert cancelled.cancel()
    threading.Timer(0.1, doubles.gate.set).start()
    server.close(answer_waiting=False)
    assert wait([cancelled], LONG_SECONDS).done == {cancelled}


def test_an_error_in_the_block_does_not_wait_for_answers(doubles: Doubles) -> None:
    asked: list[Future[Any]] = []

    def fail() -> None:
        with ParallelInference(doubles, workers=1) as server:
            held(server, doubles)
            asked.append(server.submit(rows(1)))
            threading.Timer(0.1, doubles.gate.set).start()
            raise KeyError("of the caller")

    with pytest.raises(KeyError):
        fail()
    assert isinstance(asked[0].exception(0), RuntimeError)


def test_closing_leaves_a_model_that_does_not_return_once(doubles: Doubles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "ANSWER_PATIENCE_SECONDS", 0.2)
    before = serving_threads()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with ParallelInference(doubles, workers=1) as server:
            asked = [held(server, doubles), server.submit(rows(2))]
            server.close()
        server.close()
    assert [each.category for each in warned] == [RuntimeWarning]
    said = "not its features of shape (1, 4): the server is closed, 2 requests get an error"
    assert said in str(warned[0].message)
    for answer in asked:
        assert str(answer.exception(0)) == "the server is closed, and its model does not return"
    doubles.gate.set()
    for _ in range(1000):
        if serving_threads() == before:
            break
        time.sleep(0.01)
    assert serving_threads() == before


HANGING = """
import threading
import numpy as np, torch, etl
from etl.training import inference

class Hanging(torch.nn.Linear):
    def forward(self, features):
        threading.Event().wait()

inference.ANSWER_PATIENCE_SECONDS = 0.2
server = etl.training.ParallelInference(Hanging(2, 1), workers=1)
server.submit(np.zeros((1, 2), np.float32)).add_done_callback(lambda answer: print(answer.exception(0)))
"""


@pytest.mark.slow
def test_the_interpreter_exits_with_a_server_whose_model_does_not_return() -> None:
    done = run_python("-c", HANGING)
    assert (done.returncode, done.stdout) == (0, "the server is closed, and its model does not return\n")
    assert "the model has answered nothing for 0.2 s" in done.stderr


@pytest.mark.slow
def test_a_server_that_is_forgotten_ends_its_threads() -> None:
    before = serving_threads()
    server = ParallelInference(make_model(), workers=3)
    server.output(rows(1))
    assert serving_threads() == before + 3
    del server
    gc.collect()
    assert serving_threads() == before


FORGETFUL = """
import time
import numpy as np, torch, etl

class Slow(torch.nn.Linear):
    def forward(self, features):
        time.sleep(0.5)
        return super().forward(features)

server = etl.training.ParallelInference(Slow(2, 1), workers=1)
for _ in range(2):  # the second waits in the queue when the program ends
    server.submit(np.zeros((1, 2), np.float32)).add_done_callback(lambda answer: print(answer.result().shape))
"""


@pytest.mark.slow
def test_the_interpreter_exits_with_a_server_that_is_open_and_answers_first() -> None:
    assert output_of("-c", FORGETFUL) == "(1, 1)\n(1, 1)\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_is_told_that_the_threads_are_not_there() -> None:
    with ParallelInference(make_model()) as server:

        def ask() -> None:
            with pytest.raises(RuntimeError, match="in the process that made it"):
                server.output(rows(1))
            server.close()

        assert forked(ask) == 0
        assert server.output(rows(1)).shape == (1, CLASSES)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"workers": 0}, "workers must be a whole number of at least 1"),
        ({"batch_limit": 0}, "batch_limit must be"),
        ({"queue_limit": 1.5}, "queue_limit must be"),
        ({"mode": "inplace"}, "mode must be one of batched, sequential, not 'inplace'"),
        ({"max_wait_ms": -1}, "max_wait_ms must be a finite number"),
        ({"max_wait_ms": float("nan")}, "max_wait_ms must be a finite number"),
    ],
)
def test_invalid_arguments_are_refused(wrong: dict[str, Any], said: str) -> None:
    threads = serving_threads()
    with pytest.raises(ValueError, match=said):
        ParallelInference(make_model(), **wrong)
    assert serving_threads() == threads


@pytest.mark.parametrize(
    ("features", "said"),
    [
        (np.float32(1.0), "need a first axis that counts records"),
        ((), "need a first axis"),
        (rows(0), "at least one record"),
        ((rows(2), rows(3)), r"as many in each input, not shapes \(2, 4\), \(3, 4\)"),
    ],
)
def test_features_without_records_are_refused_at_once(features: Any, said: str) -> None:
    with ParallelInference(make_model()) as server, pytest.raises(ValueError, match=said):
        server.submit(features)
