"""Mutated inputs of one kind, and what reading them may come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.torture.attempts import Attempts, check_names
from tests.torture.mutations import mutate

READ, REFUSED = "read", "refused as documented"


@dataclass(frozen=True)
class Input:
    """Small files of one kind, and `read`, which raises what is documented for those that are none.

    `documented` are the errors that it may raise; their text names `named`. `repair` makes checksums fit again, without
    which most mutations would come to nothing but a wrong checksum.
    """

    corpus: Sequence[bytes]
    read: Callable[[bytes], object]
    documented: tuple[type[Exception], ...] = (ValueError,)
    named: str = ""
    repair: Callable[[bytes], bytes] = bytes
    mutate: Callable[[Random, bytes], bytes] | None = None

    def mutated(self, name: str, number: int) -> bytes:
        random = Random(f"{name} {number}")
        content = random.choice(self.corpus)
        if self.mutate is not None and random.random() < 0.5:
            return self.mutate(random, content)
        mutated = mutate(random, content, self.corpus)
        return self.repair(mutated) if random.random() < 0.5 else mutated

    def attempt(self, content: bytes) -> str:
        try:
            return REFUSED if self.read(content) == REFUSED else READ
        except self.documented as error:
            check_names(error, self.named)
            return REFUSED


def attempts(name: str, make: Callable[[Path], Input], folder: Path) -> Attempts:
    """Attempts at the input that `make` makes below a folder."""
    made = make(folder)
    return Attempts(
        lambda number: made.attempt(made.mutated(name, number)), lambda number: f"input: {made.mutated(name, number)!r}"
    )


def writer(file: Path, read: Callable[[], object]) -> Callable[[bytes], object]:
    """Reads contents that it writes to `file` first."""

    def write(content: bytes) -> object:
        file.write_bytes(content)
        return read()

    return write
