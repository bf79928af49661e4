"""The doctor examines one rank of a real training: under torchrun, and among those of `fit_parallel`."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import etl
from etl.doctor import Severity, examine
from etl.doctor.check import STEP_WITH_RANKS, Case
from etl.doctor.checks.ranks import WaitForRanks
from etl.doctor.memory_need import MemoryNeed
from etl.doctor.observation import Observation
from etl.doctor.rank import Rank
from etl.doctor.rank_waits import RankWaits, duration_outside
from etl.doctor.setup import StepSetup
from etl.doctor.steps import StepTimes
from etl.training import fit_parallel
from tests.doctor import rank_trainings
from tests.doctor.rank_trainings import SLOW_SECONDS, Examining
from tests.doctor_cases import Batches, mlp, quiet_machine
from tests.training.rank_jobs import make_model, raw
from tests.training.torchrun import launched, run_ranks

OF_RANKS = {"rank_waits", "learning_rate", "rank_batches"}


def findings(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return a saved examination, and its findings by check."""
    content = json.loads(path.read_text())
    return content, {each["check"]: each for each in content["findings"]}


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a torchrun in which rank 1 examined a model alone, and then both ranks a step."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(rank_trainings.__file__, folder)
    return folder


@pytest.mark.slow
def test_one_rank_examines_a_wrapped_model_while_the_other_computes(examined: Path) -> None:
    content, found = findings(examined / "model")
    cpus = sorted(os.sched_getaffinity(0))
    assert content["rank"] == {"rank": 1, "world_size": 2, "cpus": cpus, "sharing": 2}
    assert content["text"].startswith("examined: rank 1 of 2, on CPU")
    assert content["batches_per_epoch"] == 8
    assert found["rank_waits"]["severity"] == "not looked at"
    assert "trained a copy of the model alone" in found["rank_waits"]["found"]
    # Rank 0 keeps a CPU busy, and is not to be ended for it; nor is each rank to compute on all CPUs.
    busy = int((examined / "busy").read_text())
    assert busy not in [each["pid"] for each in content["machine"]["processes"]]
    assert found["threads"]["severity"] == "fine"
    if len(cpus) > 1:
        assert f"its part of {len(cpus)} that ranks share" in found["threads"]["evidence"]


@pytest.mark.slow
def test_advice_of_the_documents_for_several_ranks_comes_with_its_source(examined: Path) -> None:
    _, found = findings(examined / "model")
    rate = found["learning_rate"]
    assert (rate["severity"], rate["found"]) == ("note", "2 ranks train together")
    assert '"Deeplearning4j With GPUs"' in rate["evidence"]
    assert "Something around +20% should be a good starting value" in rate["evidence"]
    batches = found["rank_batches"]
    assert (batches["severity"], batches["found"]) == ("note", "batches of 4 records on each of 2 ranks")
    assert "larger batches for more ranks" in batches["remedy"]


@pytest.mark.slow
def test_waits_for_a_slow_rank_are_not_blamed_on_the_others_compute_or_loading(examined: Path) -> None:
    for slow in ("compute", "load"):
        (content, fast), (_, slowest) = (findings(examined / f"{slow}{rank}") for rank in range(2))
        assert content["seconds_per_batch"] >= SLOW_SECONDS / 2
        assert fast["rank_waits"]["severity"] == "serious"
        assert re.fullmatch(r"rank 0 waits [\d.]+ ms of a step for other ranks", fast["rank_waits"]["found"])
        assert fast["rank_waits"]["saves_seconds"] > 8 * SLOW_SECONDS / 2
        assert (slowest["rank_waits"]["saves_seconds"] or 0.0) < fast["rank_waits"]["saves_seconds"] / 2
        assert fast["loading"]["severity"] in ("fine", "note")
        # Steps of which one rank might take more than the other would wait forever.
        assert STEP_WITH_RANKS in fast["batch_size"]["found"]
        assert fast["rank_waits"]["trial_failed"] == STEP_WITH_RANKS


@pytest.mark.slow
def test_a_listener_examines_one_rank_of_fit_parallel_and_training_goes_on_as_without(tmp_path: Path) -> None:
    listeners = [Examining(tmp_path, rank=1)]
    result = fit_parallel(make_model, partial(raw, 40), backend="cpu", epochs=2, listeners=listeners)
    content, found = findings(tmp_path / "fit")
    assert content["rank"]["rank"] == 1
    assert content["rank"]["cpus"] == json.loads((tmp_path / "cpus").read_text())
    assert content["rank"]["sharing"] == (1 if len(os.sched_getaffinity(0)) > 1 else 2)
    assert found.keys() >= OF_RANKS
    alone = make_model()  # with the batches of both ranks at once
    assert result.scores == pytest.approx(etl.fit(alone, raw(40, 8), backend="cpu", epochs=2).scores, rel=1e-5)
    assert result.state is not None
    for name, tensor in alone.state_dict().items():
        torch.testing.assert_close(result.state[name], tensor, rtol=1e-5, atol=1e-6)


def test_a_model_of_which_each_rank_has_a_part_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, 0, 2)
    model = torch.nn.Sequential(mlp(units=64), torch.nn.SyncBatchNorm(4))
    with pytest.raises(ValueError, match="one rank cannot train this model alone"):
        examine(model, Batches(), backend="cpu")


def test_waits_that_the_profiler_does_not_show_are_not_said_to_be_none() -> None:
    need = MemoryNeed(peak_nbytes=1, data_nbytes=1, available_nbytes=1)
    waits = RankWaits(2.0, None)
    observation = Observation(StepTimes(), 0, None, torch.device("cuda:1"), [], 0, 0.0, need, None, waits)
    case = Case(quiet_machine(), StepSetup([], print), observation, Rank(1, 2, (0,)))
    found = WaitForRanks().look(case)
    assert found.severity is Severity.NOT_LOOKED_AT
    assert "except with gloo: waits for other ranks count as compute here" in found.found


def test_a_rank_says_its_cpus() -> None:
    assert str(Rank(0, 2, (3,))) == "rank 0 of 2, on CPU 3"
    assert str(Rank(1, 4, (0, 1, 2, 8), 2)) == "rank 1 of 4, on CPUs 0-2, 8, which 2 ranks share"


def test_time_beside_computation_is_not_a_wait() -> None:
    assert duration_outside([(1.0, 4.0), (3.0, 6.0)], [(0.0, 2.0), (5.0, 5.5)]) == pytest.approx(3.5)
    assert duration_outside([(1.0, 2.0)], [(0.0, 3.0)]) == 0.0
    assert duration_outside([], [(0.0, 3.0)]) == 0.0
