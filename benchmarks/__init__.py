"""Benchmarks: the clock, the workloads, asv's suites, and commands that measure without asv.

asv runs this folder as it is in the working tree against the `etl` and `presave` of every commit. So everything that
decides how a metric is taken is here, and it uses only the public interface of those two packages.

asv imports every module of a folder that has an `__init__.py`, in the environment in which it measures. Only
`settings/` holds suites, so only that folder has the file. `publish/` must not: it imports asv, which that environment
lacks.
"""
