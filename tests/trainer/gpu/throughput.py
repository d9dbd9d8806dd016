"""Compares a step of a loop written by hand with one of the library, in one process.

    python -m tests.trainer.gpu.throughput WIDTH LAYERS BATCH STEPS ROUNDS

It trains a transformer in bfloat16 with AdamW, in a group of one rank. It prints the milliseconds a
step of each round, until the GPU has done all steps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import ddp_trainer
import torch
from ddp_trainer.collectives.script_group import ScriptGroup
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

LENGTH, VOCABULARY = 512, 8192
_WARM_UP_STEPS = 10


class Model(nn.Module):
    """A model of the next token."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean loss."""
        scores = self.head(self.layers(self.tokens(tokens)))
        return nn.functional.cross_entropy(scores.flatten(0, 1).float(), tokens.flatten())


def main(width: int, layers: int, batch: int, steps: int, rounds: int) -> None:
    """Train with both in turns."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randint(VOCABULARY, (batch * steps, LENGTH)))
    loader = DataLoader(data, batch_size=batch)
    ours, theirs = Model(width, layers), Model(width, layers).cuda()
    optimizer = torch.optim.AdamW(ours.parameters(), fused=True)
    with ddp_trainer.join(
        model=ours, optimizer=optimizer, checkpoint_every_seconds=0, log_every_steps=10
    ) as job:
        group = distributed_c10d._get_default_group()
        assert isinstance(group, ScriptGroup)
        by_hand = DistributedDataParallel(
            theirs, process_group=group.formed, gradient_as_bucket_view=True
        )
        other = torch.optim.AdamW(theirs.parameters(), fused=True)
        net = job.wrap(ours)

        def with_the_library(stamp: Callable[[], None]) -> None:
            for (tokens,) in job.batches(loader):
                with torch.autocast("cuda", torch.bfloat16):
                    loss = net(tokens.to(job.device))
                loss.backward()
                job.step(loss)
                stamp()

        def hand_written(stamp: Callable[[], None]) -> None:
            for number, (tokens,) in enumerate(loader):
                with torch.autocast("cuda", torch.bfloat16):
                    loss = by_hand(tokens.to(job.device))
                other.zero_grad()
                loss.backward()
                other.step()
                if number % 10 == 9:
                    loss.item()
                stamp()

        for _ in job.epochs(rounds):
            took = {"by hand": timed(hand_written), "library": timed(with_the_library)}
            took["ratio"] = round(took["library"] / took["by hand"], 4)
            print(json.dumps(took), flush=True)
    os._exit(0)


def timed(train: Callable[[Callable[[], None]], None]) -> float:
    """Return the milliseconds a step, without the first steps."""
    count, begun = 0, 0.0

    def stamp() -> None:
        nonlocal count, begun
        count += 1
        if count == _WARM_UP_STEPS:
            torch.cuda.synchronize()
            begun = time.perf_counter()

    train(stamp)
    torch.cuda.synchronize()
    return round((time.perf_counter() - begun) / (count - _WARM_UP_STEPS) * 1e3, 3)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
