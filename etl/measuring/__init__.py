"""Instruments, statistics and the machinery of measuring.

Everything here measures what it is given: an iterable of batches, a step, a file, a process. It knows no strategy and
no loader. It imports numpy, psutil, xxhash and the standard library, and from this project only its own modules, by
relative imports. `benchmarks/measuring` is a link to this folder, so that the instruments of the working tree measure
the packages of every commit, and loaders of other libraries in environments without this project.
"""
