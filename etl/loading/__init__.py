"""How batches are made: records written into arrays, in parts that several workers can do at once."""
