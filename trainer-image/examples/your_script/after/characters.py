"""A small GPT that learns to write like a text."""

import argparse
from dataclasses import dataclass
from pathlib import Path

import ddp_trainer
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

TEXT = Path(argparse.__file__).read_text()[:8000]


@dataclass
class Shape:
    """Sizes of the model."""

    vocabulary: int
    block: int = 32
    width: int = 64
    heads: int = 4
    layers: int = 2


class Block(nn.Module):
    """Attention to earlier letters, then a small network for each position."""

    def __init__(self, shape):
        super().__init__()
        self.before_attention = nn.LayerNorm(shape.width)
        self.attention = nn.MultiheadAttention(shape.width, shape.heads, batch_first=True)
        self.before_network = nn.LayerNorm(shape.width)
        self.network = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
        )
        future = torch.ones(shape.block, shape.block, dtype=torch.bool).triu(1)
        self.register_buffer("future", future)

    def forward(self, states):
        """Return the states after this layer."""
        size = states.shape[1]
        seen = self.before_attention(states)
        mask = self.future[:size, :size]
        attended, _ = self.attention(seen, seen, seen, attn_mask=mask, need_weights=False)
        states = states + attended
        return states + self.network(self.before_network(states))


class GPT(nn.Module):
    """Predicts the next letter from letters."""

    def __init__(self, shape):
        super().__init__()
        self.letters = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.block, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary)

    def forward(self, letters):
        """Return scores of the letter after each one."""
        places = torch.arange(letters.shape[1], device=letters.device)
        return self.head(self.norm(self.blocks(self.letters(letters) + self.places(places))))


class Characters(Dataset):
    """Each window of the text, and the same window one letter later."""

    def __init__(self, block):
        self.block = block
        self.alphabet = sorted(set(TEXT))
        self.codes = torch.tensor([self.alphabet.index(letter) for letter in TEXT])

    def __len__(self):
        return len(self.codes) - self.block

    def __getitem__(self, begin):
        stretch = self.codes[begin : begin + self.block + 1]
        return stretch[:-1], stretch[1:]


def main():
    """Train as one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    dataset = Characters(block=32)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, drop_last=True)
    torch.manual_seed(0)
    model = GPT(Shape(vocabulary=len(dataset.alphabet)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    loss = torch.zeros(())  # of a new rank that joins when the epoch's batches are done
    with ddp_trainer.join(model=model, optimizer=optimizer, scheduler=scheduler) as job:
        device = job.device
        net = job.wrap(model)
        for epoch in job.epochs(options.epochs):
            for letters, following in job.batches(loader):
                scores = net(letters.to(device))
                targets = following.flatten().to(device)
                loss = functional.cross_entropy(scores.flatten(0, 1), targets)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                job.step(loss)
            if job.is_main:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
