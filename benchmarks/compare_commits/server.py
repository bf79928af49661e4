"""The process of one commit: started by side.py, through alone.py, with that commit's packages first on its path."""

from __future__ import annotations

from benchmarks.placement import draw_blocks


def main() -> None:
    """Answer requests until standard input ends."""
    blocks = draw_blocks()
    from benchmarks.compare_commits.serving import prepare  # the packages lie above the blocks
    from benchmarks.turn_server import serve

    serve(prepare)
    del blocks
