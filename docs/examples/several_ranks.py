"""Train on several ranks, each on its part of every epoch and of the CPUs."""

import numpy as np
import torch

import etl
from etl.training import fit_parallel


def make_model() -> torch.nn.Module:
    """Return the model; each rank makes the same one."""
    torch.manual_seed(0)
    return etl.models.create("mlp", (8,), 2)


def make_batches() -> etl.RawIterator:
    """Return the batches of all ranks; each rank takes its part."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((512, 8), dtype=np.float32)
    records = [{"features": row, "label": int(row.sum() > 0)} for row in values]
    return etl.RawIterator(records, batch_size=16, shuffle=True)


def main(workers: int = 2) -> float:
    """Return the loss of the last step."""
    return fit_parallel(make_model, make_batches, workers=workers, epochs=2).scores[-1]


if __name__ == "__main__":
    print(f"loss {main():.3f}")
