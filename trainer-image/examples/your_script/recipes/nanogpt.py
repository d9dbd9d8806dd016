"""In the style of nanoGPT: random windows of a token file, accumulation, a rate set by hand."""

import argparse
import math
from pathlib import Path

import ddp_trainer
import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

BLOCK, VOCABULARY, WIDTH = 16, 32, 32
BATCH_SIZE, GRADIENT_ACCUMULATION_STEPS = 4, 4
SAMPLES_BETWEEN_EVALUATIONS = 256
MAX_ITERS, WARMUP_ITERS, LEARNING_RATE, MIN_LR = 20, 4, 3e-3, 3e-4


class Windows(Dataset):
    """Random windows of a file of tokens: `get_batch`, one sample at a time.

    Its length is that of an epoch: the samples of all ranks between two evaluations.
    """

    def __init__(self, path, samples):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        begin = torch.randint(len(self.tokens) - BLOCK, ()).item()
        window = torch.from_numpy(self.tokens[begin : begin + BLOCK + 1].astype(np.int64))
        return window[:-1], window[1:]


class GPT(nn.Module):
    """A small replacement for a GPT."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.zeros(BLOCK, WIDTH))
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens, targets):
        """Return the loss; the only context of a token is the mean of those before it."""
        states = self.tokens(tokens) + self.places
        counts = torch.arange(1, BLOCK + 1, device=tokens.device).unsqueeze(1)
        states = states + self.network(states.cumsum(1) / counts)
        scores = functional.linear(self.norm(states), self.tokens.weight)
        return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def rate_of(iteration):
    """Return the learning rate: a linear warm-up, then a cosine."""
    if iteration < WARMUP_ITERS:
        return LEARNING_RATE * (iteration + 1) / WARMUP_ITERS
    part = (iteration - WARMUP_ITERS) / (MAX_ITERS - WARMUP_ITERS)
    return MIN_LR + 0.5 * (1 + math.cos(math.pi * part)) * (LEARNING_RATE - MIN_LR)


@torch.no_grad()
def estimate_loss(model, loader, job):
    """Return the mean loss of some windows."""
    model.eval()
    total = count = 0
    for tokens, targets in job.share(loader):
        total += model(tokens.to(job.device), targets.to(job.device)).item()
        count += 1
    model.train()
    total, count = job.sum(total, count)
    return total / count


def main():
    """Train as one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="a file of uint16 tokens")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))
    loader = DataLoader(Windows(options.data, SAMPLES_BETWEEN_EVALUATIONS), BATCH_SIZE)
    test_loader = DataLoader(Windows(options.data, 64), BATCH_SIZE)
    with ddp_trainer.join(model=model, optimizer=optimizer, checkpoint_every_steps=5) as job:
        net = job.wrap(model)
        for epoch in job.epochs(MAX_ITERS, max_steps=MAX_ITERS):
            for tokens, targets in job.batches(loader, accumulate=GRADIENT_ACCUMULATION_STEPS):
                for group in optimizer.param_groups:
                    group["lr"] = rate_of(job.steps_done)
                loss = net(tokens.to(job.device), targets.to(job.device)) * job.weight
                loss.backward()
                if job.step(loss, clip_grad_norm=1.0):  # the last batch of the step
                    job.log(lr=optimizer.param_groups[0]["lr"])
            loss = estimate_loss(model, test_loader, job)
            if job.is_main:
                print(f"epoch {epoch}: test loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
