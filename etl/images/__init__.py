"""Image files to pixels, and pixels to another size, by the libraries that a pipeline can choose from."""
