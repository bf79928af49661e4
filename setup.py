"""Make the README's links absolute: an index of packages shows it without the files beside it."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]


def absolute(readme: str) -> str:
    """Return `readme` with links to files of the repository instead of paths: images as such, other files as pages."""
    readme = re.sub(r"(!\[[^\]]*\]\()(?!https?:|#)", rf"\g<1>{REPOSITORY}/raw/main/", readme)
    return re.sub(r"((?<!!)\[[^\]!]*\]\()(?!https?:|#)", rf"\g<1>{REPOSITORY}/blob/main/", readme)


setup(long_description=absolute((ROOT / "README.md").read_text()), long_description_content_type="text/markdown")
