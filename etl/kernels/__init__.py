"""Kernels: compiled loops over pixels that read and write memory once, with equivalents in numpy."""

from etl.kernels.normalise import CHANNELS, KERNELS, find_normalise_addresses, find_normalise_rows, load_kernels

__all__ = ["CHANNELS", "KERNELS", "find_normalise_addresses", "find_normalise_rows", "load_kernels"]
