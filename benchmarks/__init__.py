"""What asv runs: the clock, the workloads and the suites.

Everything that decides how a figure is taken lives here and imports only the public interface of `etl` and `presave`,
because asv runs this folder as it stands in the working tree against the package of every commit.

`publish/` shows the figures afterwards. It has no `__init__.py` on purpose: asv imports every module of this package
where it measures, and `publish/` needs asv, which is not there.
"""
