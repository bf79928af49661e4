"""What asv runs: the clock, the workloads and the suites.

Everything that decides how a figure is taken lives here and imports only the public interface of `etl` and `presave`,
because asv runs this folder as it stands in the working tree against the package of every commit.
"""
