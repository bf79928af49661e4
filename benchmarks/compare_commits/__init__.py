"""Two commits against each other, measured in turns: `python -m benchmarks.compare_commits A B`.

`commits.py` gets their files, `server.py` runs one of them, in the memory layout of `layout.py`, on the work of
`work.py`; `side.py` talks to it, `turns.py` lets two of them take turns, `judgement.py` says what follows, `table.py`
shows it.
"""
