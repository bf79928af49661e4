"""Compare ways of serving predictions to many threads: `python -m benchmarks.serving`.

The clients are threads of this process, as in a web server, and each asks for one record at a time. Throughput is that
of clients that ask again as soon as they are answered. Latency is measured at given rates of arrival, from the moment
when a request was due: one that waits for a free client has waited, too.

All servers take turns in one process, in balanced orders. Each has all compute threads of the process to share out.
"""

from __future__ import annotations

import contextlib
import copy
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

import etl
from benchmarks.cells import chosen_profile
from benchmarks.journal import Kind, read_results
from benchmarks.measuring.rounds import Rounds
from benchmarks.measuring.statistics import MIN_ROUNDS, Interval, ratio_intervals
from benchmarks.measuring.values import JsonValues
from benchmarks.public_names import find_public
from benchmarks.studies.study import (
    FOLDER,
    Plan,
    as_markdown,
    describe_ratio,
    print_lines,
    run_study,
    study_parser,
)
from benchmarks.suite import Suite, as_samples, attributes, explained

if TYPE_CHECKING:
    import torch

# Shape of a record. The perceptron answers in a few hundredths of a millisecond, the convolutions in some milliseconds.
SHAPES = {"mlp": (1, 28, 28), "lenet": (1, 28, 28), "residual": (3, 64, 64)}
CLASSES = 10
# Different records, so that a wrong answer would be seen.
RECORDS = 64
# Arrivals per second, as shares of what one model behind a lock answers at most.
SHARES = (0.25, 0.5, 0.9, 1.5)
HALF = 0.5
PROFILE = chosen_profile()
MEASURING_TIMEOUT_SECONDS = 3600
# The server that others are compared with.
REFERENCE = "lock"

Answer = Callable[[np.ndarray], np.ndarray]
# Makes what a client thread calls; it is called in that thread.
Connect = Callable[[], Answer]


@dataclass(frozen=True)
class Resources:
    """Resources of a server: compute threads, and threads of `etl.training.ParallelInference`."""

    threads: int
    workers: int


def predict(model: torch.nn.Module, features: np.ndarray) -> np.ndarray:
    """Return the model's output as an array."""
    import torch

    with torch.inference_mode():
        output: np.ndarray = model(torch.from_numpy(features)).numpy()
    return output


def use_compute_threads(count: int) -> None:
    """Let the calling thread compute with `count` threads of torch."""
    import torch

    torch.get_num_threads()  # a thread takes the default at its first use of torch, which would undo the next line
    torch.set_num_threads(count)


@contextlib.contextmanager
def lock(model: torch.nn.Module, allowed: Resources) -> Iterator[Connect]:
    """Serve with one model that a lock protects, and all compute threads."""
    turn = threading.Lock()

    def connect() -> Answer:
        use_compute_threads(allowed.threads)

        def answer(features: np.ndarray) -> np.ndarray:
            with turn:
                return predict(model, features)

        return answer

    yield connect


@contextlib.contextmanager
def model_per_thread(model: torch.nn.Module, _: Resources) -> Iterator[Connect]:
    """Serve with a model for each client thread, and one compute thread for each."""

    def connect() -> Answer:
        use_compute_threads(1)
        own = copy.deepcopy(model)
        return lambda features: predict(own, features)

    yield connect


@contextlib.contextmanager
def parallel_inference(mode: str, model: torch.nn.Module, allowed: Resources) -> Iterator[Connect]:
    """Serve with `etl.training.ParallelInference`; "sequential" takes one request at a time for each worker."""
    with find_public("ParallelInference")(model, allowed.workers, mode, backend="cpu") as server:
        yield lambda: server.output


SERVERS: dict[str, Callable[[torch.nn.Module, Resources], contextlib.AbstractContextManager[Connect]]] = {
    "lock": lock,
    "model per thread": model_per_thread,
    "sequential": partial(parallel_inference, "sequential"),
    "batched": partial(parallel_inference, "batched"),
}
SERVERS_OF_TORCH = ("lock", "model per thread")


@contextlib.contextmanager
def clients(count: int, connect: Connect, check: AnswerCheck, work: Callable[[Answer], None]) -> Iterator[None]:
    """Call `work(answer)` in each of `count` threads, from the start of the block, whose end waits for them."""
    begin = threading.Barrier(count + 1)

    def client() -> None:
        try:
            answer = connect()
            check(answer, 0)
        except BaseException:
            begin.abort()
            raise
        begin.wait()
        work(answer)

    with ThreadPoolExecutor(count) as pool:
        running = [pool.submit(client) for _ in range(count)]
        try:
            begin.wait()
            yield
        finally:
            errors = [error for each in running if (error := each.exception()) is not None]
            for error in errors:
                if not isinstance(error, threading.BrokenBarrierError):
                    raise error


