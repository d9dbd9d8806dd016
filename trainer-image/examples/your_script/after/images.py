"""Digits with a convolutional network; workers of a DataLoader augment the images."""

import argparse

import ddp_trainer
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """8x8 images; training images get a new shift and noise each time."""

    def __init__(self, *, train):
        digits = load_digits()
        kept = [i for i in range(len(digits.target)) if (i % 5 != 0) == train]
        self.images = torch.tensor(digits.images[kept], dtype=torch.float32).unsqueeze(1) / 16
        self.targets = torch.tensor(digits.target[kept])
        self.train = train

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        image = self.images[index]
        if self.train:
            shift = torch.randint(-1, 2, (2,)).tolist()
            image = torch.roll(image, shift, dims=(1, 2)) + 0.05 * torch.randn(1, 8, 8)
        return image, self.targets[index]


def network():
    """Two convolutions with batch norm, and a linear layer."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.25), nn.Linear(128, 10)),
    )


def main():
    """Train as one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    loader = DataLoader(Digits(train=True), batch_size=32, shuffle=True, num_workers=1)
    test_loader = DataLoader(Digits(train=False), batch_size=64)
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with ddp_trainer.join(model=model, optimizer=optimizer) as job:
        device = job.device
        net = job.wrap(model)
        for epoch in job.epochs(options.epochs):
            for images, targets in job.batches(loader):
                loss = nn.functional.cross_entropy(net(images.to(device)), targets.to(device))
                loss.backward()
                job.step(loss)
            net.eval()
            right, total = 0, 0
            with torch.no_grad():
                for images, targets in job.share(test_loader):
                    found = model(images.to(device)).argmax(1)
                    right += (found == targets.to(device)).sum().item()
                    total += len(targets)
            net.train()
            right, total = job.sum(right, total)
            if job.is_main:
                print(f"epoch {epoch}: accuracy {right / total:.4f}", flush=True)


if __name__ == "__main__":
    main()
