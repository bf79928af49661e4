"""Two commits against each other, measured in turns: `python -m benchmarks.compare_commits A B`.

`commits.py` gets their files, `server.py` and `serving.py` run one of them, at the addresses of `placement.py`, on the
work of `work.py`, for the time with `compute.py`; `side.py` talks to it, `turns.py` lets two of them take turns,
`judgement.py` says what follows, `table.py` shows it.
"""
