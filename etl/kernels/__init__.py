"""Kernels: loops over pixels that read and write memory once, and the same in numpy."""

from etl.kernels.gather_normalised import KERNELS, can_gather_normalised, gather_normalised

__all__ = ["KERNELS", "can_gather_normalised", "gather_normalised"]
