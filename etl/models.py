"""The public names of `etl.training.models`. Loads torch."""

from etl.training.models import MODELS, LeNet, Lstm, Mlp, Residual, create

__all__ = ["MODELS", "LeNet", "Lstm", "Mlp", "Residual", "create"]
