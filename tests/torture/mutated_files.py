"""All kinds of files that are mutated."""

from __future__ import annotations

from tests.torture.mutated_images import IMAGES
from tests.torture.mutated_sources import SOURCES
from tests.torture.mutated_stores import STORES

INPUTS = {**IMAGES, **SOURCES, **STORES}
