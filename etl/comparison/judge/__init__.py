"""Samples become results, rules and a report."""
