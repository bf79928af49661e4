"""Compute: built-in models and a user's models start from equal weights; a simulated device only waits."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import etl
from etl.comparison.request.model_compute import Classes, Inference, Training, classes_of, make_model
from etl.comparison.request.settings import Settings
from etl.comparison.request.subset import Subset
from etl.comparison.run.workload import Workload
from etl.comparison.worker.make_compute import Simulated, StepError, make_compute
from etl.measuring.places import describe_error
from etl.sources import Record
from etl.training.compute import default_model
from tests.comparison_workloads import COLUMNS, make_workload

SHAPE, OUTPUTS = (3,), 2
Own = Callable[[str], Settings]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Own:
    """Return settings with the model `own_models:make`, from a module with this text in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def settings(text: str) -> Settings:
        (tmp_path / "own_models.py").write_text(f"import torch\n{text}\n")
        monkeypatch.delitem(sys.modules, "own_models", raising=False)
        sys.path_importer_cache.clear()
        return Settings("table.csv", model="own_models:make")

    return settings


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [each.detach().clone() for each in model.parameters()]


def batch_of(workload: Any) -> etl.Batch:
    with etl.RawIterator(workload.records, workload.pipeline, 10, dtype=workload.settings.dtype) as iterator:
        return next(iter(iterator))


def test_a_function_of_the_user_is_called_with_the_shape_and_the_number_of_outputs(own: Own) -> None:
    settings = own("def make(input_shape, outputs):\n    return torch.nn.Linear(input_shape[0], outputs)")
    model = make_model(settings, SHAPE, OUTPUTS)
    assert isinstance(model, torch.nn.Linear)
    assert (model.in_features, model.out_features) == (3, 2)


@pytest.mark.parametrize(
    "text",
    [
        "def make():\n    return torch.nn.Linear(7, 5)",
        "def make(*, width=7):\n    return torch.nn.Linear(width, 5)",
        "class make(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(7, 5)",
    ],
    ids=["function", "keywords", "class"],
)
def test_what_takes_nothing_is_called_with_nothing(own: Own, text: str) -> None:
    model = make_model(own(text), SHAPE, OUTPUTS)
    assert isinstance(model, torch.nn.Linear)
    assert (model.in_features, model.out_features) == (7, 5)


def test_what_takes_any_number_is_called_with_both(own: Own) -> None:
    settings = own("def make(*arguments):\n    return torch.nn.Linear(arguments[0][0], arguments[1])")
    assert weights(make_model(settings, SHAPE, OUTPUTS))[0].shape == (2, 3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "AttributeError: module 'own_models' has no attribute 'make'"),
        ("def make(:", "SyntaxError"),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("make = 3", "it is a int, which is not callable"),
        ("def make(shape, outputs):\n    return torch.nn.Linear(shape, outputs, 'up')", "TypeError"),
        ("def make(shape):\n    return shape", "with the shape of a record, (3,), and the number of outputs, 2"),
        ("def make():\n    return torch.zeros(3)", "the function returned a Tensor, not a torch.nn.Module"),
        ("def make():\n    return torch.nn.Flatten()", "the model has no parameters to train"),
    ],
    ids=lambda each: each.partition("\n")[0][:40],
)
def test_errors_name_the_model_and_what_is_wrong_with_it(own: Own, text: str, reason: str) -> None:
    with pytest.raises(ValueError) as raised:
        make_model(own(text), SHAPE, OUTPUTS)
    assert str(raised.value).startswith("--model own_models:make: ")
    assert reason in str(raised.value)


@pytest.mark.parametrize("name", ["nowhere_to_be_found:make", ":make", "own_models:", "turbo"])
def test_an_unknown_name_is_in_the_error(own: Own, name: str) -> None:
    own("def make():\n    return torch.nn.Linear(3, 2)")
    with pytest.raises(ValueError, match=name):
        make_model(Settings("table.csv", model=name), SHAPE, OUTPUTS)


@pytest.mark.parametrize("model", ["mlp", "own"])
def test_equal_seeds_give_equal_weights_and_leave_the_random_state_as_it_was(own: Own, model: str) -> None:
    settings = own("def make(input_shape, outputs):\n    return torch.nn.Linear(input_shape[0], outputs)")
    name = "own_models:make" if model == "own" else model
    torch.manual_seed(11)
    expected = torch.random.get_rng_state()
    made = [weights(make_model(Settings(settings.source, model=name, seed=seed), SHAPE, OUTPUTS)) for seed in (5, 5, 6)]
    assert all(torch.equal(one, other) for one, other in zip(made[0], made[1], strict=True))
    assert not torch.equal(made[0][0], made[2][0])
    assert torch.equal(torch.random.get_rng_state(), expected)


