"""The command's process: prepares, and measures phase by phase."""
