"""Compare ways of serving predictions to many threads: `python -m benchmarks.serving [--json FILE]`.

The clients are threads of this process, as in a web server, and each asks for one record at a time. Throughput is that
of clients that ask again as soon as they are answered. Latency is measured at given rates of arrival, from the moment
when a request was due: one that waits for a free client has waited, too.

All servers take turns in one process, in balanced orders. Each has all compute threads of the process to share out.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

import etl
from benchmarks.cells import chosen_profile
from benchmarks.console import print_table, wide_console
from benchmarks.measuring.rounds import Rounds
from benchmarks.measuring.statistics import MIN_ROUNDS, Interval, ratio_intervals
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
    """Resources of a server.

    Attributes
    ----------
    threads : int
        Compute threads.
    workers : int
        Threads of `etl.ParallelInference`.
    """

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
def sequential(model: torch.nn.Module, allowed: Resources) -> Iterator[Connect]:
    """Serve with `etl.ParallelInference`, one request at a time for each worker."""
    with etl.ParallelInference(model, allowed.workers, "sequential", backend="cpu") as server:
        yield lambda: server.output


@contextlib.contextmanager
def batched(model: torch.nn.Module, allowed: Resources) -> Iterator[Connect]:
    """Serve with `etl.ParallelInference`, in batches."""
    with etl.ParallelInference(model, allowed.workers, "batched", backend="cpu") as server:
        yield lambda: server.output


SERVERS: dict[str, Callable[[torch.nn.Module, Resources], contextlib.AbstractContextManager[Connect]]] = {
    "lock": lock,
    "model per thread": model_per_thread,
    "sequential": sequential,
    "batched": batched,
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
        for number, due in enumerate(began + np.cumsum(gaps)):
            left = due - time.perf_counter()
            if left > 0:
                time.sleep(left)
            arrived.put((due, number))
        for _ in range(count):
            arrived.put(None)
    half, most = np.quantile(waits, [0.5, 0.99]) * 1e3
    return float(half), float(most)


class AnswerCheck:
    """Requests, and whether their answers are right.

    Parameters
    ----------
    shape : tuple of int
        Shape of a record.
    """

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
class Found:
    """Rounds of all servers.

    Attributes
    ----------
    model : str
        A key of `SHAPES`.
    clients : int
        Client threads.
    rates : dict of float to float
        Arrivals a second, by their share of what one model behind a lock answers at most.
    throughputs : dict of str to list of float
        Answers a second of each round, by server.
    quantiles : dict
        Latencies in milliseconds, median and 99th percentile, of each round, by server and share.
    """

    model: str
    clients: int
    rates: dict[float, float]
    throughputs: dict[str, list[float]]
    quantiles: dict[str, dict[float, list[tuple[float, float]]]]


def measure(
    model_name: str,
    *,
    clients: int,
    workers: int,
    rounds: int,
    seconds: float,
    shares: Sequence[float] = SHARES,
    say: Callable[[str], None] = lambda _: None,
) -> Found:
    """Measure all servers in turns.

    Parameters
    ----------
    model_name : str
        A key of `SHAPES`.
    workers : int
        Threads of `etl.ParallelInference`.
    shares : sequence of float
        Arrival rates, as shares of what one model behind a lock answers at most.
    say : callable
        Called with what is going on.
    """
    import torch

    shape = SHAPES[model_name]
    model = etl.models.create(model_name, shape, CLASSES).eval()
    check = AnswerCheck(model, shape)
    allowed = Resources(torch.get_num_threads(), workers)
    # Earlier commits have no `ParallelInference`.
    names = [name for name in SERVERS if name in SERVERS_OF_TORCH or hasattr(etl, "ParallelInference")]

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

    def take(name: str, number: int) -> tuple[float, dict[float, tuple[float, float]]]:
        say(f"round {number + 1} of {rounds}: {name}")
        answered, waited = throughput(name), {}
        for share, rate in rates.items():
            with serving(name) as connect:
                waited[share] = latencies(connect, clients, seconds, check, rate, number)
        return answered, waited

    say("the most that one model behind a lock answers")
    most = throughput(REFERENCE)
    rates = {share: share * most for share in shares}
    measured = Rounds(names, take)
    measured.run(rounds)
    samples = {name: list(each.values()) for name, each in measured.samples.items()}
    return Found(
        model_name,
        clients,
        rates,
        {name: [answered for answered, _ in each] for name, each in samples.items()},
        {name: {share: [waited[share] for _, waited in each] for share in shares} for name, each in samples.items()},
    )


if PROFILE.grid:  # not in profile "quick", whose suites are about loading

    @explained
    class Serving(Suite):
        """A convolutional network that 16 threads ask for one record at a time: behind a lock, one model for each
        thread, and `etl.ParallelInference` with two workers, one request at a time or in batches.
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
            return as_samples([milliseconds / 1e3 for milliseconds, _ in cache.quantiles[server][HALF]])

        @attributes(unit="seconds")
        def track_p99_latency(self, cache: Found, server: str) -> dict[str, Any]:
            """Seconds from a request to its answer, which 99% do not exceed."""
            return as_samples([milliseconds / 1e3 for _, milliseconds in cache.quantiles[server][HALF]])


def describe(found: Found) -> Table:
    """Return the table: means over the rounds of answers a second, and medians of the latencies."""
    table = Table(title=f"{found.model}: {found.clients} clients, one record a request")
    for heading in (
        "server",
        "answers/s",
        f"of {REFERENCE}",
        *(f"{rate:.0f}/s: p50, p99 ms" for rate in found.rates.values()),
    ):
        table.add_column(heading, justify="left" if heading == "server" else "right")
    ratios = ratio_intervals({name: dict(enumerate(each)) for name, each in found.throughputs.items()}, REFERENCE)
    for name, rounds in found.throughputs.items():
        ratio = ratios.get(name, Interval(1.0, None, None, len(rounds)))
        spread = "" if ratio.low is None else f" ({ratio.low:.2f} to {ratio.high:.2f})"
        latencies = [
            ", ".join(f"{median(column):.1f}" for column in zip(*pairs, strict=True))
            for pairs in found.quantiles[name].values()
        ]
        table.add_row(name, f"{fmean(rounds):.0f}", f"{ratio.estimate:.2f}{spread}", *latencies)
    return table


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--model", choices=SHAPES, default="residual", help="default: residual")
    parser.add_argument("--clients", type=int, default=16, metavar="N", help="client threads (default: 16)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="of etl.ParallelInference (default: 2)")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS, metavar="N", help=f"default: {MIN_ROUNDS}")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="of each load (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds here")
    options = parser.parse_args(arguments)
    for name in ("clients", "workers", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if not options.seconds > 0:
        parser.error("--seconds must be above 0")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = parse(arguments)
    with Console(stderr=True).status("preparing") as status:
        found = measure(
            options.model,
            clients=options.clients,
            workers=options.workers,
            rounds=options.rounds,
            seconds=options.seconds,
            say=status.update,
        )
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(found), indent=1) + "\n")
    print_table(describe(found), wide_console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
