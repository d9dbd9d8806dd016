"""Checks of DDP's options on two ranks.

Each rank runs `python -m tests.trainer.settings.option_checks FOLDER`.

All ranks call each check. Its assertions follow its collectives, so that all ranks end it.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.pending import PendingWork
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.loop.learner import Learner
from ddp_trainer.loop.train import train
from ddp_trainer.process_group.world import GroupFormer
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.system.logs import end_process
from ddp_trainer.workloads.base import Samples, Workload
from torch import Tensor, nn
from torch import distributed as dist
from torch.futures import Future
from torch.nn import functional

from tests.trainer.support.same_group import job_in

Json = Any
FEATURES, CLASSES, BATCH = 24, 8, 8


class Net(nn.Module):
    """Two layers, and perhaps a third one, used by some ranks or by none."""

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
        """Number of buckets that were sent, by step."""
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
        return self.job._session.run

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


def close(one: list[float], other: list[float], *, tolerance: float = 1e-6) -> bool:
    return torch.allclose(torch.tensor(one), torch.tensor(other), rtol=0, atol=tolerance)


def assert_same_on_all_ranks(value: Json) -> None:
    values: list[Json] = [None, None]
    dist.all_gather_object(values, value)
    assert values[0] == values[1]


def accumulated_batches_equal_a_large_one(group: Group) -> None:
    whole = Trial(group, "--batch-size=16").train(3)
    parts = Trial(group, "--accumulate-steps=2").train(3)
    # The last step of an epoch takes what 12 a step leave of 32 samples of each rank: 6 and 2.
    uneven = Trial(group, "--batch-size=6", "--accumulate-steps=2", "--log-every-steps=3").train(3)
    plain = Trial(group, "--batch-size=12", "--log-every-steps=3").train(3)
    losses = [trial.job._session.report.known.loss or 0.0 for trial in (uneven, plain)]
    assert close(whole.parameters(), parts.parameters())
    assert parts.travelled.buckets == 3, "one exchange a step, not one a batch"
    assert close(uneven.parameters(), plain.parameters(), tolerance=1e-5)
    assert close(losses[:1], losses[1:], tolerance=1e-5)


def bf16_computes_in_bf16_and_keeps_parameters_in_fp32(group: Group) -> None:
    kinds: list[torch.dtype] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        kinds.append(outputs.dtype)
        return functional.cross_entropy(outputs, targets)

    def score(outputs: Tensor, targets: Tensor) -> Tensor:
        kinds.append(outputs.dtype)
        return targets.float()

    trained = replace(workload(), loss=loss, score=score)
    trial = Trial(group, "--precision=bf16", "--evaluation-batch-size=64", trained=trained).train(2)
    assert kinds == [torch.bfloat16] * 3, "two steps and an evaluation"
    assert next(trial.learner.model.parameters()).dtype == torch.float32


def on_rank_1(group: Group, *flags: str) -> list[float]:
    """Return the gradient of a layer that only rank 1 uses."""
    sometimes = workload(functools.partial(Net, extra_on=(1,)))
    trial = Trial(group, "--find-unused-parameters", *flags, trained=sometimes).train(1)
    return flat([trial.gradients["extra.weight"]])


def complaint(group: Group, *flags: str) -> str:
    """Return the error for a layer that no rank uses."""
    never = workload(functools.partial(Net, with_extra=True))
    try:
        Trial(group, *flags, trained=never).train(3)
    except ConfigurationError as error:
        return str(error)
    return ""


def unused_parameters_are_named_unless_ddp_looks_for_them(group: Group) -> None:
    plain, accumulated = complaint(group), complaint(group, "--accumulate-steps=2")
    found, static = complaint(group, "--find-unused-parameters"), complaint(group, "--static-graph")
    message = (
        f"the loss of rank {rank()} does not depend on extra.weight, extra.bias: set "
        "--find-unused-parameters (find_unused_parameters=True in your own script), or "
        "freeze them, or remove them from the model"
    )
    assert plain == accumulated == message
    assert found == static == ""


def parameters_that_one_rank_uses_are_averaged_over_all(group: Group) -> None:
    gradient = on_rank_1(group)
    assert_same_on_all_ranks(gradient)
    assert any(gradient)


def a_static_graph_accumulates_no_batches(group: Group) -> None:
    """torch's own DistributedDataParallel fails an internal assertion."""
    with pytest.raises(ConfigurationError, match="a static graph cannot accumulate batches"):
        Trial(group, "--static-graph", "--accumulate-steps=2").train(1)


def small_buckets_are_many(group: Group) -> None:
    counts = []
    for megabytes in ("25", "0.001"):
        trial = Trial(group, f"--bucket-cap-mb={megabytes}")
        trial.train(2)  # DDP rebuilds its buckets after the first pass
        counts.append(trial.counts[2] - trial.counts[1])
    assert counts[0] == 1
    assert counts[1] > 1


def gradients_share_memory_with_buckets_by_default(group: Group) -> None:
    for flag, memories in (("--gradient-as-bucket-view", 1), ("--no-gradient-as-bucket-view", 4)):
        gradients = Trial(group, flag).train(1).gradients.values()
        assert len({gradient.untyped_storage().data_ptr() for gradient in gradients}) == memories


