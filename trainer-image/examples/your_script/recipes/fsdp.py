"""A model that FSDP2 shards over all ranks: each has a part of it, and copies of others' parts."""

import argparse

import ddp_trainer
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset


class Network(nn.Module):
    """A network of equal blocks."""

    def __init__(self, width=64, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        """Return a score for each digit."""
        for block in self.blocks:
            images = images + block(images)
        return self.head(images)


def main():
    """Train as one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images[:640], dtype=torch.float32).reshape(-1, 64) / 16
    loader = DataLoader(TensorDataset(images, torch.tensor(digits.target[:640])), 32, shuffle=True)
    criterion = nn.CrossEntropyLoss()
    model = Network()
    loss = torch.zeros(())  # of a new rank that joins when the epoch's batches are done
    mesh = ddp_trainer.device_mesh()  # before join, instead of init_device_mesh
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    with ddp_trainer.join(model=model, optimizer=optimizer, checkpoint_dir="") as job:
        for epoch in job.epochs(options.epochs):
            for inputs, targets in job.batches(loader):
                loss = criterion(model(inputs), targets)  # no job.wrap
                loss.backward()
                job.step(loss, clip_grad_norm=1.0)
            [total] = job.sum(loss.item())
            if job.is_main:
                print(f"epoch {epoch}: loss {total / job.world_size:.6f}", flush=True)


if __name__ == "__main__":
    main()
