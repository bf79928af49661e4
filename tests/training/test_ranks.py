"""Training on several ranks: real processes under gloo, started by `fit_parallel` or torchrun."""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import numpy as np
import psutil
import pytest
import torch
from PIL import Image, ImageFile
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import etl
from etl.iterators import BatchIterator
from etl.iterators.user_loader import as_iterator
from etl.training import Checkpoint, EarlyStopping, FitResult, Iteration, RankError, fit_parallel
from etl.training.parallel import Job
from etl.training.rank_process import _train
from etl.training.ranks import ERROR_FILE, OTHER_ORDER, Ranks, agree_on_attempt, record_failure
from etl.training.step import ForwardPass, unwrapped
from etl.training.synchronisation import GradientAveraging, ParameterAveraging
from tests.programs import run_python
from tests.training import rank_jobs
from tests.training.null_listener import NullListener
from tests.training.rank_jobs import Labelled, Noting, Numbered, make_model, raw, sgd
from tests.training.torchrun import launched, run_ranks

NOTHING = etl.Pipeline([])
LIMIT_SECONDS = 120


def parallel(make_iterator: Callable[[], Any], **options: Any) -> FitResult:
    return fit_parallel(make_model, make_iterator, **{"backend": "cpu", "optimizer": sgd, **options})


def assert_equal(first: Any, second: Any) -> None:
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def assert_close(first: Any, second: Any) -> None:
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-5, atol=1e-6)


def rank_processes() -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter():
        try:
            # Other tests have theirs.
            here = each.environ().get("PYTEST_CURRENT_TEST") == os.environ["PYTEST_CURRENT_TEST"]
            if here and "etl.training.rank_process" in each.cmdline():
                found.append(each)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def temporary_folders(folder: Path) -> list[Path]:
    return [*folder.glob("etl-*"), *folder.glob("torchelastic_*")]


