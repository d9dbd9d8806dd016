"""A script with a model that leaves out a layer in each step, on each rank another one."""

from __future__ import annotations

from collections.abc import Sequence

import ddp_trainer
import torch
from torch import Tensor, nn

from tests.trainer.library.script import digest, digits, parsed

BRANCHES = 4


class Branches(nn.Module):
    """Layers; each pass uses all but one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 10) for _ in range(BRANCHES))

    def forward(self, images: Tensor, without: int) -> Tensor:
        """Return the sum of the layers' outputs."""
        used = (layer for number, layer in enumerate(self.layers) if number != without)
        return torch.stack([layer(images.flatten(1)) for layer in used]).sum(0)


def main(arguments: Sequence[str]) -> None:
    options = parsed(arguments)
    torch.manual_seed(0)
    model = Branches()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    with ddp_trainer.join(
        model=model, optimizer=optimizer, group_timeout_seconds=20, max_reforms=100
    ) as job:
        net = job.wrap(model, bucket_cap_mb=0.01, find_unused_parameters=True)
        for _ in job.epochs(options.epochs):
            for inputs, targets, _places in job.batches(digits(job.rank)):
                without = (job.steps_done + job.rank) % BRANCHES
                loss = nn.functional.cross_entropy(net(inputs, without), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
    print(f"ends with {digest(model, optimizer)}", flush=True)
