"""The process that settings are tried in: started by turns.py, through alone.py."""

from __future__ import annotations

from benchmarks.placement import draw_blocks


def main() -> None:
    """Answer requests until standard input ends."""
    blocks = draw_blocks()
    from benchmarks.settings.serving import prepare  # the packages lie above the blocks
    from benchmarks.turn_server import serve

    serve(prepare)
    del blocks
