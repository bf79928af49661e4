"""Loading of one batch: its records, its arrays, and the chunks that several workers can load at once."""
