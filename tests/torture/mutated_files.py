"""All kinds of files that are mutated."""

from __future__ import annotations

from pathlib import Path

from attempts import Attempts
from mutated_images import IMAGES
from mutated_input import attempts
from mutated_sources import SOURCES
from mutated_stores import STORES

INPUTS = {**IMAGES, **SOURCES, **STORES}


def attempts_at(name: str, folder: Path) -> Attempts:
    """Those at the kind called `name`, made below `folder`."""
    return attempts(name, INPUTS[name], folder)
