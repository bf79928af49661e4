"""Train a recurrent network on sequences of different lengths, in buckets of similar ones."""

import numpy as np

import etl


def make_sequences(count: int = 512) -> etl.Sequences:
    """Return sequences of 10 to 99 steps; a sequence is of class 1 if it rises."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=count)
    features = [
        np.cumsum(rng.normal((0.2 if label else -0.2), 1.0, (length, 1)), axis=0).astype(np.float32)
        for label, length in zip(labels, rng.integers(10, 100, count), strict=True)
    ]
    return etl.Sequences.from_arrays(features, labels)


def main(epochs: int = 3) -> float:
    """Return the loss of the last step."""
    raw = etl.RawIterator(
        make_sequences(), batch_size=32, shuffle=True, padding=etl.loading.Padding(), bucket_records=256
    )
    model = etl.models.create("lstm", (100, 1), 2)
    listener = etl.PerformanceListener(frequency=8)
    with etl.AsyncIterator(raw) as train:
        return etl.fit(model, train, epochs=epochs, listeners=[listener]).scores[-1]


if __name__ == "__main__":
    print(f"loss {main():.3f}")
