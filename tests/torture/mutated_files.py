"""All kinds of files that are mutated."""

from __future__ import annotations

from pathlib import Path

from tests.torture.attempts import Attempts
from tests.torture.mutated_images import IMAGES
from tests.torture.mutated_input import attempts
from tests.torture.mutated_sources import SOURCES
from tests.torture.mutated_stores import STORES

INPUTS = {**IMAGES, **SOURCES, **STORES}


def attempts_at(name: str, folder: Path) -> Attempts:
    """Those at the kind called `name`, made below `folder`."""
    return attempts(name, INPUTS[name], folder)
