"""Tuning from beginning to end: each strategy gets the same time to find its best configuration."""

from __future__ import annotations