def buffers_are_equal_before_each_step_or_before_saves(group: Group) -> None:
    seen = []
    for flag in ("--broadcast-buffers", "--no-broadcast-buffers"):
        trial = Trial(group, flag)
        buffer, values = trial.learner.model.get_buffer("seen"), list[float]()
        trial.train(2, then=functools.partial(append_value, values, buffer))
        append_value(values, buffer, 2)
        seen.append(values)
    # After each step and at the end, after an evaluation and a save.
    assert seen[0] == [5.0, 5.0, 5.0]
    assert seen[1] == ([5.0, 5.0, 5.0], [6.0, 6.0, 5.0])[rank()]


def append_value(values: list[float], of: Tensor, _: int) -> None:
    values.append(of.item())


def compressed_gradients_are_nearly_right(group: Group) -> None:
    exact, *compressed = (
        flat(Trial(group, f"--gradient-compression={kind}").train(1).gradients.values())
        for kind in ("none", "fp16", "bf16")
    )
    assert_same_on_all_ranks(compressed)
    for gradients, tolerance in zip(compressed, (1e-3, 8e-3), strict=True):
        assert gradients != exact
        assert close(gradients, exact, tolerance=tolerance)


def a_compiled_model_computes_the_same(group: Group) -> None:
    frames = torch._dynamo.utils.counters["frames"]
    plain = Trial(group).train(2)
    before = frames["ok"]
    eager = Trial(group, "--compile=eager").train(2)
    assert frames["ok"] > before
    assert eager.parameters() == plain.parameters()
    assert list(eager.learner.model.state_dict()) == list(plain.learner.model.state_dict())


THREE = "--logical-shards=3"


def logical_shards_go_with_the_other_options(group: Group) -> None:
    """Train two ranks with the batches of three ranks, and of two."""
    two = "--logical-shards=2"
    plain = [Trial(group, *flags).train(3).parameters() for flags in ((), (two,))]
    shards = Trial(group, THREE).train(3).parameters()
    pieces, static, compiled = (
        Trial(group, THREE, flag).train(3).parameters()
        for flag in ("--bucket-cap-mb=0.001", "--static-graph", "--compile=eager")
    )
    accumulated = Trial(group, THREE, "--accumulate-steps=2", "--batch-size=4").train(3)
    large = Trial(group, THREE, "--batch-size=8").train(3)
    gradients, message = (on_rank_1(group), on_rank_1(group, two)), complaint(group, two)
    assert close(*plain)
    assert shards == pieces == static == compiled
    assert close(accumulated.parameters(), large.parameters())
    assert gradients[0] == gradients[1]
    assert f"the loss of rank {rank()} does not depend on extra.weight" in message


def gradients_of(group: Group, *flags: str) -> dict[str, list[float]]:
    """Return the gradients of the last step of some trainings."""
    trials = {
        "plain": Trial(group, *flags).train(3),
        # The fourth step, an epoch's last, has a sample for three of two ranks' four parts.
        "to the last sample": Trial(group, *flags, "--batch-size=7").train(5),
        "four batches": Trial(group, *flags, "--accumulate-steps=4", "--batch-size=3").train(3),
    }
    return {name: flat(trial.gradients.values()) for name, trial in trials.items()}


def two_ranks_share_the_steps_of_three_evenly(group: Group) -> None:
    """Train in even shares, as if a group of three had become one of two."""
    expected, plain = gradients_of(group, THREE), Trial(group).train(3).parameters()
    with mock.patch.dict(os.environ, {"DDP_BATCH": "global", "DDP_BATCH_RANKS": "3"}):
        exact, fp16, bf16 = (
            flat(Trial(group, f"--gradient-compression={kind}").train(1).gradients.values())
            for kind in ("none", "fp16", "bf16")
        )
        gradients = gradients_of(group)
    with mock.patch.dict(os.environ, {"DDP_BATCH": "global", "DDP_BATCH_RANKS": "2"}):
        as_many = Trial(group).train(3).parameters()
    for name, values in expected.items():
        assert close(gradients[name], values), name
    assert as_many == plain
    assert close(exact, fp16, tolerance=1e-3)
    assert close(exact, bf16, tolerance=1e-2)
    assert exact != fp16 != bf16


CHECKS = (
    accumulated_batches_equal_a_large_one,
    bf16_computes_in_bf16_and_keeps_parameters_in_fp32,
    unused_parameters_are_named_unless_ddp_looks_for_them,
    parameters_that_one_rank_uses_are_averaged_over_all,
    a_static_graph_accumulates_no_batches,
    small_buckets_are_many,
    gradients_share_memory_with_buckets_by_default,
    buffers_are_equal_before_each_step_or_before_saves,
    compressed_gradients_are_nearly_right,
    a_compiled_model_computes_the_same,
    logical_shards_go_with_the_other_options,
    two_ranks_share_the_steps_of_three_evenly,
)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    environment = Environment.from_env(os.environ)
    world = GroupFormer(environment, group_timeout_seconds=60, heartbeat_timeout_seconds=0)
    failures: dict[str, str] = {}
    with world.formed(timeout_seconds=60) as group:
        for check in CHECKS:
            try:
                check(group)
            except AssertionError:
                failures[check.__name__] = traceback.format_exc()
    (folder / f"rank-{environment.rank}").write_text(json.dumps(failures))
    end_process(0)  # gloo's threads may have to let go of tensors, which aborts Python's shutdown


if __name__ == "__main__":
    main(Path(sys.argv[1]))
