"""What runtime settings are worth: each against the default, in turns, on workloads that it may matter to."""
