"""Experiments on the harness itself, and on what bounds a part of it; `results` has their committed rounds."""
