"""Runtime settings measured in turns with the default, on workloads that they may affect."""