@pytest.mark.parametrize(
    ("shape", "name"),
    [((4,), "mlp"), ((20, 3), "lstm"), ((1, 28, 28), "lenet"), ((3, 32, 32), "residual"), ((3, 224, 224), "residual")],
)
def test_the_usual_model_is_that_for_the_shape_of_a_record(shape: tuple[int, ...], name: str) -> None:
    assert default_model(shape) == name


def test_records_of_single_numbers_need_a_model_of_the_users_own() -> None:
    with pytest.raises(ValueError, match=r"no built-in model takes single numbers: .* --model"):
        make_model(Settings("table.csv"), (), OUTPUTS)


def test_training_is_the_same_for_the_same_batches_to_the_bit(tmp_path: Path) -> None:
    workload = make_workload(tmp_path, backend="cpu")
    batch = batch_of(workload)
    scores = []
    for _ in range(2):
        compute = make_compute(workload, batch)
        assert isinstance(compute, Training)
        assert compute.score is None
        for _ in range(3):
            compute.step(batch)
        scores.append((compute.weights, compute.score))
    assert scores[0] == scores[1]
    assert len(scores[0][0]) == 32


def test_dropout_draws_the_same_whatever_a_loader_has_drawn(tmp_path: Path, own: Own) -> None:
    layers = "torch.nn.Linear(shape[0], 8), torch.nn.Dropout(), torch.nn.Linear(8, outputs)"
    name = own(f"def make(shape, outputs):\n    return torch.nn.Sequential({layers})").model
    workload = make_workload(tmp_path, backend="cpu", model=name)
    batch, scores = batch_of(workload), []
    for _ in range(3):
        torch.rand(1)
        compute = make_compute(workload, batch)
        compute.step(batch)
        scores.append(compute.score)
    assert scores[1:] == scores[:-1]


def test_training_lowers_the_loss_of_a_batch(tmp_path: Path) -> None:
    workload = make_workload(tmp_path, backend="cpu")
    batch = batch_of(workload)
    compute = make_compute(workload, batch)
    compute.step(batch)
    first = compute.score
    for _ in range(10):
        compute.step(batch)
    assert first is not None
    assert compute.score is not None
    assert compute.score < first


def test_other_weights_have_another_digest(tmp_path: Path) -> None:
    workloads = [make_workload(tmp_path, backend="cpu", seed=seed) for seed in (0, 1)]
    one, other = (make_compute(workload, batch_of(workload)) for workload in workloads)
    assert one.weights != other.weights


def test_targets_are_trained_for_by_the_squared_error(tmp_path: Path, own: Own) -> None:
    name = own(
        "def make(input_shape, outputs):\n"
        "    model = torch.nn.Linear(input_shape[0], outputs)\n"
        "    torch.nn.init.zeros_(model.weight)\n"
        "    torch.nn.init.zeros_(model.bias)\n"
        "    return model"
    ).model
    workload = make_workload(
        tmp_path,
        backend="cpu",
        model=name,
        table_options={"label": "column0", "regression": True, "features": ["column1"]},
    )
    batch = batch_of(workload)
    compute = make_compute(workload, batch)
    compute.step(batch)
    # Weights of 0 foretell 0.
    assert compute.score == pytest.approx(float(np.mean(np.square(batch.labels))), rel=1e-6)


def test_classes_tell_how_many_outputs_there_are_and_without_them_the_labels_do(tmp_path: Path, own: Own) -> None:
    settings = own(
        "seen = []\n"
        "def make(input_shape, outputs):\n"
        "    seen.append((input_shape, outputs))\n"
        "    return torch.nn.Linear(input_shape[0], outputs)"
    )
    named = make_workload(tmp_path, backend="cpu", model=settings.model)
    make_compute(named, batch_of(named))
    numbers = tmp_path / "numbers.csv"
    numbers.write_text("a,label\n" + "".join(f"{row}.5,{row % 6}\n" for row in range(30)))
    numbered = Workload(
        Settings(str(numbers), backend="cpu", model=settings.model, table_options={"label": "label"}), tmp_path, 1
    )
    make_compute(numbered, batch_of(numbered))
    assert sys.modules["own_models"].seen == [((COLUMNS,), 3), ((1,), 6)]


