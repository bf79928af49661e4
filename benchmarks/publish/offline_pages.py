"""An asv publisher that copies what asv's pages load from content networks into their folder: they render offline.

asv loads it by `"plugins": [".benchmarks.publish.offline_pages"]` and calls it at the end of every `asv publish`. The
files are in packages of the npm registry. None of them is committed here: `npm pack` downloads them into a cache, once
for a machine.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from asv.console import log
from asv.publishing import OutputPublisher
from platformdirs import user_cache_path

NPM_SECONDS = 60
# A script or stylesheet from another host, as asv writes tags: the tag, and the address.
REMOTE_TAG = re.compile(r'<(?:script|link rel="stylesheet")[^>]*? (?:src|href)="(https?://[^"]+)"[^>]*>')
# Of a file beside the page the hash was checked when it was copied; a tool that changes line ends would break it.
FOR_OTHER_HOSTS = re.compile(r'\s+(?:integrity|crossorigin|referrerpolicy)="[^"]*"')

# The links of asv 0.6.6, without host and folder: the package of npm, the path in it, and its SHA-256. npm has flot
# without its minified files, and a later stupidtable only. The css of bootstrap names a font for icons, which browsers
# load only for a page that shows one; asv's pages show none.
ASSETS = {
    "jquery-3.3.1.min.js": (
        "jquery@3.3.1/dist/jquery.min.js",
        "160a426ff2894252cd7cebbdd6d6b7da8fcd319c65b70468f10b6690c45d02ef",
    ),
    "jquery.flot.min.js": (
        "flot@0.8.3/jquery.flot.js",
        "b7b931f273c38b1277b9c6c1f4e05c4ec09885a487bddaf3279e2d7e49a38e12",
    ),
    "jquery.flot.time.min.js": (
        "flot@0.8.3/jquery.flot.time.js",
        "a582c832adc7138a6b05aaf61f16ebac274701f1be4afea77e739a1c34b9c41a",
    ),
    "jquery.flot.selection.min.js": (
        "flot@0.8.3/jquery.flot.selection.js",
        "e6c85f6c1ebe4b4da29d8ae238c7c5060283f05f7ef054f6b91817d02c092918",
    ),
    "jquery.flot.categories.min.js": (
        "flot@0.8.3/jquery.flot.categories.js",
        "6e81664b28ea795c734906f4aa15614640a75ac7fbd399a7fb9084040698351a",
    ),
    "jquery.flot.orderBars.js": (
        "flot-orderbars@1.0.0/js/jquery.flot.orderBars.js",
        "39735b4f46f96ff4e082572401f47c55a2767b366fd1d1e821e44a8d830a12bf",
    ),
    "stupidtable.min.js": (
        "stupid-table-plugin@1.1.3/stupidtable.min.js",
        "4642380f28ebe9ed7cac251793b281ef8620c4386205d92788f9b12f5cceb4e0",
    ),
    "md5.min.js": (
        "blueimp-md5@2.19.0/js/md5.min.js",
        "64d7ded388c562e4bde9e58ce205e5fa01b9734fcd434d496eb7b4fbfe9b927d",
    ),
    "bootstrap.min.js": (
        "bootstrap@3.1.1/dist/js/bootstrap.min.js",
        "898d05a17f2cfc5120ddcdba47a885c378c0b466f30f0700e502757e24b403a1",
    ),
    "bootstrap.min.css": (
        "bootstrap@3.1.1/dist/css/bootstrap.min.css",
        "e9503448692b738dd260fbd7f7cabf2e11f09b600fa97e6eb3a56eba5b1a7e9b",
    ),
}


class OfflinePages(OutputPublisher):  # type: ignore[misc]  # asv has no types
    """A publisher that makes the pages render without a network. If it cannot, it logs a warning and continues."""

    order = 99

    @classmethod
    def publish(cls, conf: Any, *_others: Any) -> None:
        """Make the pages in `conf.html_dir` load nothing from networks; asv calls it."""
        try:
            make_offline(Path(conf.html_dir), asset_cache())
        except UnavailableError as error:
            log.warning(
                "The published pages keep asv's links and stay blank if content networks cannot be reached. Put npm on "
                f"PATH, with its registry in reach, and publish again. Reason: {error}"
            )


class UnavailableError(Exception):
    """A file that the pages load is neither in the cache nor to be had."""


def asset_cache() -> Path:
    """Return the user's cache folder for these files."""
    return user_cache_path("fair-etl") / "asv-assets"


def make_offline(html_dir: Path, cache: Path) -> None:
    """Copy the files that the pages of `html_dir` load from networks into `html_dir/assets`, and link to the copies.

    The files come from `cache`. npm fetches those that are missing, or do not have their hash.

    Raises
    ------
    UnavailableError
        If one of them cannot be had; all links then stay as they are.
    """
    pages = {page: page.read_text(encoding="utf-8") for page in html_dir.glob("*.html")}
    names = {url.rpartition("/")[2] for text in pages.values() for url in REMOTE_TAG.findall(text)}
    if unknown := sorted(names - ASSETS.keys()):
        raise UnavailableError(f"{', '.join(unknown)}: not among ASSETS in benchmarks/publish/offline_pages.py")
    for place, data in {ASSETS[name][0]: _read(*ASSETS[name], cache) for name in sorted(names)}.items():
        copy = html_dir / "assets" / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(data)
    for page, text in pages.items():
        page.write_text(REMOTE_TAG.sub(_with_link_to_copy, text), encoding="utf-8")


def _with_link_to_copy(tag: re.Match[str]) -> str:
    copy, _ = ASSETS[tag[1].rpartition("/")[2]]
    return FOR_OTHER_HOSTS.sub("", tag[0]).replace(tag[1], f"assets/{copy}")


def _read(place: str, sha256: str, cache: Path) -> bytes:
    """Return the bytes of a file, `name@version/path`, which npm fetches if it is not in the cache or damaged there."""
    file = cache / place
    if not _is_intact(file, sha256):
        _fetch(place.partition("/")[0], cache)
    if not _is_intact(file, sha256):
        raise UnavailableError(f"{place} from npm is not the file with the SHA-256 {sha256}")
    return file.read_bytes()


def _is_intact(file: Path, sha256: str) -> bool:
    return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == sha256


def _fetch(package: str, cache: Path) -> None:
    """Download a package, `name@version`, with npm, and put its files that the pages load into the cache."""
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError("npm is not on PATH")
    places = [place for place, _ in ASSETS.values() if place.startswith(f"{package}/")]
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(
                [npm, "pack", package, "--ignore-scripts", "--loglevel=error", "--fetch-retries=1"],
                cwd=folder,
                check=True,
                capture_output=True,
                text=True,
                timeout=NPM_SECONDS,
            )
            (archive,) = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as members:
                for place in places:
                    member = members.extractfile(f"package{place.removeprefix(package)}")
                    kept = cache / place
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    kept.write_bytes(b"" if member is None else member.read())
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"npm did not answer in {NPM_SECONDS} seconds") from None
        except subprocess.CalledProcessError as error:
            lines = str(error.stderr).strip().splitlines() or [f"npm pack: exit status {error.returncode}"]
            raise UnavailableError(lines[0]) from error
        except (OSError, KeyError, tarfile.TarError) as error:
            raise UnavailableError(str(error)) from error
