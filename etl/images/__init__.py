"""Decoding of image files and resizing of pixels, with each of the libraries that a pipeline can use."""
