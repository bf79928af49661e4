"""The process of one commit: started by side.py, through alone.py, with that commit's packages first on its path."""

from __future__ import annotations

from benchmarks.compare_commits.placement import draw_blocks


def main() -> None:
    """Answer requests until standard input ends."""
    blocks = draw_blocks()
    from benchmarks.compare_commits.serving import serve  # the packages lie above the blocks

    serve()
    del blocks
