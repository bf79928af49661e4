"""`make test` installs what is missing if it can, and says what is missing if it cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.settings.setting import ALLOCATORS
from tests.system_packages import NEEDS, Need, install

# Programs that do as apt does, with folders for what there is and what is installed, and note how they are called.
APT_GET = """#!/bin/sh
echo "$@" >> calls
case "$*" in
  *" install "*) for package; do :; done
    echo "Reading package lists..."
    if [ -e "broken/$package" ]; then echo "E: dpkg was interrupted" >&2; exit 100; fi
    : > "installed/$package" ;;
  *" update") if [ -e offline ]; then echo "E: no network" >&2; exit 100; fi ;;
esac
"""
APT_CACHE = """#!/bin/sh
cd known && for package in *; do
  if echo "$package" | grep -Eq "$3"; then echo "$package - what it is"; fi
done
"""


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an apt that this process, which is root, finds on PATH; no package is known to it."""
    for name, script in {"apt-get": APT_GET, "apt-cache": APT_CACHE}.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(script)
        program.chmod(0o755)
    for folder in ("known", "installed", "broken"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def need(apt: Path, name: str, package: str, *, broken: bool = False) -> Need:
    (apt / "known" / package).touch()
    if broken:
        (apt / "broken" / package).touch()
    return Need(name, f"^{name}[0-9]*$", lambda: (apt / "installed" / package).exists())


def calls(apt: Path) -> list[str]:
    """What apt-get was asked for: the words after its options."""
    lines = (apt / "calls").read_text().splitlines() if (apt / "calls").exists() else []
    return [line.partition("Lock::Timeout=120 ")[2] for line in lines]


def test_what_is_missing_is_installed_by_its_name_in_this_release(apt: Path) -> None:
    here = need(apt, "here", "here1")
    (apt / "installed" / "here1").touch()
    assert install([here, need(apt, "browser", "browser"), need(apt, "library", "library2")]) == {}
    assert calls(apt) == ["update", "install browser", "install library2"]


def test_nothing_is_asked_of_apt_if_all_is_there(apt: Path) -> None:
    browser = need(apt, "browser", "browser")
    (apt / "installed" / "browser").touch()
    assert install([browser]) == {}
    assert calls(apt) == []


def test_what_apt_cannot_install_is_named_and_the_rest_is_installed(apt: Path) -> None:
    unknown = Need("unknown", "^nothing$", lambda: False)
    useless = Need("useless", "^good$", lambda: False)
    good = need(apt, "good", "good")
    assert install([unknown, need(apt, "bad", "bad", broken=True), useless, good]) == {
        "unknown": "apt knows no package ^nothing$",
        "bad": "apt-get: E: dpkg was interrupted",
        "useless": "it was installed and is still not found",
    }
    assert good.is_here()


def test_an_update_that_fails_is_named_and_keeps_nothing_from_being_tried(apt: Path) -> None:
    (apt / "offline").touch()
    unknown = Need("unknown", "^nothing$", lambda: False)
    assert install([unknown, need(apt, "browser", "browser")]) == {
        "unknown": "apt knows no package ^nothing$; before that, update failed: apt-get: E: no network"
    }
    assert calls(apt) == ["update", "install browser"]


def test_only_root_installs(apt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert install([need(apt, "browser", "browser")]) == {"browser": "only root may install it"}
    assert calls(apt) == []


def test_without_apt_nothing_is_installed(apt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert install([need(apt, "browser", "browser")]) == {"browser": "there is no apt-get to install it with"}


def test_every_allocator_that_is_measured_is_needed() -> None:
    assert {each.name for each in NEEDS} == {"Chromium", "npm", *ALLOCATORS}