def labelled(tmp_path: Path, labels: Any) -> Workload:
    """Return a workload with a record for each label, whose features are given by it."""
    workload = make_workload(tmp_path, rows=len(labels), backend="cpu", model="mlp", batch_size=8)
    features = np.random.default_rng(0).standard_normal((len(labels), 4), np.float32)
    workload.source = workload.records = [  # type: ignore[assignment]
        {"features": row, "label": label} for row, label in zip(features, labels, strict=True)
    ]
    workload.pipeline = etl.Pipeline([])
    return workload


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.array([0, 2, 9, 2], np.uint8), Classes(10)),
        ([False, True, True, False], Classes(2)),
        (np.array([[1], [0], [2], [1]], np.int32), Classes(3)),
        (np.array([0, 2, 1, 0], np.uint64), Classes(3)),
        ([1, -1, 1, 1], Classes(2, [-1, 1])),
        ([0, 1, -100, 1], Classes(2)),
        (np.array([7, 5, 1000, 5], ">i4"), Classes(3, [5, 7, 1000])),
        ([10**12, 10**6, 10**12 + 1, 10**6], Classes(3, [10**6, 10**12, 10**12 + 1])),
        (np.array([2**63 + 1, 2**64 - 1, 1, 1], np.uint64), Classes(3, [1, 2**63 + 1, 2**64 - 1])),
    ],
)
def test_labels_of_any_integers_are_trained_on_with_as_many_outputs_as_classes(
    tmp_path: Path, labels: Any, classes: Classes
) -> None:
    workload = labelled(tmp_path, labels)
    batch = batch_of(workload)
    assert classes_of(workload, np.asarray(batch.labels)) == classes
    scores = []
    for each in (batch, (torch.from_numpy(batch.features), np.asarray(labels)[::-1][::-1])):
        compute = make_compute(workload, each)
        first = [compute.step(each) or compute.score for _ in range(5)]
        assert first[-1] < first[0]
        scores.append(first)
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    ("labels", "of_batch", "said"),
    [
        (
            range(2**16 + 1),
            [1, 2],
            "'label' of .*, of dtype int64, holds more than 65,536 different numbers, .* --step",
        ),
        ([1, 2.5], [1, 2], "'label' of record 1 of .* has dtype float64, and other labels are integers; .* --step"),
        (np.zeros((3, 2), int), np.zeros((3, 2), int), r"of dtype int64 have shape \(3, 2\), .* \(--step\)"),
        ([0.0, np.inf], [0.0, np.inf], r"labels of dtype float64 hold inf; .* \(--step\)"),
        ([0, 1], ["a", "b"], "the labels of a batch have dtype <U1, which torch lacks: convert them"),
        (
            [-1, 1],
            [0, 1],
            r"labels of dtype int64 hold 0, which is not among the 2 labels of the source; .* \(--step\)",
        ),
    ],
)
def test_other_labels_are_refused(tmp_path: Path, labels: Any, of_batch: Any, said: str) -> None:
    workload = labelled(tmp_path, labels)
    batch = etl.Batch(np.zeros((len(of_batch), 4), np.float32), np.asarray(of_batch))
    with pytest.raises(ValueError, match=said):
        make_compute(workload, batch).step(batch)


def test_a_data_set_may_call_the_number_of_its_classes_so(tmp_path: Path) -> None:
    class Numbered(list[Any]):
        classes = 3

    workload = labelled(tmp_path, [0, 2, 1, 0])
    workload.source = Numbered({"features": np.zeros(4, np.float32), "label": label} for label in (0, 2, 1, 0))
    assert classes_of(workload, np.zeros(4, np.int64)) == Classes(3)


def test_classes_that_ranks_find_at_once_appear_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, replace, seen = labelled(tmp_path, [0, 2, 1, 0]), os.replace, []

    def look_and_replace(unfinished: str, file: Path) -> None:
        seen.append(file.exists())
        replace(unfinished, file)

    monkeypatch.setattr(os, "replace", look_and_replace)
    assert classes_of(workload, np.zeros(4, np.int64)) == Classes(3)
    assert seen == [False]


def test_a_last_batch_of_one_record_is_refused_at_once_by_a_model_that_normalises(tmp_path: Path, own: Own) -> None:
    layers = "torch.nn.Linear(shape[0], 4), torch.nn.BatchNorm1d(4)"
    name = own(f"def make(shape, outputs):\n    return torch.nn.Sequential({layers})").model
    fits, one_left = (make_workload(tmp_path, rows=rows, backend="cpu", model=name) for rows in (20, 21))
    make_compute(fits, batch_of(fits))
    with pytest.raises(ValueError, match=r"cannot be trained on a batch of one record, .* \(--batch-size\)"):
        make_compute(one_left, batch_of(one_left))


def test_outputs_are_counted_once_and_in_the_whole_source(tmp_path: Path) -> None:
    chosen = Subset(range(30), 5, seed=0).indices.tolist()
    highest = next(row for row in range(30) if row not in chosen)
    table = tmp_path / "numbers.csv"
    table.write_text("a,label\n" + "".join(f"{row}.5,{9 if row == highest else 1}\n" for row in range(30)))
    settings = Settings(str(table), backend="cpu", table_options={"label": "label"})
    first, other = (Workload(settings, tmp_path, 1) for _ in range(2))
    first.select(5)
    digests = [make_compute(first, batch_of(first)).weights]

    class Unread:
        def __len__(self) -> int:
            return 30

        def __getitem__(self, index: int) -> Record:
            raise AssertionError("it was read before")

    batch = batch_of(other)
    other.source = Unread()  # type: ignore[assignment]
    digests.append(make_compute(other, batch).weights)
    ten = make_model(Settings(str(table), model="mlp"), (1,), 10)
    digests.append(Training(ten, etl.backend("cpu"), "float32", batch.labels).weights)
    assert len(set(digests)) == 1


