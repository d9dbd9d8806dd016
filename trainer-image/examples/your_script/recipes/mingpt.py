"""In the style of minGPT: a text file, configurations, a trainer class, a rate that waits."""

import argparse
from dataclasses import dataclass
from pathlib import Path

import ddp_trainer
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset, random_split


@dataclass
class DataConfig:
    """Settings of the text."""

    path: Path
    block_size: int = 16
    train_split: float = 0.9


@dataclass
class TrainerConfig:
    """Settings of the training."""

    max_epochs: int
    batch_size: int = 8
    data_loader_workers: int = 1
    learning_rate: float = 3e-3
    grad_norm_clip: float = 1.0
    save_every: int = 5


class CharDataset(Dataset):
    """The text, cut into blocks."""

    def __init__(self, config):
        text = config.path.read_text()
        self.block_size = config.block_size
        self.alphabet = sorted(set(text))
        self.codes = torch.tensor([self.alphabet.index(letter) for letter in text])

    def __len__(self):
        return (len(self.codes) - 1) // self.block_size

    def __getitem__(self, index):
        begin = index * self.block_size
        block = self.codes[begin : begin + self.block_size + 1]
        return block[:-1], block[1:]


class GPT(nn.Module):
    """One layer of a transformer; its forward pass also returns the loss."""

    def __init__(self, vocabulary, block_size, width=32):
        super().__init__()
        self.letters = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(1, block_size, width))
        self.block = nn.TransformerEncoderLayer(
            width, 2, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(block_size))

    def forward(self, letters, targets):
        """Return scores of the next letters, and their loss."""
        states = self.letters(letters) + self.places
        scores = self.head(self.block(states, src_mask=self.mask, is_causal=True))
        return scores, functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


class Trainer:
    """Trains one model on one dataset."""

    def __init__(self, config, model, optimizer, train_set, test_set):
        self.config = config
        self.model = model
        self.optimizer = optimizer
        self.scheduler = ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
        workers = config.data_loader_workers
        self.train_loader = DataLoader(
            train_set, config.batch_size, shuffle=True, num_workers=workers
        )
        self.test_loader = DataLoader(test_set, config.batch_size)

    def train(self):
        """Train to the end."""
        with ddp_trainer.join(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            checkpoint_every_steps=self.config.save_every,
        ) as job:
            net = job.wrap(self.model)
            for epoch in job.epochs(self.config.max_epochs):
                for letters, targets in job.batches(self.train_loader):
                    _, loss = net(letters.to(job.device), targets.to(job.device))
                    loss.backward()
                    job.step(loss, clip_grad_norm=self.config.grad_norm_clip)
                test_loss = self.evaluate(job)
                job.evaluated(-test_loss)  # more is better; the scheduler gets it too
                if job.is_main:
                    rate = self.optimizer.param_groups[0]["lr"]
                    print(f"epoch {epoch}: test loss {test_loss:.4f}, rate {rate}", flush=True)

    @torch.no_grad()
    def evaluate(self, job):
        """Return the loss of the test set."""
        self.model.eval()
        total = count = 0
        for letters, targets in job.share(self.test_loader):
            _, loss = self.model(letters.to(job.device), targets.to(job.device))
            total, count = total + loss.item() * len(letters), count + len(letters)
        self.model.train()
        total, count = job.sum(total, count)
        return total / count


def main():
    """Train as one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(0)  # first: all ranks must split the data in the same way
    config = DataConfig(options.data)
    data = CharDataset(config)
    train_set, test_set = random_split(data, [config.train_split, 1 - config.train_split])
    model = GPT(len(data.alphabet), config.block_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=TrainerConfig.learning_rate)
    Trainer(TrainerConfig(options.epochs), model, optimizer, train_set, test_set).train()


if __name__ == "__main__":
    main()
