"""The models do not change, since the suites' history of compute would change with them."""

from __future__ import annotations

import hashlib

import pytest
import torch

import etl

IMAGES = (3, 32, 32)
CLASSES = 10
# Name, shape of a record, parameters, digest of the weights that seed 0 gives.
PINNED = [
    ("mlp", IMAGES, 855_050, "5307fe3599c51c39"),
    ("mlp", (7,), 70_410, "9b69c78f71c0b1b4"),
    ("lenet", (1, 28, 28), 431_080, "e488490be79c16e0"),
    ("lenet", IMAGES, 657_080, "bf7a2c42920fabbd"),
    ("residual", IMAGES, 79_770, "66f14d38f99168ed"),
    ("lstm", (20, 12), 73_994, "4e61405a35d5f91e"),
]


def digest(model: torch.nn.Module) -> str:
    """16 hexadecimal digits over the names and bytes of all parameters and buffers."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()[:16]


@pytest.mark.parametrize(("name", "shape", "count", "weights"), PINNED)
def test_parameters_and_their_initial_values_are_pinned(
    name: str, shape: tuple[int, ...], count: int, weights: str
) -> None:
    model = etl.models.create(name, shape, CLASSES)
    assert (sum(parameter.numel() for parameter in model.parameters()), digest(model)) == (count, weights)


@pytest.mark.parametrize("name", etl.models.MODELS)
def test_the_output_has_a_number_for_each_class_of_each_record(name: str) -> None:
    output = etl.models.create(name, IMAGES, 7)(torch.zeros(5, *IMAGES))
    assert output.shape == (5, 7)


@pytest.mark.parametrize("size", [(8, 8), (9, 31), (224, 224)])
def test_residual_takes_images_of_any_size_from_8_on(size: tuple[int, int]) -> None:
    model = etl.models.create("residual", (3, *size), CLASSES)
    assert model(torch.zeros(2, 3, *size)).shape == (2, CLASSES)


def test_lenet_takes_images_of_16_and_refuses_smaller_ones() -> None:
    assert etl.models.create("lenet", (1, 16, 16), CLASSES)(torch.zeros(2, 1, 16, 16)).shape == (2, CLASSES)
    for height, width in ((15, 16), (16, 15), (2, 2)):
        with pytest.raises(ValueError, match=f"LeNet needs images of at least 16 x 16, not {height} x {width}"):
            etl.models.create("lenet", (1, height, width), CLASSES)


def test_lstm_reads_images_as_steps_of_rows() -> None:
    model = etl.models.create("lstm", (1, 6, 4), CLASSES)
    rows = torch.rand(3, 6, 4)
    assert torch.equal(model(rows[:, None]), model(rows))
    # The order of rows matters, and that of columns is not taken for it.
    assert not torch.allclose(model(rows.flip(1)), model(rows))


@pytest.mark.parametrize("name", etl.models.MODELS)
def test_equal_seeds_give_equal_weights_and_others_do_not(name: str) -> None:
    torch.rand(3)  # wherever the global random state happens to be
    first, again, other = (digest(etl.models.create(name, IMAGES, CLASSES, seed)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("name", etl.models.MODELS)
def test_creating_a_model_leaves_the_global_random_state_as_it_was(name: str) -> None:
    before = torch.get_rng_state()
    etl.models.create(name, IMAGES, CLASSES, seed=123)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_model_is_refused_and_the_known_ones_listed() -> None:
    with pytest.raises(ValueError, match="unknown model 'vgg'; known: mlp, lenet, residual, lstm"):
        etl.models.create("vgg", IMAGES, CLASSES)
