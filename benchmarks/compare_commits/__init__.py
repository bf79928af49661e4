"""Two commits against each other, measured in turns: `python -m benchmarks.compare_commits A B`.

`commits.py` gets their files, `serving.py` runs one of them, on the work of `work.py`, for the wall time with
`compute.py`; `arm.py` starts it, `turns.py` lets two of them take turns, `judgement.py` says what follows, `table.py`
shows it.
"""
