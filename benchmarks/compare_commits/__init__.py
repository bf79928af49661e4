"""Two commits against each other, measured in turns: `python -m benchmarks.compare_commits A B`.

`commits.py` gets their files, `server.py` runs one of them, `side.py` talks to that, `turns.py` lets the two take
turns, `judgement.py` says what follows, `table.py` shows it.
"""
