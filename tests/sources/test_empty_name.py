"""An empty name, such as that of a shell variable that is not set, is no source, and not the working folder."""

from __future__ import annotations

import pytest

import etl


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match="the source has an empty name"):
        etl.open_source("")
