"""A run of Lightning whose data set is slow, on a CPU."""

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        image = np.random.default_rng(index).random((1000, 240), np.float32)
        return np.sort(image, axis=0).mean(0), index % 2


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(240, 2)

    def training_step(self, batch, number):
        features, labels = batch
        return torch.nn.functional.cross_entropy(self.layer(features), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(Model(), DataLoader(Records(), batch_size=16))
