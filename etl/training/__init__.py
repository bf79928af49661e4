"""Training with any iterator: `fit`, its listeners, backends and models."""
