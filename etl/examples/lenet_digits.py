"""LeNet on handwritten digits, once with each way of loading: `python -m etl.examples.lenet_digits [DIR]`.

The counterpart of Deeplearning4j's LeNet-on-MNIST example with pre-saved and asynchronous iterators. All ways of
loading have the same training loop and the same loss curve, since they load the same batches in the same order. Their
speed is not compared here: the benchmarks do that fairly.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import etl
import presave
from etl.iterators import BatchIterator
from etl.temporary import temporary_folder
from etl.training import Backend

EPOCHS = 6
BATCH_SIZE = 64
LEARNING_RATE = 1e-3
MIN_ACCURACY = 0.95


@dataclass(frozen=True)
class Trained:
    """The result of one training.

    Attributes
    ----------
    losses : list of float
        The loss of every iteration.
    accuracy : float
        Accuracy on the test set, from 0 to 1.
    """

    losses: list[float]
    accuracy: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Train with every strategy and print the results; return 1 if an accuracy is below 95% or the losses differ."""
    parser = argparse.ArgumentParser(prog="lenet_digits", description=(__doc__ or "").split(":")[0])
    parser.add_argument(
        "directory",
        nargs="?",
        type=Path,
        help="folder of MNIST's files, which are made if it does not exist (default: a temporary one)",
    )
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"default: {EPOCHS}")
    parser.add_argument("--backend", default="auto", help="auto, cpu or cuda (default: auto)")
    parsed = parser.parse_args(arguments)
    with temporary_folder("example") as temporary:
        directory = parsed.directory or Path(temporary, "digits")
        if not directory.exists():
            etl.demonstration.digits(directory)
        trained = train_each(directory, Path(temporary, "digits.store"), etl.backend(parsed.backend), parsed.epochs)
    first = next(iter(trained.values()))
    same = all(torch.allclose(torch.tensor(each.losses), torch.tensor(first.losses)) for each in trained.values())
    print(f"LeNet on {directory}, {parsed.epochs} epochs")
    print(f"{'strategy':<16}{'accuracy':>10}{'last loss':>12}")
    for name, each in trained.items():
        print(f"{name:<16}{each.accuracy:>10.2%}{each.losses[-1]:>12.6f}")
    print(f"the loss curves are {'the same' if same else 'DIFFERENT'} over {len(first.losses)} iterations")
    return 0 if same and min(each.accuracy for each in trained.values()) >= MIN_ACCURACY else 1


def train_each(directory: Path, store_path: Path, backend: Backend, epochs: int) -> dict[str, Trained]:
    """Train the same model with each strategy."""
    pipeline = etl.digits_pipeline()
    test = etl.RawIterator(etl.Idx.from_folder(directory, "test"), pipeline, batch_size=256)
    trained = {}
    for name, train in strategies(directory, store_path, pipeline):
        with train:
            model = etl.models.create("lenet", (1, 28, 28), classes=10, seed=0)
            result = etl.fit(
                model, train, backend=backend, optimizer="adam", learning_rate=LEARNING_RATE, epochs=epochs
            )
        trained[name] = Trained(result.scores, accuracy(model, test, backend))
    return trained


def strategies(directory: Path, store_path: Path, pipeline: etl.Pipeline) -> Iterator[tuple[str, BatchIterator]]:
    """Yield four ways to load the same batches, each with its name.

    Parameters
    ----------
    directory : Path
        The digits.
    store_path : Path
        Where to write the presaved digits.
    pipeline : etl.Pipeline
        The whole pipeline; the digits are presaved after "channels_first".
    """
    source = etl.Idx.from_folder(directory, "train")
    rest = pipeline.after("channels_first")
    with presave.write(store_path, etl.records(source, pipeline.until("channels_first"))) as store:
        yield "raw", etl.RawIterator(source, pipeline, BATCH_SIZE, shuffle=True)
        yield "presaved", etl.PresavedIterator(store, rest, BATCH_SIZE, shuffle=True)
        yield "async-raw", etl.AsyncIterator(etl.RawIterator(source, pipeline, BATCH_SIZE, shuffle=True))
        yield "async-presaved", etl.AsyncIterator(etl.PresavedIterator(store, rest, BATCH_SIZE, shuffle=True))


def accuracy(model: torch.nn.Module, iterator: BatchIterator, backend: Backend) -> float:
    """Return the share of records that `model` classifies correctly, from 0 to 1."""
    model.eval()
    right = total = 0
    with torch.no_grad():
        for batch in iterator:
            features, labels = backend.put(batch)
            right += int((model(features).argmax(dim=1) == labels).sum())
            total += len(labels)
    return right / total


if __name__ == "__main__":
    sys.exit(main())
