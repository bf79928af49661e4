"""Some records of a source, chosen at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from etl.sources.record import Record, source_name


class Subset:
    """`count` records of `source`, in its order, the same ones for the same seed; all of them where it has no more.

    What the source says of its records (`classes`, `ragged`, `lengths`, `describe`) holds for these, too.
    """

    def __init__(self, source: Any, count: int, seed: int) -> None:
        self.source = source
        self.name = source_name(source)
        every = np.arange(len(source))
        chosen = np.random.default_rng(seed).choice(every, count, replace=False) if count < len(every) else every
        self.indices = np.sort(chosen)
        for name in ("classes", "ragged"):
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Record:
        """Record `index` of the subset."""
        record: Record = self.source[int(self.indices[index])]
        return record

    def __getattr__(self, name: str) -> Any:
        # A source that knows no lengths must not seem to know them.
        if name == "lengths" and "source" in self.__dict__:
            lengths = self.source.lengths
            if isinstance(lengths, dict):
                return {field: np.asarray(values)[self.indices] for field, values in lengths.items()}
            return np.asarray(lengths)[self.indices]
        raise AttributeError(name)

    def describe(self, index: int) -> str:
        """How messages call record `index` of the subset."""
        number = int(self.indices[index])
        describe = getattr(self.source, "describe", None)
        return f"record {number}, {describe(number)}" if describe is not None else f"record {number}"
