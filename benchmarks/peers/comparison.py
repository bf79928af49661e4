"""All loaders on the same work: prepared, checked, and measured in interleaved rounds."""

from __future__ import annotations

import hashlib
import inspect
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measuring.layout import draw_environment, draw_hash_seed
from benchmarks.measuring.processes import ONE_THREAD, MeasurementError
from benchmarks.measuring.rounds import Rounds
from benchmarks.measuring.server import Answer
from benchmarks.peers.environments import NotInstalled, make_environment
from benchmarks.peers.inputs import Inputs
from benchmarks.peers.loader import RAW, Loader
from benchmarks.peers.same_work import TOLERANCE
from benchmarks.peers.sample import CHECK, PREPARE, SAMPLE, Figures, Prepared, Work
from benchmarks.peers.samples import Samples
from benchmarks.servers import ROOT, TIMEOUT_SECONDS, start_server

# An epoch from a store is over in a tenth of that, too short for the ticks in which the kernel counts CPU time.
SECONDS_PER_FIGURE = 1.0
# After its answer, in which a loader may end its workers in order and remove its shared memory.
ENDING_SECONDS = 10.0
# The name under which an interpreter is given for all peers that have none of their own.
ALL = ""
# Told what is being done and to whom.
Progress = Callable[[str, Loader], None]


@dataclass(frozen=True)
class Comparison:
    """Loaders, and what they are compared on. Each runs in an environment of its own, made in `folder`, or where
    `interpreters` has one for its peer, or for all of them under "", in that.
    """

    loaders: Sequence[Loader]
    inputs: Inputs
    batch_size: int
    threads: int
    folder: Path
    interpreters: Mapping[str, str] = field(default_factory=dict)
    seconds_per_figure: float = SECONDS_PER_FIGURE
    timeout: float = TIMEOUT_SECONDS

    def run(self, rounds: int, samples: Samples, progress: Progress) -> dict[str, str]:
        """Measure what `samples` does not hold yet; for each loader that dropped out, by its key, the reason."""
        wanted = [each for each in self.loaders if not {*range(rounds)} <= {*samples.figures_of(each.key)}]
        interpreters, missing = self._find_interpreters(wanted, progress)
        for loader in wanted:
            if loader.key in missing:
                continue
            try:
                progress("preparing", loader)
                self._prepare(loader, interpreters[loader.peer], samples)
                progress("checking", loader)
                self._ask(loader, interpreters[loader.peer], CHECK)
            except MeasurementError as error:
                missing[loader.key] = str(error)
                progress(f"left out ({error})", loader)

        def take(loader: Loader, number: int) -> Figures:
            figures = Figures.from_json(
                self._ask(loader, interpreters[loader.peer], SAMPLE, f"in round {number + 1}: ")
            )
            samples.add(loader.key, number, figures)
            return figures

        measured = Rounds(
            [loader for loader in wanted if loader.key not in missing],
            take,
            taken={loader: samples.figures_of(loader.key) for loader in wanted},
            progress=lambda loader, number: progress(f"round {number + 1} of {rounds}", loader),
            on_failure=lambda loader, error: progress(f"left out ({error})", loader),
        )
        measured.run(rounds)
        return missing | {loader.key: reason for loader, reason in measured.failed.items()}

    def _find_interpreters(
        self, loaders: Sequence[Loader], progress: Progress
    ) -> tuple[dict[str, str], dict[str, str]]:
        """For each peer its interpreter, and for each loader whose peer has none the reason."""
        interpreters, reasons = dict[str, str](), dict[str, str]()
        for loader in loaders:
            if loader.peer in interpreters or loader.peer in reasons:
                continue
            given = self.interpreters.get(loader.peer) or self.interpreters.get(ALL)
            progress("installing", loader)
            try:
                interpreters[loader.peer] = given or make_environment(loader.peer, self.folder / "environments")
            except NotInstalled as error:
                reasons[loader.peer] = str(error)
                progress(f"left out ({error})", loader)
        return interpreters, {loader.key: reasons[loader.peer] for loader in loaders if loader.peer in reasons}

    def _prepared(self, loader: Loader) -> Path:
        photographs = Path(self.inputs.photographs)
        if loader.prepare is None:
            return photographs
        # Loaders that read the same files share them; code that has changed writes others.
        digest = hashlib.sha256(inspect.getsource(loader.prepare).encode()).hexdigest()[:8]
        return photographs.with_name(f"{loader.peer}-{loader.prepare.__name__}-{digest}")

    def _prepare(self, loader: Loader, interpreter: str, samples: Samples) -> None:
        """Write the files of `loader`, where they are not there."""
        if loader.prepare is None:
            return
        target = self._prepared(loader)
        seconds = target.with_suffix(".seconds")
        if not seconds.exists():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            prepared = Prepared.from_json(self._ask(loader, interpreter, PREPARE))
            seconds.write_text(repr(prepared.seconds))
        samples.add_prepared(loader.key, float(seconds.read_text()))

    def _ask(self, loader: Loader, interpreter: str, action: str, when: str = "") -> Answer:
        """Return the answer of a fresh process, in a memory layout of its own."""
        function = loader.prepare if action == PREPARE else loader.load
        with tempfile.TemporaryDirectory() as scratch:
            work = Work(
                action=action,
                module=loader.module,
                function=getattr(function, "__qualname__", ""),
                imports=loader.imports,
                source=self.inputs.photographs if loader.task == RAW else self.inputs.images,
                folder=str(self._prepared(loader)),
                expected=self.inputs.expected,
                records=self.inputs.records,
                batch_size=self.batch_size,
                threads=self.threads,
                tolerance=TOLERANCE[loader.task],
                channels_last=loader.channels_last,
                seconds_per_figure=self.seconds_per_figure,
                scratch=scratch,
            )
            with start_server(
                loader.key,
                "peers.sample:prepare",
                work.to_json(),
                interpreter=interpreter,
                packages=ROOT,
                hash_seed=draw_hash_seed(),
                environment={**draw_environment(), **dict.fromkeys(ONE_THREAD, str(self.threads))},
                timeout=self.timeout,
            ) as server:
                try:
                    answer = server.wait_until_ready()
                except MeasurementError as error:
                    server.end(ENDING_SECONDS)
                    raise MeasurementError(when + " ".join(str(error).split()), error.text) from None
                server.end(ENDING_SECONDS)
                return answer
