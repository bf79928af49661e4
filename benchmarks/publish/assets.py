"""What asv's pages load from content networks, and where it is to be had instead: packages of the npm registry.

Nothing of these packages is committed here: `npm pack` takes them from the registry, once for a machine, into a cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from platformdirs import user_cache_path

NPM_SECONDS = 60


@dataclass(frozen=True)
class Asset:
    """A file that asv's pages load from a content network, and where the npm registry has it.

    `package` is `name@version`, `path` is inside it. `integrity` (as in HTML: "sha256-" and base64) is that of npm's
    file where this is not the network's byte for byte; None where the hash in asv's page holds for both.
    """

    link_ending: str
    package: str
    path: str
    integrity: str | None = None

    @property
    def place(self) -> str:
        """Where the file lies, in the cache and beside the page; keeps the package's folders, which its css needs."""
        return f"{self.package}/{self.path}"


# What asv 0.6.6 links to. npm has flot without its minified files, and a later stupidtable only.
ASSETS = (
    Asset("/jquery-3.3.1.min.js", "jquery@3.3.1", "dist/jquery.min.js"),
    Asset(
        "/flot/0.8.3/jquery.flot.min.js",
        "flot@0.8.3",
        "jquery.flot.js",
        "sha256-t7kx8nPDixJ3ucbB9OBcTsCYhaSHvdrzJ54tfkmjjhI=",
    ),
    Asset(
        "/flot/0.8.3/jquery.flot.time.min.js",
        "flot@0.8.3",
        "jquery.flot.time.js",
        "sha256-pYLIMq3HE4prBar2HxbrrCdHAfG+Sv6nfnOaHDS5xBo=",
    ),
    Asset(
        "/flot/0.8.3/jquery.flot.selection.min.js",
        "flot@0.8.3",
        "jquery.flot.selection.js",
        "sha256-5shfbB6+S02inYriOMfFBgKD8F9+8FT2uRgX0CwJKRg=",
    ),
    Asset(
        "/flot/0.8.3/jquery.flot.categories.min.js",
        "flot@0.8.3",
        "jquery.flot.categories.js",
        "sha256-boFmSyjqeVxzSQb0qhVhRkCnWsf705mn+5CEBAaYNRo=",
    ),
    Asset("/flot-orderbars@1.0.0/js/jquery.flot.orderBars.js", "flot-orderbars@1.0.0", "js/jquery.flot.orderBars.js"),
    Asset(
        "/stupidtable/1.0.1/stupidtable.min.js",
        "stupid-table-plugin@1.1.3",
        "stupidtable.min.js",
        "sha256-RkI4Dyjr6e18rCUXk7KB74YgxDhiBdkniPmxL1zOtOA=",
    ),
    Asset("/blueimp-md5/2.19.0/js/md5.min.js", "blueimp-md5@2.19.0", "js/md5.min.js"),
    Asset("/bootstrap@3.1.1/dist/js/bootstrap.min.js", "bootstrap@3.1.1", "dist/js/bootstrap.min.js"),
    # Its css names a font for icons, which browsers load only where a page shows one, and asv's pages show none.
    Asset("/bootstrap@3.1.1/dist/css/bootstrap.min.css", "bootstrap@3.1.1", "dist/css/bootstrap.min.css"),
)


def find_asset(url: str, integrity: str | None) -> Asset | None:
    """The row of the table for what a page loads from `url`; None where there is none.

    Its file must have the hash in the table, or where that has none `integrity`, the one in the page.
    """
    for asset in ASSETS:
        if urlsplit(url).path.endswith(asset.link_ending):
            return replace(asset, integrity=asset.integrity or integrity)
    return None


def asset_cache() -> Path:
    """The user's cache folder for these files."""
    return user_cache_path("fair-etl") / "asv-assets"


def fill_cache(assets: Iterable[Asset], cache: Path) -> dict[Asset, str]:
    """Fetch the packages of those `assets` that are not in `cache` whole; the reasons why some cannot be had."""
    missing: dict[str, list[Asset]] = {}
    for asset in assets:
        if read_cached(asset, cache) is None:
            missing.setdefault(asset.package, []).append(asset)

    failures: dict[Asset, str] = {}
    timed_out = False
    for package, wanted in missing.items():
        if timed_out:  # one wait is enough where the registry does not answer
            failures |= dict.fromkeys(wanted, "npm did not answer")
            continue
        try:
            failures |= fetch(package, wanted, cache)
        except subprocess.TimeoutExpired:
            timed_out = True
            failures |= dict.fromkeys(wanted, f"npm did not answer in {NPM_SECONDS} seconds")
        except subprocess.CalledProcessError as error:
            lines = str(error.stderr).strip().splitlines() or [f"npm pack: exit status {error.returncode}"]
            failures |= dict.fromkeys(wanted, lines[0])
        except (OSError, tarfile.TarError) as error:
            failures |= dict.fromkeys(wanted, str(error))
    return failures


def fetch(package: str, wanted: list[Asset], cache: Path) -> dict[Asset, str]:
    """Have npm download `package`, and put the files `wanted` of it into `cache`; the reasons why some are not there.

    Raises `FileNotFoundError`, `CalledProcessError` or `TimeoutExpired` where npm is not there, fails or is silent.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not on PATH")
    failures: dict[Asset, str] = {}
    with tempfile.TemporaryDirectory() as folder:
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
            for asset in wanted:
                try:
                    member = members.extractfile(f"package/{asset.path}")
                except KeyError:
                    member = None
                data = b"" if member is None else member.read()
                if member is None:
                    failures[asset] = f"{package} has no file {asset.path}"
                elif not has_integrity(data, asset.integrity):
                    failures[asset] = f"{asset.place} from npm is not the file with the hash {asset.integrity}"
                else:
                    write_atomically(cache / asset.place, data)
    return failures


def read_cached(asset: Asset, cache: Path) -> bytes | None:
    """The file's bytes; None where the cache does not have it, or has something else than its hash says."""
    try:
        data = (cache / asset.place).read_bytes()
    except OSError:
        return None
    return data if has_integrity(data, asset.integrity) else None


def has_integrity(data: bytes, integrity: str | None) -> bool:
    """Whether `data` has one of the hashes in `integrity`, as HTML writes them; never without a hash."""
    for entry in (integrity or "").split():
        algorithm, _, digest = entry.partition("-")
        if (
            algorithm in ("sha256", "sha384", "sha512")
            and b64encode(hashlib.new(algorithm, data).digest()).decode() == digest
        ):
            return True
    return False


def write_atomically(path: Path, data: bytes) -> None:
    """Write `path` so that another process sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
