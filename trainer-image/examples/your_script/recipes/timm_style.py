"""In the style of timm's recipe: an average of the weights, repeated augmentation, mixup."""

import argparse

import ddp_trainer
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, Sampler

CLASSES = 10


class Digits(Dataset):
    """Replaces a folder of images; training images are noisy."""

    def __init__(self, *, train):
        digits = load_digits()
        self.train = train
        kept = [i for i in range(300) if (i % 3 != 0) == train]
        self.images = torch.tensor(digits.images[kept], dtype=torch.float32) / 16
        self.targets = torch.tensor(digits.target[kept])

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        noise = 0.1 * torch.randn(8, 8) if self.train else 0.0
        return self.images[index] + noise, self.targets[index]


class RepeatAugSampler(Sampler):
    """Repeats each image of an epoch several times, each time with another augmentation.

    It gives the samples of all ranks; `job.batches` splits them among ranks.
    """

    def __init__(self, dataset, repeats=3):
        self.dataset = dataset
        self.repeats = repeats

    def __len__(self):
        return len(self.dataset)

    def __iter__(self):
        order = torch.randperm(len(self.dataset)).repeat_interleave(self.repeats)
        return iter(order[: len(self)].tolist())


def mixup(images, targets, alpha=0.2):
    """Mix each image with another one of the batch, and return the targets mixed, too."""
    part = np.random.beta(alpha, alpha)
    soft = nn.functional.one_hot(targets, CLASSES).float()
    return torch.lerp(images.flip(0), images, part), torch.lerp(soft.flip(0), soft, part)


def network():
    """A small replacement for a vision transformer."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1)),
        nn.Linear(32, CLASSES),
    )


@torch.no_grad()
def accuracy(model, loader, job):
    """Return the share of images that a model classifies correctly."""
    model.eval()
    right = total = 0
    for images, targets in job.share(loader):
        right += (model(images.to(job.device)).argmax(1).cpu() == targets).sum().item()
        total += len(targets)
    model.train()
    right, total = job.sum(right, total)
    return right / total


def main():
    """Train as one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    dataset = Digits(train=True)
    loader = DataLoader(dataset, 16, sampler=RepeatAugSampler(dataset), num_workers=1)
    test_loader = DataLoader(Digits(train=False), 16)
    model = network()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    steps = options.epochs * ddp_trainer.steps_per_epoch(loader)
    warmup = LinearLR(optimizer, 0.1, total_iters=3)
    cosine = CosineAnnealingLR(optimizer, T_max=steps - 3)
    scheduler = SequentialLR(optimizer, [warmup, cosine], milestones=[3])
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    with ddp_trainer.join(
        model=model,
        average=average,
        optimizer=optimizer,
        scheduler=scheduler,
        checkpoint_every_steps=5,
    ) as job:
        net = job.wrap(model)
        for epoch in job.epochs(options.epochs):
            for batch in job.batches(loader):
                images, targets = mixup(*(part.to(job.device) for part in batch))
                loss = criterion(net(images), targets)
                loss.backward()
                if job.step(loss, clip_grad_norm=1.0):
                    average.update_parameters(model)
            plain, averaged = (accuracy(each, test_loader, job) for each in (model, average))
            job.evaluated(averaged)
            if job.is_main:
                print(f"epoch {epoch}: {plain:.4f}, averaged {averaged:.4f}", flush=True)


if __name__ == "__main__":
    main()
