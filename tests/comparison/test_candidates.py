"""Candidates: which of them a comparison has, and what each is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etl.comparison.settings import Candidate, Settings, Threads
from etl.comparison.workload import Workload
from tests.comparison_workloads import make_workload


def test_a_candidate_comes_back_from_json_as_it_was() -> None:
    candidate = Candidate("presaved", "hdf5", "resize")
    assert Candidate.from_json(json.loads(json.dumps(candidate.to_json()))) == candidate


def test_a_strategy_with_a_store_is_compared_in_every_format_and_named_by_it(tmp_path: Path) -> None:
    workload = make_workload(tmp_path, strategies=("raw", "presaved"), formats=("npy", "hdf5"))
    names = [workload.name(each) for each in workload.candidates()]
    assert names == ["raw", "presaved:npy", "presaved:hdf5"]


def test_stages_are_cut_for_the_last_strategy_with_a_store_and_for_none_without(photographs: Path) -> None:
    workload = Workload(Settings(str(photographs), size=32), photographs, 2)
    cuts = workload.stage_candidates()
    assert {each.strategy for each in cuts} == {"async-presaved"}
    assert [each.stage for each in cuts] == ["read", "decode", "resize", "channels_first", "normalise"]
    names = [workload.name(each) for each in cuts]
    assert names[2] == "async-presaved"
    assert names[1] == "async-presaved@decode"
    assert Workload(Settings(str(photographs), strategies=("raw",)), photographs, 2).stage_candidates() == []


def test_a_stage_that_the_pipeline_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--until decode: the pipeline has read"):
        make_workload(tmp_path, until="decode")


def test_all_candidates_share_the_same_cpus(tmp_path: Path) -> None:
    workload = make_workload(tmp_path, cpus=4)
    assert workload.threads(Candidate("raw"), False) == Threads(4, 0)
    assert workload.threads(Candidate("async-raw"), False) == Threads(2, 2)
    assert workload.threads(Candidate("async-raw"), True) == Threads(1, 3)
    assert make_workload(tmp_path, cpus=4, compute="simulated:5ms").threads(Candidate("async-raw"), False) == Threads(
        1, 4
    )
    assert make_workload(tmp_path, cpus=4, prefetch_size=0).threads(Candidate("async-raw"), False) == Threads(4, 0)


def test_plain_computes_with_as_many_threads_as_were_seen_to_be_fastest(tmp_path: Path) -> None:
    workload = make_workload(tmp_path, cpus=4)
    workload.plain_compute_threads = 2
    assert workload.threads(Candidate("presaved", "npy", "read"), False) == Threads(2, 0)
