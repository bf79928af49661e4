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
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from asv.console import log
from asv.publishing import OutputPublisher
from platformdirs import user_cache_path

NPM_SECONDS = 60
# As asv writes tags, whose addresses have no entities.
REMOTE_TAG = re.compile(r'<(?P<name>script|link)\b[^>]*\b(?:src|href)="(?P<url>(?:https?:)?//[^"]+)"[^>]*>')
FOR_OTHER_HOSTS = re.compile(r'\s+(?:integrity|crossorigin|referrerpolicy)(?:="[^"]*")?')


@dataclass(frozen=True)
class Asset:
    """A file that asv's pages load from a content network, and its place in the npm registry.

    Attributes
    ----------
    link_ending : str
        The end of the link's path.
    package, path : str
        `name@version` of the npm package, and the path inside it.
    integrity : str or None
        The hash of npm's file, as in HTML: "sha256-" and base64. None if the network's file is the same, byte for byte:
        then the hash in asv's page is used.
    """

    link_ending: str
    package: str
    path: str
    integrity: str | None = None

    @property
    def place(self) -> str:
        """Path of the file in the cache and beside the page, with the package's folders, which its css needs."""
        return f"{self.package}/{self.path}"


# The links of asv 0.6.6. npm has flot without its minified files, and a later stupidtable only.
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
    # Its css names a font for icons, which browsers load only for a page that shows one; asv's pages show none.
    Asset("/bootstrap@3.1.1/dist/css/bootstrap.min.css", "bootstrap@3.1.1", "dist/css/bootstrap.min.css"),
)


class OfflinePages(OutputPublisher):  # type: ignore[misc]  # asv has no types
    """A publisher that makes the pages render without a network. If it cannot, it logs a warning and continues."""

    order = 99

    @classmethod
    def publish(cls, conf: Any, *_others: Any) -> None:
        """Make the pages in `conf.html_dir` load nothing from networks; asv calls it."""
        kept = make_offline(Path(conf.html_dir), asset_cache())
        if kept:
            log.warning(describe_kept(kept))


def make_offline(html_dir: Path, cache: Path) -> dict[str, str]:
    """Copy the files that the pages of `html_dir` load from networks into `html_dir/assets`, and link to the copies.

    The files come from `cache`. npm fetches those that are missing, or do not have their hash.

    Returns
    -------
    The links that had to stay as they are, each with the reason.
    """
    pages = {page: find_remote_tags(page.read_text(encoding="utf-8")) for page in sorted(html_dir.glob("*.html"))}
    assets: dict[str, Asset] = {}
    kept: dict[str, str] = {}
    for tag in (tag for tags in pages.values() for tag in tags):
        asset = find_asset(tag.url, tag.integrity)
        if asset is None:
            kept[tag.url] = "not among ASSETS in benchmarks/publish/offline_pages.py"
        else:
            assets[tag.url] = asset

    failures = fill_cache(assets.values(), cache)
    local_urls: dict[str, str] = {}
    for url, asset in assets.items():
        data = read_cached(asset, cache)
        if data is None:
            kept[url] = failures.get(asset, f"{cache / asset.place} cannot be read")
            continue
        local_urls[url] = f"assets/{asset.place}"
        copy = html_dir / local_urls[url]
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(data)

    for page, tags in pages.items():
        text = page.read_text(encoding="utf-8")
        for tag in tags:
            if tag.url in local_urls:
                text = text.replace(tag.source, tag.pointing_at(local_urls[tag.url]))
        page.write_text(text, encoding="utf-8")
    return kept


@dataclass(frozen=True)
class RemoteTag:
    """A tag that loads something from another host: its text, the address, and the hash if it has one."""

    source: str
    url: str
    integrity: str | None

    def pointing_at(self, url: str) -> str:
        """Return the same tag, with a link to `url` on the page's own host.

        The attributes for other hosts are dropped. The file's hash was checked when it was copied, and it would break
        pages that go through a tool which changes line ends.
        """
        return FOR_OTHER_HOSTS.sub("", self.source).replace(self.url, url)


def find_remote_tags(text: str) -> list[RemoteTag]:
    """Return the scripts and stylesheets that the page `text` loads from other hosts."""
    found = []
    for match in REMOTE_TAG.finditer(text):
        integrity = re.search(r'integrity="([^"]+)"', match[0])
        if match["name"] == "script" or "stylesheet" in match[0]:
            found.append(RemoteTag(match[0], match["url"], integrity and integrity[1]))
    return found


def find_asset(url: str, integrity: str | None) -> Asset | None:
    """Return the asset that a page loads from `url`, or None.

    Its hash is the one in `ASSETS`, or else `integrity`, the one in the page.
    """
    for asset in ASSETS:
        if urlsplit(url).path.endswith(asset.link_ending):
            return replace(asset, integrity=asset.integrity or integrity)
    return None


def asset_cache() -> Path:
    """Return the user's cache folder for these files."""
    return user_cache_path("fair-etl") / "asv-assets"


def fill_cache(assets: Iterable[Asset], cache: Path) -> dict[Asset, str]:
    """Fetch the `assets` that are missing or damaged in `cache`; return the reason for each that cannot be fetched."""
    missing: dict[str, list[Asset]] = {}
    for asset in assets:
        if read_cached(asset, cache) is None:
            missing.setdefault(asset.package, []).append(asset)

    failures: dict[Asset, str] = {}
    timed_out = False
    for package, wanted in missing.items():
        if timed_out:  # one wait is enough if the registry does not answer
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
    """Download a package with npm, and copy files of it into the cache.

    Parameters
    ----------
    package : str
        `name@version`.

    Returns
    -------
    The reason for each file that is not in the package, or does not have its hash.

    Raises
    ------
    FileNotFoundError, CalledProcessError, TimeoutExpired
        If npm is not installed, fails, or does not answer.
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
                    kept = cache / asset.place
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    kept.write_bytes(data)  # one that is cut short has another hash, and is fetched again
    return failures


def read_cached(asset: Asset, cache: Path) -> bytes | None:
    """Return the file's bytes, or None if the cache does not have it, or has a file with another hash."""
    try:
        data = (cache / asset.place).read_bytes()
    except OSError:
        return None
    return data if has_integrity(data, asset.integrity) else None


def has_integrity(data: bytes, integrity: str | None) -> bool:
    """Return whether `data` has one of the hashes in `integrity`, as HTML writes them; False without a hash."""
    for entry in (integrity or "").split():
        algorithm, _, digest = entry.partition("-")
        if (
            algorithm in ("sha256", "sha384", "sha512")
            and b64encode(hashlib.new(algorithm, data).digest()).decode() == digest
        ):
            return True
    return False


def describe_kept(kept: dict[str, str]) -> str:
    """Return one line: the links that were kept, the reasons, the consequence and what to do."""
    names_by_reason: dict[str, list[str]] = {}
    for url, reason in kept.items():
        names_by_reason.setdefault(reason, []).append(url.rpartition("/")[2])
    reasons = "; ".join(f"{reason} ({', '.join(names)})" for reason, names in names_by_reason.items())
    return (
        f"The published pages keep asv's links for {len(kept)} assets and stay blank if content networks cannot be "
        f"reached. Put npm on PATH, with its registry in reach, and publish again. Reason: {reasons}"
    )
