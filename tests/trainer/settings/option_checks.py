"""Checks of DDP's options on two ranks.

In each: `python -m tests.trainer.settings.option_checks FOLDER`

Every check is a function that all ranks call; what it returns is for the tests to judge.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.pending import PendingWork
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.loop.learner import Learner
from ddp_trainer.loop.train import train
from ddp_trainer.process_group.world import World
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.system.logs import end_process
from ddp_trainer.workloads.base import Samples, Workload
from torch import Tensor, nn
from torch.futures import Future
from torch.nn import functional

from tests.trainer.support.same_group import job_in

Json = Any
FEATURES, CLASSES, BATCH = 24, 8, 8


class Net(nn.Module):
    """Two layers; a third that only some ranks use, or none."""

    seen: Tensor

    def __init__(self, *, extra_on: tuple[int, ...] = (), with_extra: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 32)
        self.second = nn.Linear(32, CLASSES)
        self.register_buffer("seen", torch.zeros(1))
        if extra_on or with_extra:
            self.extra = nn.Linear(32, CLASSES)
        self.extra_on = extra_on

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.seen.fill_(rank() + 5)
        hidden = self.first(inputs).relu()
        outputs: Tensor = self.second(hidden)
        return outputs + self.extra(hidden) if rank() in self.extra_on else outputs


def rank() -> int:
    return int(os.environ["RANK"])


def workload(model: Callable[[], nn.Module] = Net) -> Workload:
    generator = torch.Generator().manual_seed(1)
    samples = Samples(
        inputs=torch.randn(64, FEATURES, generator=generator),
        targets=torch.randint(CLASSES, (64,), generator=generator),
    )
    return Workload(
        train=samples,
        test=samples,
        model=model,
        loss=functional.cross_entropy,
        score=lambda outputs, targets: (outputs.argmax(1) == targets).float(),
    )


class CountingWork(PendingWork):
    """Counts the buckets of gradients."""

    buckets = 0

    def guard(self, future: Future[Any], **how: Any) -> Future[Any]:
        self.buckets += 1
        return super().guard(future, **how)


class Trial:
    """A training of some steps with some flags."""

    def __init__(self, group: Group, *flags: str, trained: Workload | None = None) -> None:
        trained = trained or workload()
        self._options = Options.parse(
            ["--batch-size", str(BATCH), "--epochs=100", "--checkpoint-every-steps=0", *flags]
        )
        self.learner = Learner.of(
            trained, self._options, world_size=group.size, device=group.device
        )
        self.travelled = CountingWork()
        counted = copy.copy(group)
        counted._pending = self.travelled
        self.job = job_in(counted, self._options)
        self.counts: dict[int, int] = {}
        """Of buckets that had travelled, by step."""
        self.gradients: dict[str, Tensor] = {}
        """Gradients of the last step."""
        self.learner.optimizer.register_step_pre_hook(self._look)

    def train(
        self,
        steps: int,
        *,
        begin_at: Json | None = None,
        then: Callable[[int], object] = lambda _: None,
    ) -> Trial:
        """Train up to a step; `then` is called after each of them, with its number."""
        take = self.job.step

        def step(*arguments: Any, **options: Any) -> bool:
            taken = take(*arguments, **options)
            if taken:
                self.counts[self.job.steps_done] = self.travelled.buckets
                then(self.job.steps_done)
            return taken

        self.job.step = step  # type: ignore[method-assign]
        with self.job.joined(self.learner.parts()):
            if begin_at is not None:
                self.run.load_state_dict(copy.deepcopy(begin_at))
            train(self.job, self.learner, replace(self._options, max_steps=steps))
        return self

    @property
    def run(self) -> TrainState:
        return self.job._run

    def parameters(self) -> list[float]:
        return flat(parameter.detach() for parameter in self.learner.model.parameters())

    def _look(self, *_: object) -> None:
        self.gradients = {
            name: parameter.grad
            for name, parameter in self.learner.model.named_parameters()
            if parameter.grad is not None
        }


def flat(tensors: Iterable[Tensor]) -> list[float]:
    values: list[float] = torch.cat([tensor.flatten() for tensor in tensors]).tolist()
    return values


def accumulation(group: Group) -> Json:
    whole = Trial(group, "--batch-size=16").train(3)
    parts = Trial(group, "--accumulate-steps=2").train(3)
    # The last step of an epoch takes what 12 a step leave of 32 samples of each rank: 6 and 2.
    uneven = Trial(group, "--batch-size=6", "--accumulate-steps=2", "--log-every-steps=3").train(3)
    plain = Trial(group, "--batch-size=12", "--log-every-steps=3").train(3)
    return {
        "whole": whole.parameters(),
        "parts": parts.parameters(),
        "buckets": parts.travelled.buckets,
        "uneven": [uneven.job._report.known.loss, *uneven.parameters()],
        "plain": [plain.job._report.known.loss, *plain.parameters()],
    }


def bf16(group: Group) -> Json:
    kinds: list[str] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        kinds.append(str(outputs.dtype))
        return functional.cross_entropy(outputs, targets)

    def score(outputs: Tensor, targets: Tensor) -> Tensor:
        kinds.append(str(outputs.dtype))
        return targets.float()

    trained = replace(workload(), loss=loss, score=score)
    trial = Trial(group, "--precision=bf16", "--evaluation-batch-size=64", trained=trained).train(2)
    return {"kinds": kinds, "parameters": str(next(trial.learner.model.parameters()).dtype)}


def unused_parameters(group: Group) -> Json:
    def complaint(model: Callable[[], nn.Module], *flags: str) -> str:
        try:
            Trial(group, *flags, trained=workload(model)).train(3)
        except ConfigurationError as error:
            return str(error)
        return ""

    never = functools.partial(Net, with_extra=True)
    sometimes = workload(functools.partial(Net, extra_on=(1,)))
    trial = Trial(group, "--find-unused-parameters", trained=sometimes).train(1)
    return {
        "never": complaint(never),
        "never, accumulated": complaint(never, "--accumulate-steps=2"),
        "never, found": complaint(never, "--find-unused-parameters"),
        "never, static": complaint(never, "--static-graph"),
        "on rank 1": flat([trial.gradients["extra.weight"]]),
    }


def static_graph_accumulates(group: Group) -> Json:
    static = Trial(group, "--static-graph", "--accumulate-steps=2").train(3)
    plain = Trial(group, "--accumulate-steps=2").train(3)
    return {"static": static.parameters(), "plain": plain.parameters()}


def buckets(group: Group) -> Json:
    counts = {}
    for megabytes in ("25", "0.001"):
        trial = Trial(group, f"--bucket-cap-mb={megabytes}")
        trial.train(2)  # DDP rebuilds its buckets after the first pass
        counts[megabytes] = trial.counts[2] - trial.counts[1]
    return counts


def bucket_views(group: Group) -> Json:
    shared = {}
    for flag in ("--gradient-as-bucket-view", "--no-gradient-as-bucket-view"):
        gradients = Trial(group, flag).train(1).gradients.values()
        shared[flag] = len({gradient.untyped_storage().data_ptr() for gradient in gradients})
    return shared


def buffers(group: Group) -> Json:
    seen: dict[str, list[float]] = {}
    for flag in ("--broadcast-buffers", "--no-broadcast-buffers"):
        trial = Trial(group, flag)
        buffer = trial.learner.model.get_buffer("seen")
        found = seen[flag] = []
        trial.train(2, then=functools.partial(append_value, found, buffer))
        append_value(found, buffer, 2)
    return seen


def append_value(values: list[float], of: Tensor, _: int) -> None:
    values.append(of.item())


def compression(group: Group) -> Json:
    return {
        kind: flat(Trial(group, f"--gradient-compression={kind}").train(1).gradients.values())
        for kind in ("none", "fp16", "bf16")
    }


def compiled(group: Group) -> Json:
    frames = torch._dynamo.utils.counters["frames"]
    plain = Trial(group).train(2)
    before = frames["ok"]
    eager = Trial(group, "--compile=eager").train(2)
    return {
        "frames": [before, frames["ok"]],
        "plain": plain.parameters(),
        "compiled": eager.parameters(),
        "names": list(eager.learner.model.state_dict()) == list(plain.learner.model.state_dict()),
    }


def logical_shards(group: Group) -> Json:
    """Of three ranks' batches on two, and of two ranks' on as many."""
    two, three = "--logical-shards=2", "--logical-shards=3"
    sometimes = workload(functools.partial(Net, extra_on=(1,)))
    never = workload(functools.partial(Net, with_extra=True))
    unused = Trial(group, two, "--find-unused-parameters", trained=sometimes).train(1)
    try:
        Trial(group, two, trained=never).train(1)
        complaint = ""
    except ConfigurationError as error:
        complaint = str(error)
    pieces = Trial(group, three, "--bucket-cap-mb=0.001").train(3)
    return {
        "plain": [Trial(group).train(3).parameters(), Trial(group, two).train(3).parameters()],
        "pieces": [Trial(group, three).train(3).parameters(), pieces.parameters()],
        "accumulated": [
            Trial(group, three, "--accumulate-steps=2", "--batch-size=4").train(3).parameters(),
            Trial(group, three, "--batch-size=8").train(3).parameters(),
        ],
        "gradients": gradients_of(group, three),
        "static": [
            Trial(group, three, "--static-graph").train(3).parameters(),
            Trial(group, three, "--compile=eager").train(3).parameters(),
        ],
        "on rank 1": flat([unused.gradients["extra.weight"]]),
        "never": complaint,
    }


def gradients_of(group: Group, *flags: str) -> Json:
    """With which the last step of some trainings was taken."""
    trials = {
        "plain": Trial(group, *flags).train(3),
        # The fourth step, an epoch's last, has a sample for three of two ranks' four parts.
        "to the last sample": Trial(group, *flags, "--batch-size=7").train(5),
        "four batches": Trial(group, *flags, "--accumulate-steps=4", "--batch-size=3").train(3),
    }
    return {name: flat(trial.gradients.values()) for name, trial in trials.items()}


def even_shares(group: Group) -> Json:
    """The same without an order, as where a group of three has become one of two."""
    found = {}
    with mock.patch.dict(os.environ, {"DDP_BATCH": "global", "DDP_BATCH_RANKS": "3"}):
        for kind in ("none", "fp16", "bf16"):
            trial = Trial(group, f"--gradient-compression={kind}").train(1)
            found[kind] = flat(trial.gradients.values())
        found["gradients"] = gradients_of(group)
    with mock.patch.dict(os.environ, {"DDP_BATCH": "global", "DDP_BATCH_RANKS": "2"}):
        found["as many as ranks"] = Trial(group).train(3).parameters()
    return found


CHECKS = (
    accumulation,
    bf16,
    unused_parameters,
    static_graph_accumulates,
    buckets,
    bucket_views,
    buffers,
    compression,
    compiled,
    logical_shards,
    even_shares,
)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    environment = Environment.from_env(os.environ)
    world = World(environment, group_timeout_seconds=60, heartbeat_timeout_seconds=0)
    results: dict[str, Json] = {}
    with world.formed(timeout_seconds=60) as group:
        for check in CHECKS:
            results[check.__name__] = check(group)
    (folder / f"rank-{environment.rank}").write_text(json.dumps(results))
    end_process(0)  # gloo's threads may have to let go of tensors, which aborts Python's shutdown


if __name__ == "__main__":
    main(Path(sys.argv[1]))