def test_records_without_labels_can_be_waited_for_and_not_trained_on(tmp_path: Path) -> None:
    workload = make_workload(tmp_path, table_options={"features": ["column0", "column1"]})
    batch = batch_of(workload)
    message = r"has no labels to train on: .* --label, or label= of the source, .* --compute simulated:20ms"
    with pytest.raises(ValueError, match=message):
        make_compute(workload, batch)
    waiting = make_workload(tmp_path, table_options={"features": ["column0"]}, compute="simulated:5ms")
    assert isinstance(make_compute(waiting, batch_of(waiting)), Simulated)


def test_inference_needs_no_labels_and_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    unlabelled = {"features": ["column0", "column1"]}
    workload = make_workload(tmp_path, backend="cpu", compute="inference", table_options=unlabelled)
    batch = batch_of(workload)
    assert batch.labels is None
    computes = [make_compute(workload, batch) for _ in range(2)]
    for compute, steps in zip(computes, (1, 3), strict=True):
        assert isinstance(compute, Inference)
        assert compute.score is None
        for _ in range(steps):
            compute.step(batch)
    assert computes[0].weights == computes[1].weights
    assert computes[0].score == computes[1].score
    other = etl.Batch(np.asarray(batch.features) + 1, None)
    computes[1].step(other)
    assert computes[0].score != computes[1].score


def test_inference_is_the_model_in_evaluation_mode_without_gradients(tmp_path: Path, own: Own) -> None:
    name = own(
        "class make(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "    def forward(self, features):\n"
        "        assert torch.is_inference_mode_enabled() and not self.training\n"
        "        return {'outputs': (features, 2 * features), 'more': None}"
    ).model
    workload = make_workload(tmp_path, backend="cpu", compute="inference", model=name)
    batch = batch_of(workload)
    compute = make_compute(workload, batch)
    compute.step(batch)
    assert compute.score == pytest.approx(2.5 * float(np.mean(np.square(batch.features))), rel=1e-6)


def test_training_and_inference_use_the_same_model(tmp_path: Path) -> None:
    workloads = [make_workload(tmp_path, backend="cpu", compute=each) for each in ("training", "inference")]
    one, other = (make_compute(workload, batch_of(workload)) for workload in workloads)
    assert one.weights == other.weights


def test_a_simulated_device_has_no_score_no_weights_and_no_device() -> None:
    simulated = Simulated(0.003)
    assert (simulated.score, simulated.weights, simulated.device) == (None, "", "none")


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        ({"compute": "simulated:5ms"}, False),
        ({"compute": "simulated:5ms,sync"}, True),
        ({"compute": "simulated:5ms", "sync_every_step": True}, True),
    ],
)
def test_the_loop_waits_for_a_step_only_if_it_is_to(tmp_path: Path, settings: dict[str, Any], waits: bool) -> None:
    workload = make_workload(tmp_path, **settings)
    batch = batch_of(workload)
    simulated = make_compute(workload, batch)
    started = time.perf_counter()
    simulated.step(batch)
    came_back = time.perf_counter()
    (span,) = simulated.finish()
    assert (came_back >= span[1]) is waits
    assert span[0] >= started


STEPS = """
def of_mappings(task):
    def step(batch):
        return batch["image"].mean()
    return step

def without_a_key(task):
    def step(batch):
        return {}["image"]
    return step

def not_made(task):
    return task.model
"""


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (
            "of_mappings",
            StepError,
            r"TypeError: tuple indices .*, at own_models.py:5 \(step\); its batch is \(float32 ",
        ),
        ("without_a_key", ValueError, r"KeyError: 'image', at own_models.py:10 \(step\); its batch is \(float32 "),
        ("not_made", StepError, r"AttributeError: .* no attribute 'model', at own_models.py:14 \(not_made\)$"),
    ],
)
def test_an_error_of_a_step_of_the_user_has_its_place_and_its_batch(
    tmp_path: Path, own: Own, name: str, kind: type[Exception], message: str
) -> None:
    own(STEPS)
    workload = make_workload(tmp_path, step=f"own_models:{name}")
    batch = workload.collate(batch_of(workload))
    with pytest.raises(kind, match=f"^{message}") as raised:
        make_compute(workload, batch).step(batch)
    assert describe_error(raised.value).count("own_models.py") == 1
