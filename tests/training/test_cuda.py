"""Backend "cuda" on a real device: batches arrive whole, and training equals that of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import etl
from etl.measuring.device import peak_device_memory
from etl.sources import Record
from etl.stages.dtypes import DTYPES
from etl.training import Performance

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

# Enough for the copies of several batches to be under way at once.
LARGE = (64, 3, 224, 224)


def numbered(shape: tuple[int, ...], number: int) -> etl.Batch:
    """A batch of which every value is `number`."""
    return etl.Batch(np.full(shape, number, np.float32), np.full(shape[0], number))


def records(count: int) -> list[Record]:
    random = np.random.default_rng(0)
    return [
        {"features": random.standard_normal((1, 28, 28)).astype(np.float32), "label": number % 10}
        for number in range(count)
    ]


def test_the_peak_of_device_memory_is_what_torch_gave_out() -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = peak_device_memory()
    block = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    del block
    assert before is not None
    assert (peak_device_memory() or 0) >= before + (64 << 20)


@pytest.mark.parametrize("dtype", DTYPES)
def test_features_of_every_dtype_arrive_with_their_values(dtype: str) -> None:
    features = np.random.default_rng(1).standard_normal((5, 3, 4)).astype(DTYPES[dtype])
    put = etl.backend("cuda").put(etl.Batch(features, np.arange(5)))
    assert put.features.device.type == put.labels.device.type == "cuda"
    assert put.features.dtype == getattr(torch, dtype)
    assert put.features.double().cpu().numpy().tolist() == features.astype(np.float64).tolist()
    assert put.labels.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.uint8),
        np.array([True, False, True]),
        np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(0, 2, 1),
        np.empty((0, 3), np.float32),
    ],
    ids=["uint8", "bool", "not contiguous", "empty"],
)
def test_arrays_of_any_kind_arrive(array: np.ndarray) -> None:
    put = etl.backend("cuda").put(etl.Batch(array, None))
    assert put.labels is None
    np.testing.assert_array_equal(put.features.cpu().numpy(), array)


def test_tuples_and_masks_arrive_in_their_places() -> None:
    arrays = [np.full((2, 3), number, np.float32) for number in range(5)]
    batch = etl.Batch((arrays[0], arrays[1]), (arrays[2],), features_mask=arrays[3], labels_mask=arrays[4])
    put = etl.backend("cuda").put(batch)
    assert isinstance(put.features, tuple)
    assert [tensor.mean().item() for tensor in put.arrays()] == [0, 1, 2, 3, 4]
    assert put.labels_mask.mean().item() == 4


def test_a_batch_arrives_in_the_form_of_a_loader() -> None:
    features, labels = etl.backend("cuda").put({"image": np.ones((2, 3), np.float32), "label": np.array([1, 0])})
    assert features.is_cuda
    assert labels.tolist() == [1, 0]


def test_arrays_may_be_overwritten_as_soon_as_put_returns() -> None:
    backend = etl.backend("cuda")
    features = np.empty(LARGE, np.float32)
    kept = []
    for number in range(6):
        features[...] = number
        kept.append(backend.put(etl.Batch(features, None)).features)
        features[...] = -1
    assert [(tensor == number).all().item() for number, tensor in enumerate(kept)] == [True] * 6


def test_batches_in_flight_do_not_mix_while_the_device_computes() -> None:
    backend = etl.backend("cuda")
    busy = torch.ones(4096, 4096, device="cuda")
    totals = []
    for number in range(8):
        busy = (busy @ busy).clamp(max=1)  # so that copies are given to the device long before they are used
        features = backend.put(numbered(LARGE, number)).features
        totals.append((features * busy[0, 0]).double().mean())
        del features  # its memory goes back to the allocator before the device has read it
    assert [total.item() for total in totals] == list(range(8))


def test_batches_of_different_sizes_follow_one_another() -> None:
    backend = etl.backend("cuda")
    sizes = [4, 64, 1, 64, 65, 2, 128, 128, 3]
    put = [backend.put(numbered((size, 1000), number)) for number, size in enumerate(sizes)]
    for number, (size, batch) in enumerate(zip(sizes, put, strict=True)):
        assert batch.features.shape == (size, 1000)
        assert (batch.features == number).all().item()
        assert (batch.labels == number).all().item()


def test_after_synchronize_all_work_is_done() -> None:
    backend = etl.backend("cuda")
    busy = torch.ones(4096, 4096, device="cuda")
    for _ in range(20):
        busy = (busy @ busy).clamp(max=1)
    done = torch.cuda.Event()
    done.record()
    backend.synchronize()
    assert done.query()


@pytest.mark.parametrize("name", ["mlp", "lenet", "residual", "lstm"])
def test_a_fit_has_about_the_scores_of_the_cpu(name: str) -> None:
    def scores(backend: str) -> list[float]:
        iterator = etl.AsyncIterator(etl.RawIterator(records(100), etl.Pipeline([]), 16, shuffle=True))
        model = etl.models.create(name, (1, 28, 28), 10)
        result = etl.fit(model, iterator, backend=backend, epochs=2)
        assert {parameter.device.type for parameter in model.parameters()} == {backend}
        return result.scores

    # Convolutions run in TF32, 10 bits of mantissa, where the device has it.
    np.testing.assert_allclose(scores("cuda"), scores("cpu"), rtol=2e-2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_trains(dtype: str) -> None:
    iterator = etl.RawIterator(records(32), etl.Pipeline([]), 8, dtype=dtype)
    result = etl.fit(etl.models.create("lenet", (1, 28, 28), 10), iterator, backend="cuda", learning_rate=0.001)
    assert np.isfinite(result.scores).all()


def test_the_device_is_named_in_reports_and_its_times_hold_its_work() -> None:
    lines: list[str] = []
    reports: list[Performance] = []
    listener = etl.PerformanceListener(report_device=True, output=lines.append, on_report=reports.append)
    iterator = etl.RawIterator(records(32), etl.Pipeline([]), 8)
    etl.fit(etl.models.create("mlp", (1, 28, 28), 10), iterator, backend="cuda", listeners=[listener])
    assert all(line.startswith("device: cuda:0; ETL") for line in lines)
    assert all(report.compute_seconds > 0 for report in reports)


def test_auto_takes_the_device_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BACKEND_PRIORITY_CPU", raising=False)
    monkeypatch.delenv("BACKEND_PRIORITY_GPU", raising=False)
    assert etl.backend().name == "cuda"


def test_creating_a_model_leaves_the_random_state_of_the_device_as_it_was() -> None:
    before = torch.cuda.get_rng_state()
    etl.models.create("mlp", (4,), 2, seed=123)
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_batches_copied_ahead_arrive_whole_and_finished_as_on_the_cpu() -> None:
    random = np.random.default_rng(0)
    images = [
        {"features": random.integers(0, 256, (64, 64, 3), np.uint8), "label": number % 10} for number in range(200)
    ]
    pipeline = etl.Pipeline([etl.stages.ChannelsFirst(), etl.stages.Normalise()])
    expected = list(etl.RawIterator(images, pipeline, 32, shuffle=True))
    below = etl.AsyncIterator(etl.RawIterator(images, etl.Pipeline([]), 32, shuffle=True))
    busy = torch.ones(2048, 2048, device="cuda")
    for found, batch in zip(etl.DeviceIterator(below, "cuda", finish=pipeline), expected, strict=True):
        busy = (busy @ busy).clamp(max=1)  # so that the next copy runs beside compute
        np.testing.assert_array_equal(found.features.cpu().numpy(), batch.features)
        np.testing.assert_array_equal(found.labels.cpu().numpy(), batch.labels)


def test_memory_of_the_loaders_is_page_locked_below_a_device_iterator() -> None:
    images = [{"features": np.full((64, 64, 3), number, np.uint8)} for number in range(64)]
    below = etl.RawIterator(images, etl.Pipeline([]), 32)
    device = etl.DeviceIterator(below, "cuda")
    assert all(torch.from_numpy(batch.features).is_pinned() for batch in below)
    assert [batch.features[:, 0, 0, 0].tolist() for batch in device] == [list(range(32)), list(range(32, 64))]


def test_tensors_of_any_loader_that_are_on_the_device_are_not_copied() -> None:
    class Looking(torch.nn.Linear):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            self.seen = features.data_ptr()
            return super().forward(features)

    model, features = Looking(3, 2), torch.ones(4, 3, device="cuda")
    result = etl.fit(model, [(features, torch.zeros(4, dtype=torch.int64))], backend="cuda")
    assert model.seen == features.data_ptr()
    assert result.samples == 4
