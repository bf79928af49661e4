"""Training with any iterator: `fit`, its listeners, and the backends that compute runs on."""
