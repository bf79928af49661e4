"""Comparing strategies on somebody's own data: which way of loading to use, what it gains, and how sure that is."""
