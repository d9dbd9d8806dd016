"""What two ranks see of DDP's options: `python -m tests.trainer.option_checks FOLDER` in each.

Every check is a function that all ranks call; what it returns is for the tests to judge.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.waits import Waits
from ddp_trainer.data.staging import Stage
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.loop.replica import Replica
from ddp_trainer.loop.train import evaluate, new_run
from ddp_trainer.membership.world import World
from ddp_trainer.run.run import ModelRun
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.workloads.base import Samples, Workload
from torch import Tensor, nn
from torch.futures import Future
from torch.nn import functional

Json = Any
FEATURES, CLASSES, BATCH = 24, 8, 8


class Net(nn.Module):
    """Two layers; a third that only some ranks use, or none."""

    def __init__(self, *, extra_on: tuple[int, ...] = (), with_extra: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 32)
        self.second = nn.Linear(32, CLASSES)
        self.register_buffer("seen", torch.zeros(1))
        if extra_on or with_extra:
            self.extra = nn.Linear(32, CLASSES)
        self.extra_on = extra_on

    def forward(self, inputs: Tensor) -> Tensor:
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


class CountingWaits(Waits):
    """Waits that count the buckets of gradients."""

    buckets = 0

    def guard(
        self, future: Future[Any], value: Callable[[], Tensor], *, quiet: bool = False
    ) -> Future[Tensor]:
        self.buckets += 1
        return super().guard(future, value, quiet=quiet)


class Trial:
    """A run of some steps with some flags."""

    def __init__(self, group: Group, *flags: str, model: Callable[[], nn.Module] = Net) -> None:
        self.group = group
        self.options = Options.parse(["--batch-size", str(BATCH), "--epochs=100", *flags])
        self.workload = workload(model)
        self.run: ModelRun = new_run(
            self.workload, self.options, world_size=group.size, device=group.device
        )
        self.travelled = CountingWaits()
        counted = copy.copy(group)
        counted._waits = self.travelled
        self.replica = Replica(self.run, counted, self.workload.loss, self.options)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        size = self.options.step_size
        first = (step * self.group.size + self.group.rank) * size
        return self.workload.train.batch([(first + i) % 64 for i in range(size)])

    def backward(self, step: int = 0) -> Tensor:
        batch = self.batch(step)
        self.replica.rehearse(*batch)
        return self.replica.backward(*batch)

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last):
            self.backward(step)
            self.run.complete_step(BATCH)

    def parameters(self) -> list[float]:
        return flat(parameter.detach() for parameter in self.run.model.parameters())

    def gradients(self) -> list[float]:
        return flat(
            parameter.grad
            for parameter in self.run.model.parameters()
            if parameter.grad is not None
        )


def flat(tensors: Any) -> list[float]:
    values: list[float] = torch.cat([tensor.flatten() for tensor in tensors]).tolist()
    return values


def accumulation(group: Group) -> Json:
    whole = Trial(group, "--batch-size=16")
    parts = Trial(group, "--accumulate-steps=2")
    for trial in (whole, parts):
        trial.steps(0, 3)
    uneven = Trial(group, "--accumulate-steps=2")
    uneven_batch = uneven.workload.train.batch(range(11))
    loss = uneven.replica.backward(*uneven_batch)
    plain = Trial(group, "--batch-size=11")
    return {
        "whole": whole.parameters(),
        "parts": parts.parameters(),
        "buckets": parts.travelled.buckets,
        "uneven": loss.item(),
        "plain": plain.replica.backward(*uneven_batch).item(),
    }


def bf16(group: Group) -> Json:
    kinds: list[str] = []
    trial = Trial(group, "--precision=bf16")

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        kinds.append(str(outputs.dtype))
        return functional.cross_entropy(outputs, targets)

    trial.replica._loss = loss
    trial.steps(0, 2)

    def score(outputs: Tensor, targets: Tensor) -> Tensor:
        kinds.append(str(outputs.dtype))
        return targets.float()

    watched = Workload(
        train=trial.workload.train,
        test=trial.workload.test,
        model=Net,
        loss=loss,
        score=score,
    )
    evaluate(group, trial.run.model, watched, "bf16", batch_size=64)
    return {"kinds": kinds, "parameters": str(next(trial.run.model.parameters()).dtype)}


def unused_parameters(group: Group) -> Json:
    def complaint(model: Callable[[], nn.Module], *flags: str) -> str:
        try:
            Trial(group, *flags, model=model).steps(0, 3)
        except ConfigurationError as error:
            return str(error)
        return ""

    never = functools.partial(Net, with_extra=True)
    sometimes = functools.partial(Net, extra_on=(1,))
    trial = Trial(group, "--find-unused-parameters", model=sometimes)
    trial.backward()
    extra = trial.run.model.get_submodule("extra").weight.grad
    assert isinstance(extra, Tensor)
    return {
        "never": complaint(never),
        "never, accumulated": complaint(never, "--accumulate-steps=2"),
        "never, found": complaint(never, "--find-unused-parameters"),
        "never, static": complaint(never, "--static-graph"),
        "on rank 1": flat([extra]),
    }


def static_graph_accumulates(group: Group) -> Json:
    static = Trial(group, "--static-graph", "--accumulate-steps=2")
    plain = Trial(group, "--accumulate-steps=2")
    for trial in (static, plain):
        trial.steps(0, 3)
    return {"static": static.parameters(), "plain": plain.parameters()}


def buckets(group: Group) -> Json:
    counts = {}
    for megabytes in ("25", "0.001"):
        trial = Trial(group, f"--bucket-cap-mb={megabytes}")
        trial.steps(0, 1)  # DDP makes its buckets anew after the first pass
        before = trial.travelled.buckets
        trial.steps(1, 2)
        counts[megabytes] = trial.travelled.buckets - before
    return counts


def bucket_views(group: Group) -> Json:
    shared = {}
    for flag in ("--gradient-as-bucket-view", "--no-gradient-as-bucket-view"):
        trial = Trial(group, flag)
        trial.backward()
        storages = {
            parameter.grad.untyped_storage().data_ptr()
            for parameter in trial.run.model.parameters()
            if parameter.grad is not None
        }
        shared[flag] = len(storages)
    return shared


def buffers(group: Group) -> Json:
    seen: dict[str, list[float]] = {}
    for flag in ("--broadcast-buffers", "--no-broadcast-buffers"):
        trial = Trial(group, flag)
        buffer = trial.run.model.get_buffer("seen")
        buffer.fill_(group.rank + 5)
        trial.backward()
        seen[flag] = [buffer.item()]
        buffer.fill_(group.rank + 7)
        trial.replica.equalise()
        seen[flag].append(buffer.item())
    return seen


def compression(group: Group) -> Json:
    found = {}
    for kind in ("none", "fp16", "bf16"):
        trial = Trial(group, f"--gradient-compression={kind}")
        trial.backward()
        found[kind] = trial.gradients()
    return found


def powersgd(group: Group) -> Json:
    flags = ("--gradient-compression=powersgd", "--powersgd-start-step=2", "--lr=0.01")
    trial = Trial(group, *flags)
    trial.steps(0, 2)
    exact, compressed = Trial(group), trial
    exact.run.model.load_state_dict(trial.run.model.state_dict())
    for one in (exact, compressed):
        one.backward(2)
    before_equal = left_out(trial.run)
    result: dict[str, Json] = {
        "exact": exact.gradients(),
        "compressed": compressed.gradients(),
        "left out": before_equal,
    }
    trial.run.complete_step(BATCH)
    trial.replica.equalise()
    result["mean left out"] = left_out(trial.run)

    state = trial.run.serialise()
    fresh = Trial(group, *flags)
    fresh.run.restore(state)
    # Buckets of other sizes: what was left out of the old ones is of no use to the new.
    other = Trial(group, *flags, "--bucket-cap-mb=0.001")
    other.run.restore(state)
    for one in (trial, fresh, other):
        one.steps(3, 6)
    result["went on"], result["restored"] = trial.parameters(), fresh.parameters()
    result["other buckets"] = other.parameters()

    memory = trial.run.serialise()
    try:
        with trial.run.attempt():
            trial.replica._all_passes(*trial.batch(6))
            raise RuntimeError("a peer is lost")
    except RuntimeError:
        pass
    result["taken back"] = trial.run.serialise() == memory
    return result


def left_out(run: ModelRun) -> list[float]:
    assert run.compression is not None
    return flat(run.compression.state_dict()["left_out"].values())


def compiled(group: Group) -> Json:
    frames = torch._dynamo.utils.counters["frames"]
    plain = Trial(group)
    plain.steps(0, 2)
    before = frames["ok"]
    eager = Trial(group, "--compile=eager")
    eager.steps(0, 2)
    return {
        "frames": [before, frames["ok"]],
        "plain": plain.parameters(),
        "compiled": eager.parameters(),
        "names": list(eager.run.model.state_dict()) == list(plain.run.model.state_dict()),
    }


def staging(group: Group, folder: Path) -> Json:
    """Each rank plays a node of its own; rank 0's alone can see the source."""
    source = folder / "data" if group.rank == 0 else folder / "not-mounted"
    if group.rank == 0:
        (source / "deep").mkdir(parents=True)
        (source / "deep" / "large").write_bytes(bytes(range(256)) * 70_000)  # two chunks
        (source / "empty").touch()
    stage = Stage(folder / f"node-{group.rank}", local_rank=0, timeout_seconds=60)
    first = stage.receive(group, source)
    content = {
        str(path.relative_to(first)): path.stat().st_size
        for path in sorted(first.rglob("*"))
        if path.is_file()
    }
    right = (first / "deep" / "large").read_bytes() == bytes(range(256)) * 70_000
    (first / "empty").write_text("here already")
    again = stage.receive(group, source)
    return {
        "content": content,
        "right": right,
        "sent once": again == first and (again / "empty").read_text() == "here already",
        "nothing else": sorted(p.name.partition("-")[0] for p in first.parent.iterdir()),
    }


def staging_without_source(group: Group, folder: Path) -> Json:
    stage = Stage(folder / f"other-{group.rank}", local_rank=0, timeout_seconds=60)
    try:
        stage.receive(group, folder / "nowhere")
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


CHECKS = (
    accumulation,
    bf16,
    unused_parameters,
    static_graph_accumulates,
    buckets,
    bucket_views,
    buffers,
    compression,
    powersgd,
    compiled,
)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    environment = Environment.from_env(os.environ)
    world = World(environment, group_timeout_seconds=60, heartbeat_timeout_seconds=0)
    results: dict[str, Json] = {}
    with world.formed(timeout_seconds=60) as group:
        for check in CHECKS:
            results[check.__name__] = check(group)
        for staging_check in (staging, staging_without_source):
            results[staging_check.__name__] = staging_check(group, folder)
    (folder / f"rank-{environment.rank}").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
