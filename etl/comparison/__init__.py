"""A fair comparison of strategies: `etl compare`."""
