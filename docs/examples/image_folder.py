"""Train on a folder of images, decoded once into a store."""

from pathlib import Path

import torch

import etl
import presave


def main(photos: str = "photos", epochs: int = 2) -> float:
    """Return the loss of the last step."""
    if not Path(photos).exists():
        etl.demonstration.photographs(photos, samples=128)
    source = etl.ImageFolder(photos)
    pipeline = etl.image_pipeline(size=64)
    path = Path(f"{photos}-64.store")
    records = etl.records(source, pipeline.until("resize"))
    store = presave.open_store(path) if path.exists() else presave.write(path, records, jobs=2)

    saved = etl.PresavedIterator(store, pipeline.after("resize"), batch_size=32, shuffle=True, seed=0)
    model = etl.models.create("lenet", (3, 64, 64), len(source.classes))
    optimizer = torch.optim.Adam(model.parameters())
    with etl.AsyncIterator(saved, prefetch_size=2) as train:
        loader = etl.TorchDataset(train)
        for _ in range(epochs):
            for features, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(features), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return loss.item()


if __name__ == "__main__":
    print(f"loss {main():.3f}")
