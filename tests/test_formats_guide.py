"""The pages on formats: their programs read the test vectors, which versions long ago have written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

import presave
from tests import golden

DOCS = Path(__file__).parents[1] / "docs"


def names_of(page: str) -> dict[str, Any]:
    """Return what the only program of a page defines."""
    (program,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102 - the very text that readers copy
    return names


def test_a_store_is_read_as_its_page_says() -> None:
    found = names_of("store-format.md")["read"](golden.FOLDER / "squares.store")
    records = golden.Squares()
    for index in range(golden.RECORDS):
        assert found["label"][index] == index
    # The store holds what the stages made of the images, which are of the same size.
    assert found["features"].shape == (golden.RECORDS, *records[0]["features"].shape)
    assert all(np.array_equal(found["features"][index], records[index]["features"]) for index in range(golden.RECORDS))


def test_a_store_without_its_second_shard_is_read_as_its_page_says(tmp_path: Path) -> None:
    lengths = (4, 4, 5, 5, 4, 4)  # all records of the second shard differ in shape from the first record
    records = [{"features": np.full(each, index, np.float32), "label": index} for index, each in enumerate(lengths)]
    with presave.write(tmp_path / "gap.store", records, shard_nbytes=48, on_error="skip") as store:
        names = [file.name for shard in store.manifest.shards for file in shard.files]
    assert names == ["features-00000.npy", "label-00000.npy", "features-00002.npy", "label-00002.npy"]
    assert names_of("store-format.md")["read"](tmp_path / "gap.store")["label"].tolist() == [0, 1, 4, 5]


def test_the_order_after_a_state_is_that_of_its_page() -> None:
    order = names_of("state-format.md")["order"]
    cases = json.loads((golden.FOLDER / "states.json").read_text())
    for name in ("raw", "presaved", "async", "in order"):
        state, rest = cases[name]["state"], cases[name]["rest"]
        assert order(state, state["epoch"])[state["position"] :].tolist() == [each for batch in rest for each in batch]


def test_the_example_of_a_state_is_the_first_test_vector() -> None:
    page = (DOCS / "state-format.md").read_text()
    first = json.loads((golden.FOLDER / "states.json").read_text())["raw"]
    (example,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert json.loads(example) == first["state"]
    assert [json.loads(each) for each in re.findall(r"`(\[[\d, ]+\])`", page)] == first["rest"]
