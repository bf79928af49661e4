"""Settings of Pillow that hold for a whole process. The processes that are started for it take them over.

This module imports no Pillow: the environment of another library's loader may have none.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

# Module, name and value. JSON may have made a list of it.
Setting = Sequence[Any]
NAMES = (
    ("PIL.Image", "MAX_IMAGE_PIXELS"),
    ("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES"),
    ("PIL.PngImagePlugin", "MAX_TEXT_CHUNK"),
    ("PIL.PngImagePlugin", "MAX_TEXT_MEMORY"),
)


def pillow_settings() -> list[Setting]:
    """Return the settings of this process, of those modules that it has imported."""
    return [(module, name, getattr(sys.modules[module], name)) for module, name in NAMES if module in sys.modules]


def take_over(settings: Sequence[Setting]) -> None:
    """Apply the settings of another process, or of an earlier moment; without effect if Pillow is not installed."""
    for module, name, value in settings:
        with suppress(ImportError):
            setattr(importlib.import_module(module), name, value)