def answers_per_second(connect: Connect, count: int, seconds: float, check: AnswerCheck) -> float:
    """Let `count` clients ask again as soon as they are answered."""
    numbers: list[int] = []
    ends: list[float] = []

    def work(answer: Answer) -> None:
        now, until = time.perf_counter(), time.perf_counter() + seconds
        number = 0
        while now < until:
            check(answer, number)
            number += 1
            now = time.perf_counter()
        numbers.append(number)
        ends.append(now)

    with clients(count, connect, check, work):
        began = time.perf_counter()
    return sum(numbers) / (max(ends) - began)


def latencies(
    connect: Connect, count: int, seconds: float, check: AnswerCheck, rate: float, seed: int
) -> tuple[float, float]:
    """Let requests arrive at random moments, `rate` of them a second on average, for `count` clients.

    Returns the latency in milliseconds that half of them did not exceed, and the one that 99% did not.
    """
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(1, int(rate * seconds)))
    arrived: queue.SimpleQueue[tuple[float, int] | None] = queue.SimpleQueue()
    waits: list[float] = []

    def work(answer: Answer) -> None:
        while (request := arrived.get()) is not None:
            due, number = request
            check(answer, number)
            waits.append(time.perf_counter() - due)

    with clients(count, connect, check, work):
        began = time.perf_counter()
        try:
            for number, due in enumerate(began + np.cumsum(gaps)):
                left = due - time.perf_counter()
                if left > 0:
                    time.sleep(left)
                arrived.put((due, number))
        finally:  # otherwise an interruption would wait for clients that wait for requests
            for _ in range(count):
                arrived.put(None)
    half, most = np.quantile(waits, [0.5, 0.99]) * 1e3
    return float(half), float(most)


class AnswerCheck:
    """Requests for records of a shape, and whether their answers are right."""

    def __init__(self, model: torch.nn.Module, shape: tuple[int, ...]) -> None:
        features = np.random.default_rng(0).standard_normal((RECORDS, *shape), dtype=np.float32)
        self._features = [features[number : number + 1] for number in range(RECORDS)]
        self._expected = [predict(model, each) for each in self._features]

    def __call__(self, answer: Answer, number: int) -> None:
        """Ask, and raise `AssertionError` if the answer is that to another request."""
        found = answer(self._features[number % RECORDS])
        # In a batch, sums may be rounded differently.
        if not np.allclose(found, self._expected[number % RECORDS], rtol=1e-3, atol=1e-4):
            raise AssertionError(f"request {number} got the answer of another")


@dataclass(frozen=True)
class Found(JsonValues):
    """Rounds of all servers.

    Attributes
    ----------
    clients : int
        Client threads.
    shares, rates : list of float
        Arrivals a second, as shares of what one model behind a lock answers at most, and as numbers.
    throughputs : mapping of str to list of float
        Answers a second of each round, by server.
    quantiles : mapping of str to list of list of (float, float)
        Latencies in milliseconds, median and 99th percentile, of each round, by server and then as `shares`.
    """

    clients: int
    shares: list[float]
    rates: list[float]
    throughputs: Mapping[str, list[float]]
    quantiles: Mapping[str, list[list[tuple[float, float]]]]


FOUND: Kind[str, Found] = Kind("serving", str, Found)


def measure(
    model_name: str, *, clients: int, workers: int, rounds: int, seconds: float, shares: Sequence[float]
) -> Found:
    """Measure all servers of a model in `SHAPES` in turns.

    The `shares` are rates of arrival, of what one model behind a lock answers at most.
    """
    import torch

    shape = SHAPES[model_name]
    model = etl.models.create(model_name, shape, CLASSES).eval()
    check = AnswerCheck(model, shape)
    allowed = Resources(torch.get_num_threads(), workers)
    # Earlier commits have no `ParallelInference`.
    names = [name for name in SERVERS if name in SERVERS_OF_TORCH or find_public("ParallelInference")]

    @contextlib.contextmanager
    def serving(name: str) -> Iterator[Connect]:
        try:
            with SERVERS[name](model, allowed) as connect:
                yield connect
        finally:
            torch.set_num_threads(allowed.threads)

    def throughput(name: str) -> float:
        with serving(name) as connect:
            return answers_per_second(connect, clients, seconds, check)

    def take(name: str, number: int) -> tuple[float, list[tuple[float, float]]]:
        answered, waited = throughput(name), []
        for rate in rates:
            with serving(name) as connect:
                waited.append(latencies(connect, clients, seconds, check, rate, number))
        return answered, waited

    most = throughput(REFERENCE)
    rates = [share * most for share in shares]
    measured = Rounds(names, take)
    measured.run(rounds)
    samples = {name: list(each.values()) for name, each in measured.samples.items()}
    return Found(
        clients,
        list(shares),
        rates,
        {name: [answered for answered, _ in each] for name, each in samples.items()},
        {
            name: [list(share) for share in zip(*(waited for _, waited in each), strict=True)]
            for name, each in samples.items()
        },
    )


