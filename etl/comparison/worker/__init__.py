"""The measuring process: makes loader and compute from a request. Nothing imports it; it is started by name."""
