"""In the style of the ImageNet recipes: meters, workers, schedules by epoch, --evaluate."""

import argparse
import json
from pathlib import Path

import ddp_trainer
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """Replaces a folder of images; training images are shifted at random."""

    def __init__(self, *, train):
        digits = load_digits()
        self.train = train
        kept = [i for i in range(400) if (i % 4 != 0) == train]
        self.images = torch.tensor(digits.images[kept], dtype=torch.float32).unsqueeze(1) / 16
        self.targets = torch.tensor(digits.target[kept])

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        image = self.images[index]
        if self.train:
            image = torch.roll(image, torch.randint(-1, 2, (2,)).tolist(), dims=(1, 2))
        return image, self.targets[index]


class AverageMeter:
    """The mean of a number over batches, and over ranks."""

    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, count):
        """Add a batch."""
        self.sum += value * count
        self.count += count

    def all_reduce(self, job):
        """Return the mean over all ranks; call it between epochs."""
        total, count = job.sum(self.sum, self.count)
        return total / count


def network():
    """A small replacement for a ResNet."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)),
    )


def train(loader, net, criterion, job):
    """Train for one epoch, or the rest of it."""
    for batch in job.batches(loader):
        images, targets = (part.to(job.device) for part in batch)
        loss = criterion(net(images), targets)
        loss.backward()
        if job.step(loss) and job.steps_done % 5 == 0 and job.is_main:
            print(f"step {job.steps_done}: loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def validate(loader, model, criterion, job):
    """Return the accuracy on all images."""
    losses, accuracy = AverageMeter(), AverageMeter()
    model.eval()
    for batch in job.share(loader):
        images, targets = (part.to(job.device) for part in batch)
        output = model(images)
        losses.update(criterion(output, targets).item(), len(targets))
        accuracy.update((output.argmax(1) == targets).float().mean().item(), len(targets))
    model.train()
    loss, top1 = losses.all_reduce(job), accuracy.all_reduce(job)
    if job.is_main:
        step = job.steps_done
        print(f"validated at step {step}: loss {loss:.4f}, accuracy {top1:.4f}", flush=True)
    return top1


def read_checkpoint(folder):
    """Return the state in a checkpoint, with the frozen weights from their own file."""
    state = torch.load(folder / "state.pt", weights_only=True, map_location="cpu")
    manifest = json.loads((folder / "manifest.json").read_text())["content"]
    if "frozen" in manifest:
        file = folder.parent / manifest["frozen"]["name"]
        for part, weights in torch.load(file, weights_only=True, map_location="cpu").items():
            state[part] = {**weights, **state[part]}  # what state.pt has is newer
    return state


def main():
    """Train, or evaluate, as one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--pretrained", type=Path, help="begin with the weights of a checkpoint")
    parser.add_argument("--evaluate", action="store_true", help="evaluate the last checkpoint")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = network()
    if options.pretrained:
        model.load_state_dict(read_checkpoint(options.pretrained)["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    loader = DataLoader(
        Digits(train=True), 16, shuffle=True, num_workers=options.workers, drop_last=True
    )
    test_loader = DataLoader(Digits(train=False), 16, num_workers=options.workers)
    criterion = nn.CrossEntropyLoss()
    with ddp_trainer.join(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scheduler_interval="epoch",
        checkpoint_every_steps=5,
    ) as job:  # --resume is not needed: training resumes from the job's newest checkpoint
        if options.evaluate:
            validate(test_loader, model, criterion, job)
            return
        net = job.wrap(model)
        for _ in job.epochs(options.epochs):
            train(loader, net, criterion, job)
            job.evaluated(validate(test_loader, model, criterion, job))


if __name__ == "__main__":
    main()