if PROFILE.grid:  # not in profile "quick", whose suites are about loading

    @explained
    class Serving(Suite):
        """A convolutional network that 16 threads ask for one record at a time: behind a lock, one model for each
        thread, and `etl.training.ParallelInference` with two workers, one request at a time or in batches.
        """

        params = [list(SERVERS)]
        param_names = ["server"]
        page_note = "Latencies are those of requests that arrive at random, at half the rate that the lock sustains."

        @attributes(timeout=MEASURING_TIMEOUT_SECONDS)
        def setup_cache(self) -> Found:
            return measure("lenet", clients=16, workers=2, rounds=PROFILE.rounds, seconds=2.0, shares=[HALF])

        def setup(self, cache: Found, server: str) -> None:
            if server not in cache.throughputs:
                raise NotImplementedError("there is no ParallelInference at this commit")  # asv's n/a

        @attributes(unit="seconds")
        def track_seconds_per_1000(self, cache: Found, server: str) -> dict[str, Any]:
            """Seconds for 1,000 answers, to clients that ask again as soon as they are answered."""
            return as_samples([1000 / each for each in cache.throughputs[server]])

        @attributes(unit="seconds")
        def track_median_latency(self, cache: Found, server: str) -> dict[str, Any]:
            """Seconds from a request to its answer, the median."""
            return as_samples([milliseconds / 1e3 for milliseconds, _ in cache.quantiles[server][0]])

        @attributes(unit="seconds")
        def track_p99_latency(self, cache: Found, server: str) -> dict[str, Any]:
            """Seconds from a request to its answer, which 99% do not exceed."""
            return as_samples([milliseconds / 1e3 for _, milliseconds in cache.quantiles[server][0]])


def render(path: Path) -> str:
    """Return what a journal says, as a Markdown table."""
    return as_markdown(lines_of(read_results(path, FOUND))) + "\n"


def sentence(path: Path) -> str:
    """Return what a journal says about batches, in a sentence."""
    found = read_results(path, FOUND)
    ratios = [f"{describe_ratio(_ratios(each)['batched'], 2)} for {name}" for name, each in found.items()]
    return f"Requests a second of `ParallelInference` over those of one model behind a lock: {', '.join(ratios)}.\n"


def lines_of(results: Mapping[str, Found]) -> list[tuple[str, ...]]:
    """Return the lines of the table: means over the rounds of answers a second, and medians of the latencies."""
    shares = next(iter(results.values())).shares
    waits = (f"p50, p99 ms at {share:.0%}" for share in shares)
    lines: list[tuple[str, ...]] = [("model", "server", "answers/s", f"of {REFERENCE}", *waits)]
    for model, found in results.items():
        ratios = _ratios(found)
        for name, rounds in found.throughputs.items():
            quantiles = (
                ", ".join(f"{median(column):.1f}" for column in zip(*pairs, strict=True))
                for pairs in found.quantiles[name]
            )
            ratio = describe_ratio(ratios[name], 2) if name in ratios else "1"
            lines.append((model, name, f"{fmean(rounds):,.0f}", ratio, *quantiles))
    return lines


def _ratios(found: Found) -> Mapping[str, Interval]:
    return ratio_intervals({name: dict(enumerate(each)) for name, each in found.throughputs.items()}, REFERENCE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the models that are missing, and print the table; return 2 if that fails."""
    parser = study_parser("benchmarks.serving", __doc__, clients=16, workers=2, rounds=MIN_ROUNDS)
    parser.add_argument("--seconds", type=float, default=1.5, metavar="S", help="of each load (default: 1.5)")
    options = parser.parse_args(arguments)
    loads = {"clients": options.clients, "workers": options.workers, "rounds": options.rounds}
    return run_study(
        FOUND,
        options.samples or FOLDER / "serving.jsonl",
        Plan(
            question="How many requests can a model answer, and how long does each wait?",
            arms=", ".join(SERVERS),
            number=f"{options.rounds} rounds for each of {len(SHAPES)} models",
            nominal_error="5% for all intervals of a model together",
            stopping="when all models are measured",
            exclusions="none",
            primary=f"answers a second, over those of one model behind a {REFERENCE}",
        ),
        {**loads, "seconds": options.seconds},
        list(SHAPES),
        lambda model: measure(model, **loads, seconds=options.seconds, shares=SHARES),
        lambda results, console: print_lines("One record a request", lines_of(results), console, keys=2),
    )


if __name__ == "__main__":
    sys.exit(main())
