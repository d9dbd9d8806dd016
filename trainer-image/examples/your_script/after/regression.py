"""A linear regression with DDP."""

import argparse

import ddp_trainer
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    """Trains a model."""

    def __init__(self, model, loader, optimizer, *, device, job):
        self.device = device
        self.loader = loader
        self.optimizer = optimizer
        self.job = job
        self.loss = torch.tensor(0.0)
        self.model = job.wrap(model)

    def run_batch(self, inputs, targets):
        """Train one step."""
        self.optimizer.zero_grad()
        self.loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.loss.backward()
        self.job.step(self.loss)

    def run_epoch(self):
        """Train for one epoch."""
        for inputs, targets in self.job.batches(self.loader):
            self.run_batch(inputs.to(self.device), targets.to(self.device))

    def train(self, epochs):
        """Train to the end."""
        for epoch in self.job.epochs(epochs):
            self.run_epoch()
            if self.job.is_main:
                print(f"epoch {epoch}: loss {self.loss.item():.4f}", flush=True)


def samples():
    """Points near a plane."""
    torch.manual_seed(1)
    inputs = torch.rand(2048, 20)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True) + 0.01 * torch.randn(2048, 1))


def main():
    """Train as one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    dataset = samples()
    loader = DataLoader(dataset, batch_size=32, shuffle=True)
    torch.manual_seed(2)
    model = nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with ddp_trainer.join(model=model, optimizer=optimizer) as job:
        trainer = Trainer(model, loader, optimizer, device=job.device, job=job)
        trainer.train(options.epochs)


if __name__ == "__main__":
    main()
