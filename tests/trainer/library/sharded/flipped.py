"""A script with a sharded model in which bits flip, at times that are drawn at random."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import ddp_trainer
import torch
from ddp_trainer.library.checks.verification import compared
from ddp_trainer.library.job import Job
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.library.checks.flipping import flip
from tests.trainer.library.script import digest
from tests.trainer.library.sharded.sharding import Own

PLAN = "TEST_SHARDED_FLIPS"
_BATCH = 4
_FEATURES = 8

Kind = Literal["state", "state at rest", "gradient"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A training and its flips; a variable in the environment has it."""

    kind: Kind
    """State after a step, or during the next one; or a gradient."""
    flips: int
    steps: int
    folder: str
    """Each flip leaves a file here, so that it happens once. Others show which ones lasted."""
    shard_size: int | None = None
    verify_replicas: int = 0
    verify_gradients: int = 0
    copies: int = 1
    first: int = 3
    """Step of the first flip."""
    between: int = 4
    """Steps from one flip to the next."""
    ranks: Sequence[int] = ()
    """Ranks of the flips; empty: drawn among all."""

    @classmethod
    def from_env(cls) -> Self:
        """Return the plan of this process."""
        return cls(**json.loads(os.environ[PLAN]))

    def variables(self) -> dict[str, str]:
        """Return the variables for `from_env`."""
        return {PLAN: json.dumps(asdict(self))}


def flip_in_memory(tensor: Tensor, bit: int) -> None:
    """Flip a bit of a tensor on the CPU as memory does: torch does not count it as a change."""
    tensor.detach().reshape(-1).view(torch.uint8).numpy()[bit // 8] ^= 1 << bit % 8


class Faults:
    """The flips of one rank."""

    def __init__(self, plan: Plan, job: Job, model: nn.Module, optimizer: torch.optim.Optimizer):
        self._plan, self._job = plan, job
        self._parts = [model], [optimizer]
        self._folder = Path(plan.folder)
        self._flipped: int | None = None
        """The step at which the present fault of the processor began."""
        self._last = 0

    def _draw(self, step: int) -> random.Random | None:
        """Return the random numbers of a flip of this rank at a step, if there is one now."""
        number, rest = divmod(step - self._plan.first, self._plan.between)
        if rest or not 0 <= number < self._plan.flips:
            return None
        drawn = random.Random(number)
        rank = drawn.choice(self._plan.ranks or range(self._job.world_size))
        mark = self._folder / f"flip-{number}"
        if rank != self._job.rank or mark.exists():
            return None
        mark.write_text(str(rank))
        return drawn

    def of_state(self, kind: Kind) -> None:
        """Flip a bit in this rank's part of the weights or optimizer states."""
        if kind != self._plan.kind:
            return
        drawn = self._draw(self._job.steps_done)
        if drawn is not None:
            # Without the optimizer's count of steps: AdamW itself may fail with a wrong one.
            tensor = drawn.choice([each for each in self._stored() if each.ndim and each.numel()])
            flip_in_memory(tensor, drawn.randrange(8 * tensor.nbytes))

    def of_gradient(self, gradient: Tensor) -> Tensor:
        """Return a gradient with a wrong bit, from a step on until the run returns."""
        step = self._job.steps_done
        if self._plan.kind != "gradient":
            return gradient
        if step < self._last:
            self._flipped = None
        self._last = step
        drawn = self._draw(step)
        if drawn is not None:
            self._flipped = step
        if self._flipped is None:
            return gradient
        wrong = gradient.clone()
        flip(wrong, random.Random(self._flipped).randrange(8 * wrong.nbytes))
        return wrong

    def note(self) -> None:
        """Append a digest of this rank's part to a file, after a step that is verified."""
        plan, job = self._plan, self._job
        if plan.kind == "state" and job.steps_done % plan.verify_replicas == 0:
            found = hashlib.sha256()
            for tensor in self._stored():
                found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
            with (self._folder / f"digests-{job.rank}").open("a") as file:
                print(job.steps_done, found.hexdigest(), file=file)

    def _stored(self) -> list[Tensor]:
        found = compared(*self._parts)
        return [each.to_local() if isinstance(each, DTensor) else each for each in found]


def main(arguments: Sequence[str]) -> None:
    del arguments
    plan = Plan.from_env()
    torch.manual_seed(0)
    mesh = ddp_trainer.device_mesh(plan.shard_size)
    model = nn.Sequential(
        nn.Linear(_FEATURES, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 3)
    )
    for layer in (model[0], model[4]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(_BATCH * 512, _FEATURES)
    samples = TensorDataset(inputs, inputs[:, :3] * inputs[:, 3:6])
    with ddp_trainer.join(
        model=model,
        optimizer=optimizer,
        checkpoint_dir="",
        shard_copies=plan.copies,
        verify_replicas=plan.verify_replicas,
        verify_gradients=plan.verify_gradients,
        log_every_steps=1000,
        group_timeout_seconds=300,
        heartbeat_timeout_seconds=0,
    ) as job:
        faults = Faults(plan, job, model, optimizer)
        hooks: list[Any] = []

        def hook(layer: nn.Module, *_: object) -> None:
            if not hooks:  # the whole weight exists during a pass only
                hooks.append(layer.weight.register_hook(faults.of_gradient))  # type: ignore[operator]

        model[0].register_forward_pre_hook(hook)
        loader = DataLoader(samples, batch_size=_BATCH, shuffle=True)
        for _ in job.epochs(plan.steps, max_steps=plan.steps):
            for batch, targets in job.batches(loader):
                loss = nn.functional.mse_loss(model(batch), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                faults.of_state("state at rest")
                if job.step(loss, clip_grad_norm=1.0):
                    faults.of_state("state")
                    faults.note()
        print(f"rank {job.rank} ends with {digest(Own(model, optimizer))}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
