"""What compare_commits is worth: `python -m benchmarks.aa` lets it compare a commit with itself and with copies of
itself that were made slower by a known share.

`slowed.py` makes the copies, `study.py` keeps what was found, `table.py` counts false alarms and detections.
"""
