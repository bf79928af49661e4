"""All loaders on the same work: installed, prepared, checked, and measured in interleaved rounds.

The file of samples grows with every sample: an interrupted run continues where it stopped.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measuring.layout import draw_environment, draw_hash_seed
from benchmarks.measuring.processes import ONE_THREAD, MeasurementError
from benchmarks.measuring.rounds import Rounds
from benchmarks.measuring.server import Answer
from benchmarks.peers.handlers import CHECK, PREPARE, SAMPLE, LoaderMetrics, LoaderRequest, Prepared
from benchmarks.peers.loader import RAW, Loader
from benchmarks.peers.work import TOLERANCE, Inputs
from benchmarks.servers import ROOT, TIMEOUT_SECONDS, start_server

REQUIREMENTS = Path(__file__).with_name("requirements")
INSTALL_TIMEOUT_SECONDS = 3600
# An epoch from a store takes a tenth of this, too short for the ticks in which the kernel counts CPU time.
MIN_SECONDS = 1.0
# The time that a loader has, after its answer, to end its workers in order and to remove its shared memory.
ENDING_SECONDS = 10.0
# The key of the interpreter for all peers that have none of their own.
ALL = ""
# Called before each action, with its name.
OnAction = Callable[[str, Loader], None]


@dataclass(frozen=True)
class Comparison:
    """A comparison of loaders, each in an environment of its own.

    Attributes
    ----------
    loaders : sequence of Loader
        The loaders.
    inputs : Inputs
        The photographs.
    batch_size, threads : int
        As `Loader.load` takes them.
    folder : path
        The folder in which environments are made.
    interpreters : mapping of str to str
        Interpreters to use instead of environments, by peer; the one under `ALL` is for all other peers.
    min_seconds : float
        Loading alone is measured for at least this long.
    timeout : float
        Seconds for one answer.
    """

    loaders: Sequence[Loader]
    inputs: Inputs
    batch_size: int
    threads: int
    folder: Path
    interpreters: Mapping[str, str] = field(default_factory=dict)
    min_seconds: float = MIN_SECONDS
    timeout: float = TIMEOUT_SECONDS

    def run(self, rounds: int, samples: Samples, on_action: OnAction) -> dict[str, str]:
        """Measure what `samples` does not hold yet.

        Parameters
        ----------
        rounds : int
            Samples of each loader.
        samples : Samples
            The file of samples.
        on_action : callable
            Called before each action, with its name and the loader.

        Returns
        -------
        The reason for each loader that dropped out, by its key.
        """
        wanted = [each for each in self.loaders if not {*range(rounds)} <= {*samples.metrics_of(each.key)}]
        interpreters, missing = self._find_interpreters(wanted, on_action)
        for loader in wanted:
            if loader.key in missing:
                continue
            try:
                on_action("preparing", loader)
                self._prepare(loader, interpreters[loader.peer], samples)
                on_action("checking", loader)
                self._ask(loader, interpreters[loader.peer], CHECK)
            except MeasurementError as error:
                missing[loader.key] = str(error)
                on_action(f"left out ({error})", loader)

        def take(loader: Loader, number: int) -> LoaderMetrics:
            metrics = LoaderMetrics.from_json(
                self._ask(loader, interpreters[loader.peer], SAMPLE, f"in round {number + 1}: ")
            )
            samples.add(loader.key, number, metrics)
            return metrics

        measured = Rounds(
            [loader for loader in wanted if loader.key not in missing],
            take,
            taken={loader: samples.metrics_of(loader.key) for loader in wanted},
            progress=lambda loader, number: on_action(f"round {number + 1} of {rounds}", loader),
            on_failure=lambda loader, error: on_action(f"left out ({error})", loader),
        )
        measured.run(rounds)
        return missing | {loader.key: reason for loader, reason in measured.failed.items()}

    def _find_interpreters(
        self, loaders: Sequence[Loader], on_action: OnAction
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the interpreter of each peer, and the reason for each loader whose peer has none."""
        interpreters, reasons = dict[str, str](), dict[str, str]()
        for loader in loaders:
            if loader.peer in interpreters or loader.peer in reasons:
                continue
            given = self.interpreters.get(loader.peer) or self.interpreters.get(ALL)
            on_action("installing", loader)
            try:
                interpreters[loader.peer] = given or make_environment(loader.peer, self.folder / "environments")
            except NotInstalled as error:
                reasons[loader.peer] = str(error)
                on_action(f"left out ({error})", loader)
        return interpreters, {loader.key: reasons[loader.peer] for loader in loaders if loader.peer in reasons}

    def _prepared(self, loader: Loader) -> Path:
        photographs = Path(self.inputs.photographs)
        if loader.prepare is None:
            return photographs
        # Loaders that read the same files share them; if the code of `prepare` changes, it writes other files.
        digest = hashlib.sha256(inspect.getsource(loader.prepare).encode()).hexdigest()[:8]
        return photographs.with_name(f"{loader.peer}-{loader.prepare.__name__}-{digest}")

    def _prepare(self, loader: Loader, interpreter: str, samples: Samples) -> None:
        """Write the files of `loader`, unless they are there."""
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
        """Ask a fresh process, with a memory layout of its own, for an action of `loader`."""
        function = loader.prepare if action == PREPARE else loader.load
        with tempfile.TemporaryDirectory() as scratch:
            work = LoaderRequest(
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
                min_seconds=self.min_seconds,
                scratch=scratch,
            )
            with start_server(
                loader.key,
                "peers.handlers:prepare",
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


class Samples:
    """Metrics by loader and round, kept in a JSON file together with the settings that they were taken with.

    Raises `IncompatibleSamples` if the file holds samples of other settings, or is no file of samples.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self._content: dict[str, Any] = {"settings": settings, "prepared": {}, "samples": []}
        if path.exists():
            self._content = _read(path, settings)

    def metrics_of(self, loader: str) -> dict[int, LoaderMetrics]:
        """Return the metrics of a loader, by its key, in each round in which it was measured."""
        return {
            each["round"]: LoaderMetrics.from_json(each["figures"])
            for each in self._content["samples"]
            if each["loader"] == loader
        }

    def add(self, loader: str, number: int, metrics: LoaderMetrics) -> None:
        """Add the metrics of a round to the file.

        Parameters
        ----------
        loader : str
            Its key.
        number : int
            Number of the round.
        metrics : LoaderMetrics
            The metrics.
        """
        self._content["samples"].append({"loader": loader, "round": number, "figures": metrics.to_json()})
        self._write()

    def prepared_seconds(self, loader: str) -> float | None:
        """Return the seconds to write a loader's files, or None if they were not written in this run."""
        seconds: float | None = self._content["prepared"].get(loader)
        return seconds

    def add_prepared(self, loader: str, seconds: float) -> None:
        """Add the seconds to write a loader's files to the file."""
        self._content["prepared"][loader] = seconds
        self._write()

    def _write(self) -> None:
        unfinished = self.path.with_name(f"{self.path.name}.unfinished")
        unfinished.write_text(json.dumps(self._content, indent=1) + "\n")
        os.replace(unfinished, self.path)


class IncompatibleSamples(Exception):  # noqa: N818 - the word that the reader looks for
    """A file holds samples that cannot be compared with new ones."""


def _read(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        found = content["settings"]
    except (ValueError, KeyError, TypeError):
        raise IncompatibleSamples(f"{path} is not a file of samples; name another one") from None
    different = sorted(name for name in {*found, *settings} if found.get(name) != settings.get(name))
    if different:
        described = ", ".join(f"{name} {found.get(name)}, not {settings.get(name)}" for name in different)
        raise IncompatibleSamples(
            f"{path} holds samples of {described}; name another file, or delete this one to begin anew"
        )
    return content


def make_environment(peer: str, folder: Path) -> str:
    """Return the interpreter of the peer's environment below `folder`; make it if it is missing or has other pins.

    Raises `NotInstalled` with the line of pip's output that gives the reason.
    """
    requirements = (REQUIREMENTS / f"{peer}.txt").read_text()
    environment = folder / peer
    interpreter = environment / "bin" / "python"
    made_from = environment / "requirements.txt"
    if made_from.is_file() and made_from.read_text() == requirements:
        return str(interpreter)
    shutil.rmtree(environment, ignore_errors=True)
    _run([sys.executable, "-m", "virtualenv", "--quiet", str(environment)], folder)
    _run([str(interpreter), "-m", "pip", "install", "-r", str(REQUIREMENTS / f"{peer}.txt")], folder)
    made_from.write_text(requirements)
    return str(interpreter)


class NotInstalled(Exception):  # noqa: N818 - the word the reader looks for
    """A peer's environment cannot be made, for the reason in the text."""


def _run(command: list[str], folder: Path) -> None:
    # All environments share a cache, beside them, so that torch is fetched once.
    variables = {**os.environ, "PIP_CACHE_DIR": str(folder / "cache"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=variables, timeout=INSTALL_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"not installed after {INSTALL_TIMEOUT_SECONDS} s") from None
    if done.returncode != 0:
        raise NotInstalled(find_reason(done.stdout + done.stderr))


def find_reason(output: str) -> str:
    """Return the most informative line of pip's `output`: the first that names an error and is not boilerplate."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower() and not _is_boilerplate(line)]
    return (named or lines or ["it ended without a word"])[0]


def _is_boilerplate(line: str) -> bool:
    return any(
        words in line
        for words in (
            "subprocess-exited-with-error",
            "note: This error originates",
            "exit code:",
            "metadata-generation",
        )
    )
