"""Tuning: find the configuration of each strategy that is best for it, within a budget of time."""
