"""A Trainer of Hugging Face whose data set is slow, on a CPU."""

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Records(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        image = np.random.default_rng(index).random((1000, 240), np.float32)
        return {"features": np.sort(image, axis=0).mean(0), "labels": index % 2}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(240, 2)

    def forward(self, features, labels):
        output = self.layer(features)
        return {"loss": torch.nn.functional.cross_entropy(output, labels), "logits": output}


arguments = TrainingArguments(
    "trained", num_train_epochs=2, per_device_train_batch_size=16, use_cpu=True, report_to=[], save_strategy="no"
)
Trainer(Model(), arguments, train_dataset=Records()).train()
