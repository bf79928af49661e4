"""`RequestQueue` hands requests out in time, and together if they are of one kind."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDoneError

import pytest

from etl.training.request_queue import QueueFullError, Request, RequestQueue

# Longer than any of these tests takes, even on a busy machine.
LONG_SECONDS = 60.0


def make_request(records: int = 1, kind: str = "image") -> Request:
    return Request((), records, kind, wants_tensors=False)


def make_queue(max_wait: float, answer_seconds: float) -> RequestQueue:
    queue = RequestQueue(batch_limit=4, queue_limit=10, max_wait=max_wait)
    queue.answer_seconds = answer_seconds
    return queue


def put(queue: RequestQueue, *requests: Request) -> None:
    for each in requests:
        queue.put(each, timeout=0)


def assert_waits(taken: Future[list[Request] | None]) -> None:
    with pytest.raises(NotDoneError):
        taken.result(0.1)


@pytest.mark.parametrize(
    ("max_wait", "answer_seconds"), [(LONG_SECONDS, 0.0), (0.0, LONG_SECONDS)], ids=["quick model", "no wait allowed"]
)
def test_requests_do_not_wait_for_a_quick_model_or_if_they_must_not(max_wait: float, answer_seconds: float) -> None:
    queue = make_queue(max_wait, answer_seconds)
    alone = make_request()
    put(queue, alone)
    assert queue.take() == [alone]


def test_requests_to_a_slow_model_wait_until_the_batch_is_full() -> None:
    queue = make_queue(LONG_SECONDS, 4 * LONG_SECONDS)
    first, second, third = (make_request(records) for records in (1, 2, 1))
    with ThreadPoolExecutor() as pool:
        taken = pool.submit(queue.take)
        put(queue, first, second)
        assert_waits(taken)
        put(queue, third)
        assert taken.result(LONG_SECONDS / 2) == [first, second, third]


def test_requests_that_give_up_leave_nothing_for_others_to_wake() -> None:
    queue = RequestQueue(batch_limit=4, queue_limit=1, max_wait=0.0)
    put(queue, make_request())
    for _ in range(3):
        with pytest.raises(QueueFullError):
            queue.put(make_request(), timeout=0.01)
    assert queue._has_room.waiting == 0
    assert queue._has_room.tokens.empty()


def test_requests_of_two_kinds_wait_for_one_worker_and_wake_two() -> None:
    queue = make_queue(max_wait=0.05, answer_seconds=LONG_SECONDS)
    image, text = make_request(kind="image"), make_request(kind="text")
    with ThreadPoolExecutor() as pool:
        taken = [pool.submit(queue.take) for _ in range(2)]
        put(queue, image, text)
        # The worker that wakes for one must wake the other, since each waits for whatever is due first.
        assert sorted(each.result(LONG_SECONDS)[0].kind for each in taken) == ["image", "text"]


def test_a_worker_that_leaves_with_a_batch_wakes_another_for_the_rest() -> None:
    queue = make_queue(LONG_SECONDS, 4 * LONG_SECONDS)
    small, full = make_request(1), make_request(4)
    with ThreadPoolExecutor() as pool:
        taken = [pool.submit(queue.take) for _ in range(2)]
        put(queue, small, full)  # of one kind, and together more than a batch
        assert sorted(len(each.result(LONG_SECONDS / 2) or ()) for each in taken) == [1, 1]


def test_a_queue_that_is_closed_gives_its_requests_away_at_once() -> None:
    queue = make_queue(LONG_SECONDS, 4 * LONG_SECONDS)
    last = make_request()
    with ThreadPoolExecutor() as pool:
        taken = pool.submit(queue.take)
        put(queue, last)
        assert_waits(taken)
        assert queue.close(answers_waiting=True) == []
        assert taken.result(LONG_SECONDS / 2) == [last]
    assert queue.take() is None
