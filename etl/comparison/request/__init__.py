"""The request of a comparison: frozen values that both sides of the pipe know."""
