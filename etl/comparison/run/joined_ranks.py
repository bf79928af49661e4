"""The checked epochs of all ranks of a strategy, joined to one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np

from etl.comparison.request.answers import CheckedEpoch, LoadingSample
from etl.comparison.request.epoch_content import EpochContent, Signatures
from etl.measuring.arrays import merge_layouts
from etl.measuring.joined_samples import RanksDifferError


def join_checks(checks: Sequence[CheckedEpoch]) -> CheckedEpoch:
    """Return one check of the epochs of all ranks: what they load together, rank after rank.

    Memory that ranks share counts once. The score is the mean of their losses.

    Raises
    ------
    RanksDifferError
        If they have different numbers of batches, or the same records.
    """
    contents = [each.content for each in checks]
    _check_division(contents)
    scores = [each.score for each in checks if each.score is not None]
    shuffles = [each.reshuffles for each in checks]
    device_memory = [each.peak_device_memory for each in checks]
    return replace(
        checks[0],
        content=_join_contents(contents),
        reshuffles=None if None in shuffles else all(shuffles),
        score=sum(scores) / len(scores) if len(scores) == len(checks) else None,
        weights=_only([each.weights for each in checks]),
        pages_touched=sum(each.pages_touched for each in checks),
        pages_absent=sum(each.pages_absent for each in checks),
        unread=next((each.unread for each in checks if each.unread), ""),
        peak_memory=sum(each.peak_memory for each in checks) - _counted_again(checks),
        left_behind=[name for each in checks for name in each.left_behind],
        printed_lines=sum(each.printed_lines for each in checks),
        first_printed=next((each.first_printed for each in checks if each.first_printed), ""),
        mapped={},
        peak_memory_of_ranks=[each.peak_memory for each in checks],
        peak_device_memory=None if None in device_memory else sum(filter(None, device_memory)),
        make_seconds=max(each.make_seconds for each in checks),
        first_seconds=max(each.first_seconds for each in checks),
        batch_seconds=max(each.batch_seconds for each in checks),
        workers=sum(each.workers for each in checks),
        torch_threads=max(each.torch_threads for each in checks),
    )


def _check_division(contents: Sequence[EpochContent]) -> None:
    batches = [len(each.digests) for each in contents]
    if len(set(batches)) > 1:
        counts = ", ".join(f"rank {rank}: {count:,}" for rank, count in enumerate(batches))
        raise RanksDifferError(
            f"its ranks have different numbers of batches ({counts}), so that one would wait for the others forever"
        )
    records = [Counter(each.records) for each in contents]
    is_constant = len(records[0]) == 1  # then all ranks have the same records, however they are divided
    if not is_constant and all(each == records[0] for each in records[1:]):
        raise RanksDifferError(
            f"each of its ranks loads the same {contents[0].samples:,} records: divide them by `rank` and "
            "`world_size` of the task"
        )


def _join_contents(contents: Sequence[EpochContent]) -> EpochContent:
    signatures = [Signatures.load(each.signatures) for each in contents]
    path = str(Path(contents[0].signatures).with_suffix(".ranks.npz"))
    labels = [each.labels for each in signatures if each.labels is not None]
    Signatures(
        np.concatenate([each.values for each in signatures]),
        np.concatenate(labels) if len(labels) == len(signatures) else None,
    ).save(path)
    return EpochContent(
        digests=[digest for each in contents for digest in each.digests],
        records=[digest for each in contents for digest in each.records],
        layouts=reduce(merge_layouts, [each.layouts for each in contents]),
        batch_sizes=[size for each in contents for size in each.batch_sizes],
        signatures=path,
    )


def _only(weights: Sequence[str | None]) -> str | None:
    """Return the digest of the weights that all ranks begin with; all digests if they differ."""
    known = sorted({each for each in weights if each is not None})
    return ", ".join(known) if known else weights[0]


def _counted_again(checks: Sequence[CheckedEpoch]) -> int:
    """Return the bytes of mapped files that several ranks have counted, less those of the one that maps most."""
    found = defaultdict(list)
    for each in checks:
        for path, nbytes in each.mapped.items():
            found[path].append(nbytes)
    return sum(sum(counted) - max(counted) for counted in found.values())


def join_loads(loads: Sequence[LoadingSample]) -> LoadingSample:
    """Return one sample of loading alone: that of the slowest rank."""
    slowest = max(loads, key=lambda each: each.etl_alone.total)
    return replace(slowest, misplaced_pages=sum(each.misplaced_pages for each in loads))
