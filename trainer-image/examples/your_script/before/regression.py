"""A linear regression with DDP."""

import argparse
import os
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    """Trains a model."""

    def __init__(self, model, loader, optimizer, *, device, save_every, snapshot):
        self.device = device
        self.loader = loader
        self.optimizer = optimizer
        self.save_every = save_every
        self.snapshot = snapshot
        self.first_epoch = 0
        self.loss = torch.tensor(0.0)
        if snapshot.exists():
            state = torch.load(snapshot, map_location=device)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            self.first_epoch = state["epoch"] + 1
        self.model = DistributedDataParallel(model)

    def run_batch(self, inputs, targets):
        """Train one step."""
        self.optimizer.zero_grad()
        self.loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.loss.backward()
        self.optimizer.step()

    def run_epoch(self):
        """Train for one epoch."""
        for inputs, targets in self.loader:
            self.run_batch(inputs.to(self.device), targets.to(self.device))

    def save(self, epoch):
        """Save the state that the next run needs."""
        model, optimizer = self.model.module.state_dict(), self.optimizer.state_dict()
        torch.save({"model": model, "optimizer": optimizer, "epoch": epoch}, self.snapshot)

    def train(self, epochs):
        """Train to the end."""
        for epoch in range(self.first_epoch, epochs):
            self.loader.sampler.set_epoch(epoch)
            self.run_epoch()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {self.loss.item():.4f}", flush=True)
                if epoch % self.save_every == 0:
                    self.save(epoch)


def samples():
    """Points near a plane."""
    torch.manual_seed(1)
    inputs = torch.rand(2048, 20)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True) + 0.01 * torch.randn(2048, 1))


def main():
    """Train as one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=2)
    options = parser.parse_args()
    dist.init_process_group()
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    dataset = samples()
    loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))
    torch.manual_seed(2)
    model = nn.Linear(20, 1)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    path = Path(os.environ.get("SNAPSHOT", "snapshot.pt"))
    kept = {"save_every": options.save_every, "snapshot": path}
    trainer = Trainer(model, loader, optimizer, device=device, **kept)
    trainer.train(options.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
