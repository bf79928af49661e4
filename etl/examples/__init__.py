"""Training scripts to read and to run."""