@pytest.fixture(scope="module")
def in_turns(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each of two ranks under torchrun has of trainings that follow each other in one process group."""
    folder = tmp_path_factory.mktemp("turns")
    run_ranks(rank_jobs.__file__, "turns", folder)
    return [torch.load(folder / f"rank{rank}") for rank in range(2)]


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> tuple[FitResult, list[dict[str, Any]]]:
    """Start two ranks from a program with settings of its own; return the result, and what each rank has seen."""
    folder = tmp_path_factory.mktemp("started")
    source = "from tests.training.rank_jobs import make_model\n\ndef make():\n    return make_model()\n"
    (folder / "beside_the_script.py").write_text(source)

    def make_iterator() -> Any:
        from PIL import Image, ImageFile

        seen = {"cpus": len(os.sched_getaffinity(0)), "threads": torch.get_num_threads()}
        seen["pillow"] = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
        torch.save(seen, folder / os.environ["RANK"])
        return raw(42)

    before = handlers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 12_345)
        patch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
        patch.syspath_prepend(str(folder))
        make_model = importlib.import_module("beside_the_script").make
        result = fit_parallel(make_model, make_iterator, backend="cpu", optimizer=sgd, epochs=2)
    assert handlers() == before
    return result, [torch.load(folder / str(rank)) for rank in range(2)]


def test_ranks_have_the_modules_and_settings_of_pillow_of_the_program_and_each_its_own_cpus(started: Any) -> None:
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert started[1] == [{"cpus": share, "threads": share, "pillow": (12_345, True)}] * 2


def test_two_ranks_train_as_torchs_own_loop_does_bit_for_bit(started: Any, in_turns: list[dict[str, Any]]) -> None:
    result, _ = started
    assert_equal(result.state, in_turns[0]["plain"])
    # 42 records are no whole number of steps: two are repeated in each epoch.
    assert [(each.rank, each.samples, each.repeated) for each in result.ranks] == [(0, 42, 0), (1, 42, 0)]
    assert (result.epochs, result.total_samples) == (2, 84)


class Draws(NullListener):
    """A model, its batches and a listener that draw from the generators of Python, numpy and torch, and note that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make_model(self) -> torch.nn.Module:
        self.note("model")
        return torch.nn.Sequential(torch.nn.Linear(rank_jobs.FEATURES, rank_jobs.CLASSES), torch.nn.Dropout())

    def make_iterator(self) -> Any:
        self.note("iterator")
        return raw(16)

    def note(self, what: str) -> None:
        drawn = random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        with (self.folder / f"{what}.{os.environ['RANK']}.{attempt}").open("a") as file:
            print(*drawn, file=file)
        if (what, os.environ["RANK"], attempt) == ("step", "0", "0"):
            raise OSError("the first attempt fails")

    def iteration_done(self, iteration: Iteration) -> None:
        self.note("step")


def test_ranks_begin_with_equal_random_numbers_and_train_with_their_own_after_a_restart_too(tmp_path: Path) -> None:
    draws = Draws(tmp_path)
    fit_parallel(draws.make_model, draws.make_iterator, backend="cpu", listeners=[draws], restarts=1)
    for what in ("model", "iterator"):
        assert len({(tmp_path / f"{what}.{rank}.1").read_text() for rank in range(2)}) == 1
    steps = [each.read_text() for each in tmp_path.glob("step.*")]
    assert len({number for step in steps for number in step.split()}) == 3 * sum(step.count("\n") for step in steps)
    assert {each.name for each in tmp_path.glob("step.*")} >= {"step.0.0", "step.0.1", "step.1.1"}


class Remembers(torch.nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"version": 3}


def test_state_that_is_no_tensor_comes_back() -> None:
    result = etl.training.fit_parallel(
        lambda: Remembers(4, 3), lambda: etl.SyntheticIterator((4,), 3, 2, 4), workers=1, backend="cpu"
    )
    Remembers(4, 3).load_state_dict(result.state)


def sharded(module: torch.nn.Module) -> torch.nn.Module:
    """Give a module the class that it gets from torch's `fully_shard`, which needs a process group."""
    module.__class__ = type("Sharded", (FSDPModule, type(module)), {})
    return module


def wrapped(wrapper: type[torch.nn.Module], **inside: torch.nn.Module) -> torch.nn.Module:
    """Return one of torch's wrappers around a model, made without a process group."""
    made = wrapper.__new__(wrapper)
    torch.nn.Module.__init__(made)
    for name, module in inside.items():
        setattr(made, name, module)
    return made


class Compiled(torch.nn.Module):
    """Wraps a model as torch.compile does, which takes seconds."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._orig_mod = model


def test_a_model_that_synchronises_itself_is_not_wrapped_again_though_it_is_compiled() -> None:
    model = make_model()
    distributed = wrapped(DistributedDataParallel, module=model)
    for each in (distributed, sharded(make_model())):
        for given in (each, Compiled(each)):
            assert GradientAveraging(given).module is given
    assert unwrapped(distributed) is unwrapped(Compiled(distributed)) is model
    fully_sharded = wrapped(FullyShardedDataParallel, _fsdp_wrapped_module=model)
    assert not ForwardPass(fully_sharded)._takes_mask  # as the model inside, though the wrapper takes any keyword


def test_a_model_of_which_only_a_part_synchronises_itself_is_refused() -> None:
    model = make_model()
    sharded(model[2])
    with pytest.raises(ValueError, match=r"module '2' of the model is wrapped or sharded, .* but the rest is not"):
        GradientAveraging(model)
    with pytest.raises(ValueError, match="averaging_frequency=3 needs a model of its own on each rank, not a Sharded"):
        ParameterAveraging(model, sgd(model), Ranks(0, 2), 3)


def test_a_sharded_model_is_refused_by_fit_parallel_which_returns_a_whole_one() -> None:
    job = Job(lambda: sharded(make_model()), partial(raw, 8), 2, 60.0, 0, {"backend": "cpu"})
    with pytest.raises(ValueError, match=r"make_model has sharded the model, .*: start the ranks with torchrun"):
        _train(job)


def test_a_model_or_batches_instead_of_functions_that_return_them_are_refused() -> None:
    with pytest.raises(ValueError, match=r"make_model must be a function .* not a Sequential"):
        fit_parallel(make_model(), partial(raw, 8))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"make_iterator must be a function .* not a RawIterator"):
        fit_parallel(make_model, raw(8))  # type: ignore[arg-type]


def test_two_ranks_are_as_good_as_one_with_twice_the_batch_and_a_model_can_be_fitted_again(
    in_turns: list[dict[str, Any]],
) -> None:
    first, second = in_turns
    assert_equal(first["twice"]["state"], second["twice"]["state"])
    alone = make_model()
    for name in ("once", "twice"):
        expected = etl.fit(alone, raw(40, 8), backend="cpu", optimizer=sgd)
        assert first[name]["scores"] == pytest.approx(expected.scores, rel=1e-5)
    assert_close(first["twice"]["state"], alone.state_dict())


def test_averaging_every_three_iterations_is_what_its_definition_says(
    in_turns: list[dict[str, Any]], started: Any
) -> None:
    models = [make_model(), make_model()]
    optimizers = [sgd(model) for model in models]
    shards = [raw(42).shard(rank, 2) for rank in range(2)]
    losses = []

    def average() -> None:
        for tensors in zip(*map(trained, models, optimizers), strict=True):
            mean = sum(tensor / 2 for tensor in tensors)
            for tensor in tensors:
                tensor.copy_(mean)

    for _ in range(2):
        for number, batches in enumerate(zip(*shards, strict=True), 1):
            for model, optimizer, (features, labels) in zip(models, optimizers, batches, strict=True):
                optimizer.zero_grad()
                output = model(torch.from_numpy(features))
                loss = torch.nn.functional.cross_entropy(output, torch.from_numpy(labels))
                loss.backward()
                losses.append(loss.item())
                optimizer.step()
            if number % 3 == 0:
                average()
        average()  # 6 iterations an epoch: nothing new
    assert_equal(in_turns[0]["averaged"]["state"], models[0].state_dict())
    # Scores are those of the rank, unless they are to be the mean of all ranks, as they are by default.
    assert [each["averaged"]["scores"] for each in in_turns] == [pytest.approx(losses[rank::2]) for rank in range(2)]
    assert losses[0] != pytest.approx(losses[1])
    assert started[0].scores[0] == pytest.approx((losses[0] + losses[1]) / 2)


def test_what_adam_keeps_on_the_cpu_is_averaged_where_ranks_can_send_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, rank_jobs.FEATURES)).sum().backward()
    optimizer.step()
    sent: list[Any] = []
    copied: list[Any] = []
    averaging = "torch.distributed.algorithms.model_averaging.utils.average_parameters"
    monkeypatch.setattr(averaging, lambda tensors, _: sent.extend(tensors))
    monkeypatch.setattr("etl.training.synchronisation.broadcast", lambda _: None)
    monkeypatch.setattr(torch, "_foreach_copy_", lambda tensors, _: copied.extend(tensors))
    # In place of a GPU.
    ranks: Any = SimpleNamespace(device=torch.device("meta"), check_equal=lambda *_: None)
    ParameterAveraging(model, optimizer, ranks, frequency=1).after_step()
    assert {each.device.type for each in sent} == {"meta"}
    assert {each.device.type for each in copied} == {"cpu"}
    assert len(sent) == len(copied) == 4 * (1 + 3)  # parameters, each with a step and two means


class Spectrum(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.register_buffer("phase", torch.ones(2, dtype=torch.complex64))


def test_complex_numbers_are_averaged_as_pairs_of_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Spectrum()
    optimizer = sgd(model)
    model.weight.abs().sum().backward()
    optimizer.step()
    sent: list[torch.Tensor] = []
    averaging = "torch.distributed.algorithms.model_averaging.utils.average_parameters"
    monkeypatch.setattr(averaging, lambda tensors, _: [each.zero_() for each in tensors])
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, _: sent.append(tensor))
    ranks: Any = SimpleNamespace(device=torch.device("cpu"), check_equal=lambda *_: None)
    ParameterAveraging(model, optimizer, ranks, frequency=1).after_step()
    assert [each.shape for each in sent] == [(2, 2), (2, 2)]
    for each in (*trained(model, optimizer), model.phase):
        assert torch.equal(each, torch.zeros(2, dtype=torch.complex64))


def trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    parameters = list(model.parameters())
    return [each.detach() for each in parameters] + [optimizer.state[each]["momentum_buffer"] for each in parameters]


class StopAfter(NullListener):
    """A listener that stops the training after some iterations."""

    def __init__(self, iterations: int | None) -> None:
        self.iterations = iterations

    def iteration_done(self, iteration: Iteration) -> None:
        if iteration.number + 1 == self.iterations:
            self.training.stop("enough")


@pytest.mark.slow
def test_a_training_goes_on_with_other_numbers_of_ranks_and_each_record_comes_once(tmp_path: Path) -> None:
    def make_iterator() -> Any:
        return etl.RawIterator(Labelled(30), NOTHING, 2, shuffle=True)

    for workers, steps in ((2, 3), (3, 2), (1, None)):
        folder = tmp_path / str(workers)
        folder.mkdir()
        noting = Noting(folder)
        listeners: list[Any] = [noting, Checkpoint(tmp_path / "checkpoint"), StopAfter(steps)]
        if workers == 1:
            options = {"optimizer": sgd, "loss": noting.loss, "listeners": listeners}
            result = etl.fit(make_model(), make_iterator(), backend="cpu", **options)
        else:
            result = parallel(make_iterator, workers=workers, loss=noting.loss, listeners=listeners)
        assert (result.stopped, result.epochs) == (("enough", 0) if steps else (None, 1))
    numbers = Counter(
        number
        for path in tmp_path.glob("*/rank*")
        for line in path.read_text().splitlines()
        for number in line.split()[2:]
    )
    assert len(list(tmp_path.glob("*/rank*"))) == 2 + 3 + 1
    assert numbers == {str(number): 1 for number in range(30)}


@pytest.mark.slow
def test_torchrun_restarts_a_killed_rank_and_each_remaining_record_comes_once(tmp_path: Path) -> None:
    run_ranks(rank_jobs.__file__, "torchrun", tmp_path, restarts=1)
    assert (tmp_path / "killed").exists()
    assert (tmp_path / "done").exists()
    # Of an iteration that was trained on again after the restart, the later time counts.
    steps: dict[tuple[str, str, int], list[str]] = {}
    for rank in range(2):
        for line in (tmp_path / f"rank{rank}").read_text().splitlines():
            epoch, _, *numbers = line.split()
            steps[epoch, str(rank), len([key for key in steps if key[:2] == (epoch, str(rank))])] = numbers
    for epoch in "01":
        numbers = Counter(number for key, each in steps.items() if key[0] == epoch for number in each)
        assert set(numbers) == {str(number) for number in range(40)}
        # At most the step that was being saved when the rank was killed.
        assert sum(numbers.values()) - 40 in (0, 4, 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "ahead", "message"),
    [
        (
            "raises",
            2,
            r"rank 1 of 2, while loading batch \d of epoch 0: RecordError: record 2 of .*'read'.*number 2 is bad",
        ),
        ("is killed", 2, r"rank 1 of 2 was killed by SIGKILL \(out of memory\?\), while \w+ .*batch \d of epoch 0"),
        ("is terminated", 2, r"rank 1 of 2 was killed by SIGTERM, while \w+ .*batch \d of epoch 0"),
        # The agent waits for 30 s before it kills it.
        pytest.param(
            "is stopped",
            2,
            r"rank 1 of 2 hangs for \d+ s, and others have waited for 10 s, while \w+ .*batch \d of epoch 0",
            marks=pytest.mark.alone,
        ),
        ("exits", 2, r"rank 1 of 2 ended with code 7, while \w+ .*batch \d of epoch 0"),
        ("hangs", 2, r"rank 1 of 2, while loading batch \d of epoch 0: .*record 2 of .*'read'"),
        ("hangs", 0, r"rank 1 of 2 hangs for \d+ s, .* while loading batch 0 of epoch 0"),
    ],
)
def test_one_error_names_rank_record_and_stage_and_nothing_is_left(
    trouble: str, ahead: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    # Rank 1 loads record 2 in its first batch.
    def make_iterator() -> Any:
        return etl.RawIterator(Numbered(16, {2: trouble}), NOTHING, 2)

    with pytest.raises(RankError, match=message) as caught:
        parallel(make_iterator, timeout=5.0 if trouble in ("hangs", "is stopped") else 60.0, prefetch_size=ahead)
    assert caught.value.rank == 1
    assert not rank_processes()
    assert not temporary_folders(tmp_path)


def test_ranks_that_would_wait_for_each_other_for_ever_are_an_error(in_turns: list[dict[str, Any]]) -> None:
    for each in in_turns:
        assert (
            "the same number of batches, or they would wait for each other forever: rank 0: 1; rank 1: 2"
            in (each["uneven"])
        )


def test_two_ranks_with_other_seeds_are_an_error_on_both(in_turns: list[dict[str, Any]]) -> None:
    message = f"{OTHER_ORDER}: rank 0 has seed=0, and rank 1 has seed=1"
    assert [each["seeds"] for each in in_turns] == [message] * 2


def test_an_error_before_the_training_names_the_rank() -> None:
    def make_broken() -> torch.nn.Module:
        raise RuntimeError("no such model")

    with pytest.raises(RankError, match="rank 0 of 1, while starting: RuntimeError: no such model"):
        fit_parallel(make_broken, partial(raw, 16), workers=1, backend="cpu")


def test_ranks_stop_early_at_the_same_iteration_and_repeated_records_do_not_count(
    in_turns: list[dict[str, Any]],
) -> None:
    model = make_model()
    alone = EarlyStopping(max_epochs=3, evaluate=raw(21, 5))
    etl.fit(model, raw(40, 8), backend="cpu", epochs=None, optimizer=sgd, listeners=[alone])
    first, second = (each["early"] for each in in_turns)
    assert first["stopped"] == "3 epochs are over"
    assert (first["epochs"], first["best"]) == (second["epochs"], second["best"])
    assert first["epochs"] == pytest.approx(alone.scores, rel=1e-5)
    assert_close(first["state"], model.state_dict())
    first, second = (each["timed"] for each in in_turns)
    assert first["stopped"] == "0.05 s are over"
    assert len(first["scores"]) == len(second["scores"])


class Slowly(NullListener):
    """A listener that says that training has begun, and makes it last."""

    def fit_started(self) -> None:
        print("begun", flush=True)

    def iteration_done(self, iteration: Iteration) -> None:
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "end"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, ""), (signal.SIGKILL, "")]
)
def test_nothing_outlives_a_program_that_is_ended(number: signal.Signals, end: str, tmp_path: Path) -> None:
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from tests.training.test_ranks import *\n"
        "parallel(partial(raw, 400), listeners=[Slowly()])"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TMPDIR": str(tmp_path),
    }
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("begun")  # both ranks write it
        ranks = [each for each in psutil.Process(process.pid).children() if "rank_process" in " ".join(each.cmdline())]
        assert len(ranks) == 2
        assert temporary_folders(tmp_path)
        process.send_signal(number)
        _, said = process.communicate(timeout=LIMIT_SECONDS)
    assert not psutil.wait_procs(ranks, timeout=LIMIT_SECONDS)[1]
    assert process.returncode == -number, said
    assert end in said.splitlines() or not end, said
    until = time.monotonic() + LIMIT_SECONDS
    while temporary_folders(tmp_path) and time.monotonic() < until:
        time.sleep(0.01)
    assert not temporary_folders(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends processes with their parents on Linux")
def test_a_rank_that_begins_after_its_program_has_ended_ends_at_once(tmp_path: Path) -> None:
    command = ("-m", "etl.training.rank_process", tmp_path, str(os.getpid() + 1))  # the number of no parent
    done = run_python(*command, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_rank_does_not_look_long_for_an_agent_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        launched(monkeypatch, 0, 2, unused.getsockname()[1], TORCHELASTIC_USE_AGENT_STORE=True)
        monkeypatch.setattr("etl.training.ranks.AGENT_TIMEOUT", timedelta(seconds=1))
        with pytest.raises(torch.distributed.DistNetworkError):
            etl.fit(make_model(), raw(8), backend="cpu")


def test_a_rank_that_does_not_know_where_to_meet_the_others_does_not_train_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched(monkeypatch, 1, 2)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name)
    with pytest.raises(ValueError, match=r"RANK=1 and WORLD_SIZE=2 .* without MASTER_ADDR and MASTER_PORT it would"):
        etl.fit(make_model(), raw(8), backend="cpu")


def test_ranks_meet_those_of_their_own_attempt_though_the_store_holds_earlier_ones() -> None:
    store = torch.distributed.HashStore()
    store.set("attempt", "ended while its ranks met")
    limit = timedelta(seconds=LIMIT_SECONDS)

    def attempt() -> str:
        with ThreadPoolExecutor(3) as ranks:
            # Rank 0 comes last: the others find the attempt before.
            found = [ranks.submit(agree_on_attempt, store, rank, 3, limit) for rank in (2, 1, 0)]
            (name,) = {each.result() for each in found}
        return name

    assert len({attempt() for _ in range(3)}) == 3
    with pytest.raises(torch.distributed.DistStoreError, match="rank 1 of 2 has waited 0 s for rank 0, and timed out"):
        agree_on_attempt(store, 1, 2, timedelta())


def test_batches_are_divided_unless_they_are_this_ranks_part() -> None:
    data = TensorDataset(torch.zeros(20, 3), torch.zeros(20))
    ranks = Ranks(1, 3)
    shard = ranks.share(raw(20))
    assert (shard.rank, shard.world_size) == (1, 3)
    assert ranks.share(shard) is shard
    asynchronous = ranks.share(etl.AsyncIterator(raw(20)))
    assert (asynchronous.rank, asynchronous.world_size) == (1, 3)
    with pytest.raises(ValueError, match="batches are the part of rank 0 of 2, but this is rank 1 of 3"):
        ranks.share(raw(20).shard(0, 2))
    for shuffle in (True, False):
        with pytest.raises(
            ValueError, match=r"each of 3 ranks would train on all records of this DataLoader.*Distributed"
        ):
            ranks.share(as_iterator(DataLoader(data, 4, shuffle=shuffle)))
    divided = as_iterator(DataLoader(data, 4, sampler=DistributedSampler(data, 3, 1)))
    assert ranks.share(divided) is divided
    with pytest.raises(ValueError, match="batches are the part of rank 2 of 3, but this is rank 1 of 3"):
        ranks.share(as_iterator(DataLoader(data, 4, sampler=DistributedSampler(data, 3, 2))))
    handed_on = as_iterator(DataLoader(etl.TorchDataset(raw(20).shard(1, 3)), batch_size=None))
    assert ranks.share(handed_on) is handed_on
    generated = as_iterator([(np.zeros((2, 3)), np.zeros(2))])
    assert ranks.share(generated) is generated
    assert Ranks().share(generated) is generated


def test_batches_of_another_library_are_taken_as_they_are_though_they_are_loaded_ahead() -> None:
    ranks, data = Ranks(1, 3), TensorDataset(torch.zeros(20, 3), torch.zeros(20))
    ahead = etl.AsyncIterator([(np.zeros((2, 3)), np.zeros(2))])
    for each in (ahead, etl.DeviceIterator(ahead, "cpu")):
        assert ranks.share(each) is each
    with pytest.raises(ValueError, match=r"would train on all records of this DataLoader: .*Distributed"):
        ranks.share(etl.AsyncIterator(DataLoader(data, 4)))
    view = etl.TorchDataset(raw(20))
    for whole in (view, DataLoader(view, batch_size=None)):
        name = type(whole).__name__
        with pytest.raises(ValueError, match=rf"all records of this {name}: make it of iterator.shard\(rank, "):
            ranks.share(as_iterator(whole))


def test_an_iterator_of_ones_own_that_cannot_be_divided_is_refused_by_name() -> None:
    class Own(BatchIterator):
        async_supported = True

    with pytest.raises(TypeError, match=r"Own has no method shard\(rank, world_size\), which would give each of 3"):
        Ranks(1, 3).share(Own())


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda batches: batches,
    "threads": etl.AsyncIterator,
    "device": lambda batches: etl.DeviceIterator(batches, "cpu"),
    "view": lambda batches: as_iterator(DataLoader(etl.TorchDataset(batches), batch_size=None)),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 4}, "rank 0 has seed=0, and rank 1 has seed=4"),
        ({"batch_size": 5}, "rank 0 has batch_size=4, and rank 1 has batch_size=5"),
        ({"drop_last": True}, "rank 0 has drop_last=False, and rank 1 has drop_last=True"),
        ({"count": 44}, "rank 0 has records=40, and rank 1 has records=44"),
        ({"epoch": 2}, "rank 0 has epoch=0, and rank 1 has epoch=2"),
        ({"uneven": "drop"}, "rank 0 has uneven='pad', and rank 1 has uneven='drop'"),
    ],
    ids=str,
)
def test_ranks_that_divide_records_otherwise_are_an_error_that_names_both_values(
    wrap: Any, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def part(rank: int, count: int = 40, batch_size: int = 4, epoch: int = 0, **more: Any) -> Any:
        uneven = more.pop("uneven", "pad")
        batches = raw(count, batch_size, **more).shard(rank, 2, uneven)
        batches.set_epoch(epoch)
        return wrap(batches)

    monkeypatch.setattr(Ranks, "gather", lambda _, mine: [mine, part(1).order_settings])
    Ranks(0, 2).check_order(part(0))
    monkeypatch.setattr(Ranks, "gather", lambda _, mine: [mine, part(1, **options).order_settings])
    with pytest.raises(ValueError, match=f"{OTHER_ORDER}: {message}"):
        Ranks(0, 2).check_order(part(0))


@pytest.mark.parametrize("name", ["plain", "threads", "device"])
def test_a_rank_that_has_looked_at_a_batch_before_begins_its_epoch_as_the_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, other = (WRAPPERS[name](raw(40).shard(rank, 2)) for rank in range(2))
    next(iter(looked))
    monkeypatch.setattr(Ranks, "gather", lambda _, mine: [mine, other.order_settings])
    Ranks(0, 2).check_order(looked)
    looked.load_state_dict(looked.state_dict())  # but a state that was loaded is where it begins
    with pytest.raises(ValueError, match="rank 0 has position=8, and rank 1 has position=0"):
        Ranks(0, 2).check_order(looked)


def test_ranks_with_other_records_or_another_distributed_sampler_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def part(rank: int, first: int = 0) -> Any:
        records = [{"features": np.zeros(2, np.float32), "label": first + label} for label in range(8)]
        return etl.RawIterator(records, NOTHING, 2).shard(rank, 2)

    monkeypatch.setattr(Ranks, "gather", lambda _, mine: [mine, part(1, 1).order_settings])
    with pytest.raises(ValueError, match="rank 1 has other records than rank 0: their records differ"):
        Ranks(0, 2).check_order(part(0))
    data = TensorDataset(torch.zeros(20, 3), torch.zeros(20))

    def loader(rank: int, seed: int = 0) -> Any:
        return etl.AsyncIterator(DataLoader(data, 4, sampler=DistributedSampler(data, 2, rank, seed=seed)))

    monkeypatch.setattr(Ranks, "gather", lambda _, mine: [mine, loader(1, 3).order_settings])
    with pytest.raises(ValueError, match="rank 0 has seed=0, and rank 1 has seed=3"):
        Ranks(0, 2).check_order(loader(0))


def test_ranks_that_would_stop_or_report_at_other_times_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    training: Any = SimpleNamespace(ranks=Ranks(0, 2), check_whole_model=lambda _: None)
    others = EarlyStopping(patience=5)._settings
    monkeypatch.setattr(Ranks, "gather", lambda _, mine: [mine, others])
    with pytest.raises(ValueError, match=r"settings of EarlyStopping, .* 0: {'patience': 3,.* 1: {'patience': 5,"):
        EarlyStopping(patience=3).training_started(training)
    monkeypatch.setattr(Ranks, "gather", lambda _, mine: [mine, 10])
    with pytest.raises(ValueError, match=r"the same frequency of PerformanceListener, .* rank 0: 1; rank 1: 10"):
        etl.PerformanceListener().training_started(training)


def test_a_shard_goes_on_at_the_state_that_was_loaded() -> None:
    whole = raw(40)
    for _, _ in zip(range(3), whole, strict=False):
        pass
    for make in (lambda: raw(40), lambda: etl.AsyncIterator(raw(40)), lambda: etl.DeviceIterator(raw(40), "cpu")):
        iterator: Any = make()
        iterator.load_state_dict(whole.state_dict())
        part = iterator.shard(0, 2)
        assert part.state_dict() == whole.state_dict()
        assert len(list(part)) == 4  # 28 records
        part.close()
        assert iterator.epoch == 0
        list(iterator)
        assert iterator.shard(1, 2).state_dict()["position"] == 0
        iterator.close()


def test_a_failure_is_reported_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv(ERROR_FILE, str(path))

    def ended_by_the_agent(_: Any, file: TextIO) -> None:
        file.write("{")
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(json, "dump", ended_by_the_agent)
        with pytest.raises(SystemExit):
            record_failure(ValueError("bad"), "rank 1 of 2")
    assert not path.exists()
    assert os.environ[ERROR_FILE] == str(path)
    record_failure(ValueError("bad"), "rank 1 of 2")
    assert json.loads(path.read_text())["message"]["message"] == "RankError: rank 1 of 2: ValueError: bad"
    assert list(tmp_path.iterdir()) == [path]


def test_more_ranks_than_devices_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(RuntimeError, match="3 ranks need as many CUDA devices, but there are 2"):
        fit_parallel(make_model, partial(raw, 8), workers=3, backend="cuda")
    with pytest.raises(ValueError, match="2 ranks cannot share the device of backend='cuda:1'"):
        fit_parallel(make_model, partial(raw, 8), workers=2, backend="cuda:1")
    launched(monkeypatch, 3, 4, LOCAL_RANK=3)
    with pytest.raises(RuntimeError, match="4 ranks on this machine need as many CUDA devices, but there are 2"):
        etl.fit(make_model(), raw(8), backend="cuda")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be a whole number of at least 1"),
        ({"averaging_frequency": 0}, "averaging_frequency must be a whole number of at least 1"),
        ({"prefetch_size": -1}, "prefetch_size must be a whole number of at least 0"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
        ({"restarts": -1}, "restarts must be a whole number of at least 0"),
        ({"backend": "tpu"}, "unknown backend 'tpu'"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parallel(partial(raw, 8), **options)


def test_what_cannot_be_carried_to_another_process_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(ValueError, match="cannot be carried to another process"):
        parallel(partial(raw, 8), loss=file.write)
