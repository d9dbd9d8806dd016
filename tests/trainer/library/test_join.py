"""The methods of a job, and the errors for wrong calls; in one process."""

from __future__ import annotations

import io
import json
import logging
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import ddp_trainer
import numpy as np
import pytest
import torch
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.data import seeding
from ddp_trainer.data.loading import Loading
from ddp_trainer.exit_codes import ConfigurationError, ExitCode, LostPeerError
from ddp_trainer.library.endings import tell
from ddp_trainer.library.join import environment_of
from ddp_trainer.run.seeds import seed_by_name
from ddp_trainer.telemetry.prometheus import render
from ddp_trainer.telemetry.status import Status, StatusFile
from ddp_trainer.telemetry.termination import RankReport
from torch import distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau
from torch.utils.data import (
    DataLoader,
    Sampler,
    Subset,
    TensorDataset,
)

from tests.trainer.data.datasets import Endless, Noise
from tests.trainer.support.exposition import parse
from tests.trainer.support.reading import batches_of

SAMPLES = 10
BATCH_SIZE = 4
ALONE = ShardAssignment(shards=1, rank=0, size=1)


def loader_of(**settings: Any) -> DataLoader[Any]:
    dataset = TensorDataset(torch.arange(float(SAMPLES)).unsqueeze(1))
    return DataLoader(dataset, **{"batch_size": BATCH_SIZE, "shuffle": True, **settings})


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(1, 1)


@pytest.fixture
def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


@pytest.fixture
def job(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[ddp_trainer.Job]:
    with ddp_trainer.join(model=model, optimizer=optimizer) as joined:
        yield joined


def test_each_printed_line_of_a_script_is_one_write(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PYTHONUNBUFFERED, as in pods; otherwise lines of the trainer could come between."""
    read, write = os.pipe2(os.O_DIRECT)  # what is read is what one write has written
    with os.fdopen(read, "rb", buffering=0) as printed, io.FileIO(write, "w") as unbuffered:
        stdout = io.TextIOWrapper(unbuffered, write_through=True)
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", stdout)
            with ddp_trainer.join(model=model):
                print("loss", 0.5)
        assert printed.read(4096) == b"loss 0.5\n"


def train(job: ddp_trainer.Job, net: nn.Module, *, epochs: int, **how: Any) -> list[list[float]]:
    """Train, and return the samples of each batch."""
    seen: list[list[float]] = []
    loader = loader_of()
    for _ in job.epochs(epochs):
        for (inputs,) in job.batches(loader, **how):
            seen.append(inputs.flatten().tolist())
            loss = (net(inputs) - 2 * inputs).square().mean() * job.weight
            loss.backward()
            job.step(loss)
    return seen


def test_all_samples_come_once_an_epoch(job: ddp_trainer.Job, model: nn.Module) -> None:
    seen = train(job, job.wrap(model), epochs=2)
    assert [len(batch) for batch in seen] == [4, 4, 2, 4, 4, 2]
    epochs = [*chain(*seen[:3])], [*chain(*seen[3:])]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(SAMPLES))
    assert epochs[0] != epochs[1]
    assert job.steps_done == 6


def test_steps_equal_those_of_a_plain_loop(job: ddp_trainer.Job, model: nn.Module) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(1, 1)
    its_optimizer = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)
    for batch in train(job, job.wrap(model), epochs=2):
        inputs = torch.tensor(batch).unsqueeze(1)
        its_optimizer.zero_grad()
        (plain(inputs) - 2 * inputs).square().mean().backward()
        its_optimizer.step()
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


def test_a_job_that_ends_releases_its_group(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ddp_trainer.join(model=model, optimizer=optimizer) as job:
        train(job, job.wrap(model), epochs=1)
        group = weakref.ref(job._session.formation.group)
    assert group() is None


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_steps_per_epoch_is_the_number_of_steps(
    job: ddp_trainer.Job, model: nn.Module, accumulate: int, drop_last: bool
) -> None:
    net, loader = job.wrap(model), loader_of(drop_last=drop_last)
    for (inputs,) in job.batches(loader, accumulate=accumulate):
        net(inputs).sum().backward()
        job.step()
    assert job.steps_done == ddp_trainer.steps_per_epoch(loader, accumulate=accumulate)


def test_the_steps_of_an_epoch_are_those_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(batch_size=2)
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert ddp_trainer.steps_per_epoch(loader) == 2, "4 samples each"
    assert ddp_trainer.steps_per_epoch(loader, ranks=1) == 5
    monkeypatch.setenv("DDP_BATCH", "global")
    monkeypatch.setenv("DDP_BATCH_RANKS", "2")
    assert ddp_trainer.steps_per_epoch(loader) == 3, "5 samples each"
    with pytest.raises(ConfigurationError, match="IterableDataset, which has no known length"):
        ddp_trainer.steps_per_epoch(DataLoader(Endless(), batch_size=2))


def test_weights_make_the_mean_of_a_step(job: ddp_trainer.Job, model: nn.Module) -> None:
    net = job.wrap(model)
    weights: list[float] = []
    for _ in job.batches(loader_of(), accumulate=3):
        net(torch.zeros(1, 1)).sum().backward()
        weights.append(job.weight)
        job.step()
    assert weights == [0.4, 0.4, 0.2]
    assert job.steps_done == 1


def test_training_ends_with_the_last_wanted_step(tmp_path: Path) -> None:
    def run(max_steps: int) -> tuple[int, int]:
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        evaluations = 0
        with ddp_trainer.join(model=model, optimizer=optimizer, checkpoint_dir=tmp_path) as job:
            net = job.wrap(model)
            for _ in job.epochs(4, max_steps=max_steps):
                for (inputs,) in job.batches(loader_of()):
                    net(inputs).sum().backward()
                    job.step()
                job.evaluated(0.5)
                evaluations += 1
            return job.steps_done, evaluations

    assert run(4) == (4, 2), "one epoch of three steps, and a part of one"
    assert run(4) == (4, 1), "a complete training is evaluated again"
    assert run(6) == (6, 1), "the rest of the epoch"
    assert run(0) == (12, 3)


def rates_of(
    folder: Path,
    scheduler_of: Callable[[torch.optim.Optimizer], Any],
    scores: Sequence[float],
    **settings: Any,
) -> list[float]:
    """Train an epoch for each score; return the rate of each step."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = scheduler_of(optimizer)
    rates: list[float] = []
    optimizer.register_step_pre_hook(
        lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
    )
    with ddp_trainer.join(
        model=model, optimizer=optimizer, scheduler=scheduler, checkpoint_dir=folder, **settings
    ) as job:
        net, loader = job.wrap(model), loader_of()
        for epoch in job.epochs(len(scores)):
            for (inputs,) in job.batches(loader):
                net(inputs).sum().backward()
                job.step()
            if isinstance(scheduler, ReduceLROnPlateau):
                job.evaluated(scores[epoch])
    return rates


def test_a_scheduler_may_count_epochs(tmp_path: Path) -> None:
    def run(epochs: int, folder: str) -> list[float]:
        return rates_of(
            tmp_path / folder,
            lambda optimizer: ExponentialLR(optimizer, 0.5),
            [0.0] * epochs,
            scheduler_interval="epoch",
        )

    assert run(3, "whole") == [1.0] * 3 + [0.5] * 3 + [0.25] * 3
    assert run(1, "cut") == [1.0] * 3
    assert run(3, "cut") == [0.5] * 3 + [0.25] * 3


@pytest.mark.parametrize(
    ("mode", "scores"),
    [("max", [1.0, 2.0, 2.0, 1.0, 3.0]), ("min", [-3.0, -2.0, -2.0, -3.0, -1.0])],
)
def test_a_rate_falls_when_scores_get_no_better(
    tmp_path: Path, mode: Literal["min", "max"], scores: list[float]
) -> None:
    def run(epochs: int, folder: str) -> list[float]:
        return rates_of(
            tmp_path / folder,
            lambda optimizer: ReduceLROnPlateau(optimizer, mode=mode, factor=0.5, patience=0),
            scores[:epochs],
        )

    assert run(5, "whole") == [1.0] * 9 + [0.5] * 3 + [0.25] * 3
    assert run(3, "cut") == [1.0] * 9
    assert run(5, "cut") == [0.5] * 3 + [0.25] * 3


def test_a_scripts_own_numbers_are_shown(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "status.json"
    monkeypatch.setenv("DDP_STATUS_FILE", str(file))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ddp_trainer.join(model=model, optimizer=optimizer, checkpoint_dir=tmp_path) as job:
        job.log(**{"lr/bias": 0.5})
        job.log(perplexity=torch.tensor(8.0), gap=float("nan"))
        train(job, job.wrap(model), epochs=1)
        job.log(perplexity=4)
        with pytest.raises(ValueError, match="got the name 'a\"b'"):
            job.log(**{'a"b': 1.0})
        job.log(**{f"much{number}": 1.0 for number in range(100)})
    status = StatusFile(file).read()
    assert status is not None
    assert status.metrics is not None
    assert len(status.metrics) < 70
    assert (status.metrics["perplexity"], status.metrics["lr/bias"]) == (4.0, 0.5)
    assert 'ddp_metric{name="perplexity"} 4.0' in render(status, rank_restarts=0).splitlines()
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    logged = [(line["step"], line["values"]) for line in lines if line["kind"] == "metrics"]
    assert logged[0] == (0, {"lr/bias": 0.5, "perplexity": 8.0, "gap": None})
    assert logged[1][0] == 3
    assert logged[1][1]["perplexity"] == 4.0


def test_script_reports_that_its_result_is_safe(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = StatusFile(tmp_path / "status.json")
    monkeypatch.setenv("DDP_STATUS_FILE", str(tmp_path / "status.json"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ddp_trainer.join(model=model, optimizer=optimizer) as job:
        train(job, job.wrap(model), epochs=1)
        with pytest.raises(RuntimeError, match="call it after the `with"):
            job.done()
    ended = file.read()
    assert ended is not None
    assert ended.done is None, "the script may still export"
    job.done()
    assert file.read() == replace(ended, done=True)


def test_bad_names_in_a_scripts_own_status_file_are_left_out() -> None:
    status = Status(step=1, metrics={'x"} 1\nddp_step 7': 1.0, "good": 2.0})
    metrics = parse(render(status, rank_restarts=0))
    assert metrics["ddp_step"] == 1
    assert metrics['ddp_metric{name="good"}'] == 2


def test_sums_of_one_rank_are_its_values(job: ddp_trainer.Job) -> None:
    assert job.sum(1, 2.5) == [1, 2.5]
    assert job.sum(3) == [3]


def test_an_evaluation_gets_each_sample_once(job: ddp_trainer.Job) -> None:
    seen = [inputs.flatten().tolist() for (inputs,) in job.share(loader_of())]
    assert [*chain(*seen)] == list(range(SAMPLES))


def test_a_batch_of_tensors_is_seeded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[tuple[object, ...]] = []

    def seed(*parts: object) -> None:
        seeded.append(parts)
        seed_by_name(*parts)

    def noisy(samples: list[Any]) -> Any:
        return torch.stack([sample for (sample,) in samples]) + torch.rand(())

    monkeypatch.setattr(seeding, "seed_by_name", seed)
    dataset = Subset(TensorDataset(torch.arange(float(SAMPLES))), range(SAMPLES))
    reader = DataLoader(dataset, batch_size=4, collate_fn=noisy)
    first, again = ([*batches_of(Loading(reader, seed=7).rest(0, 0, ALONE))] for _ in range(2))
    assert len(seeded) == 2 * len(first) == 6
    assert all(map(torch.equal, first, again)), "what the collate_fn draws"


def test_a_rank_alone_holds_no_other_up(
    model: nn.Module, optimizer: torch.optim.Optimizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with ddp_trainer.join(model=model, optimizer=optimizer, log_every_steps=1) as job:
        net = job.wrap(model)
        for _ in job.epochs(5):
            for (inputs,) in job.batches(loader_of()):
                time.sleep(0.01)
                net(inputs).sum().backward()
                job.step()
    assert any("step 15/15" in line for line in caplog.messages)
    assert not any("holds the others up" in line for line in caplog.messages)


class Together(Noise):
    """Draws the samples of a batch together."""

    def __getitems__(self, indices: list[int]) -> list[float]:
        noise = torch.rand(len(indices))
        return [index + float(one) for index, one in zip(indices, noise, strict=True)]


@pytest.mark.parametrize("workers", [0, 2])
def test_random_batches_depend_on_their_place_alone(workers: int) -> None:
    def drawn(workers: int) -> list[list[float]]:
        loading = Loading(DataLoader(Together(SAMPLES), batch_size=4, num_workers=workers), seed=7)
        torch.seed()
        return [batch.tolist() for batch in batches_of(loading.rest(1, 0, ALONE))]

    seen = drawn(workers)
    assert seen == drawn(workers) == drawn(0)
    assert sorted(int(value) for batch in seen for value in batch) == list(range(SAMPLES))


def test_persistent_workers_serve_several_epochs() -> None:
    loader = DataLoader(Noise(SAMPLES), batch_size=2, num_workers=2, persistent_workers=True)
    loading = Loading(loader, seed=7)
    cut = batches_of(loading.rest(0, 0, ALONE))
    next(cut)  # and the group breaks
    epochs = [torch.cat([*batches_of(loading.rest(epoch, 0, ALONE))]) for epoch in (0, 1)]
    for epoch in epochs:
        assert sorted(epoch.int().tolist()) == list(range(SAMPLES))
    assert not torch.equal(*epochs)
    once = Loading(DataLoader(Noise(SAMPLES), batch_size=2), seed=7)
    assert torch.equal(epochs[1], torch.cat([*batches_of(once.rest(1, 0, ALONE))]))


class Restless(Sampler[int]):
    """A sampler with its own random numbers, which cannot be drawn again."""

    def __init__(self, *, num_replicas: int = 1) -> None:
        self.num_replicas = num_replicas
        self._random = random.Random(0)

    def __iter__(self) -> Iterator[int]:
        return iter(self._random.sample(range(SAMPLES), SAMPLES))

    def __len__(self) -> int:
        return SAMPLES


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(Endless(), batch_size=2), "IterableDataset, which cannot be split among ranks"),
        (loader_of(batch_size=None, shuffle=False), "has no batch_size"),
        (
            loader_of(shuffle=False, sampler=Restless()),
            "the loader's Restless gives another order each time that it is read",
        ),
        (
            loader_of(shuffle=False, sampler=Restless(num_replicas=2)),
            "splits samples among ranks, .* make it with num_replicas=1 and rank=0",
        ),
    ],
    ids=["iterable", "no batches", "sampler", "sharing sampler"],
)
def test_a_loader_that_cannot_be_resumed_is_refused(loader: DataLoader[Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Loading(loader, seed=0)


def test_batches_of_a_batch_sampler_are_not_cut(model: nn.Module) -> None:
    batches = [[0, 1, 2], [3, 4]]
    loader = DataLoader(loader_of().dataset, batch_sampler=batches)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    refused = pytest.raises(ConfigurationError, match=r"have to split its .*--logical-shards out")
    with ddp_trainer.join(model=model, optimizer=optimizer, logical_shards=2) as job:
        job.wrap(model)
        with refused:
            next(job.batches(loader))


def test_sums_are_refused_within_the_loop(job: ddp_trainer.Job, model: nn.Module) -> None:
    net, loader = job.wrap(model), loader_of()
    for _ in job.epochs(1):
        for number, (inputs,) in enumerate(job.batches(loader)):
            with pytest.raises(ConfigurationError, match=r"within the loop .* between epochs"):
                job.sum(1)
            net(inputs).sum().backward()
            job.step()
            with pytest.raises(ConfigurationError, match=r"job\.share\(\) was called within"):
                next(job.share(loader))
            if number == 1:
                break
        assert job.sum(1) == [1]


def test_a_script_with_its_own_process_group_is_refused(model: nn.Module) -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(SystemExit) as end, ddp_trainer.join(model=model):
            raise AssertionError("it joined")
    finally:
        dist.destroy_process_group()
    assert end.value.code == 64
    assert "remove init_process_group() from the script" in str(end.value.__cause__)


def test_a_step_of_the_optimizer_itself_is_refused(
    job: ddp_trainer.Job, optimizer: torch.optim.Optimizer
) -> None:
    del job
    with pytest.raises(ConfigurationError, match=r"call job\.step\(\) instead"):
        optimizer.step()


def test_batches_and_steps_alternate(job: ddp_trainer.Job, model: nn.Module) -> None:
    net = job.wrap(model)
    with pytest.raises(RuntimeError, match=r"job\.step\(\) was called without a batch"):
        job.step()
    batches = job.batches(loader_of())
    (inputs,) = next(batches)
    net(inputs).sum().backward()
    job.step()
    with pytest.raises(RuntimeError, match="without a batch"):
        job.step()
    next(batches)
    with pytest.raises(RuntimeError, match=r"another batch without job\.step\(\)"):
        next(batches)


def test_a_model_is_wrapped_once_with_known_settings(
    job: ddp_trainer.Job, model: nn.Module
) -> None:
    for settings, message in (
        ({"device_ids": [0]}, "not device_ids"),
        ({"gradient_compression": "zip"}, r"choose from none, fp16, bf16$"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            job.wrap(model, **settings)
    net = job.wrap(model)
    for again in (model, net):
        with pytest.raises(ConfigurationError, match="wrapped already"):
            job.wrap(again)
    with pytest.raises(ConfigurationError, match=r"join\(\) does not know"):
        job.wrap(nn.Linear(1, 1))


class Extra:
    """An object with a state that a script passes to join()."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class ZeroRedundancyOptimizer(Extra):
    """A stand-in: torch's needs a process group when it is created."""

    def __init__(self) -> None:
        super().__init__({})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"extra": {"steps": 3}}, "extra is a dict, and its state cannot be saved"),
        ({"extra": Extra({"seen": np.arange(3)})}, "tensors only (it contains numpy"),
        ({"extra": Extra({"lock": threading.Lock()})}, "of extra cannot be saved"),
        ({"position": nn.Linear(1, 1)}, "uses the name position itself"),
        ({}, "got no model"),
        (
            {"optimizer": torch.optim.LBFGS([nn.Parameter(torch.zeros(1))])},
            "optimizer is a LBFGS, which computes the loss several times",
        ),
        ({"optimizer": ZeroRedundancyOptimizer()}, "a lost rank's part of its state"),
    ],
)
def test_parts_that_cannot_be_saved_are_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(SystemExit) as end, ddp_trainer.join(**parts):
        raise AssertionError("it joined")
    assert end.value.code == 64
    assert isinstance(end.value.__cause__, ConfigurationError)
    assert message in str(end.value.__cause__)


def test_a_script_that_fails_fails(model: nn.Module) -> None:
    with pytest.raises(ZeroDivisionError), ddp_trainer.join(model=model) as job:
        print(job.steps_done / 0)


def test_a_finished_rank_does_not_need_lost_peers() -> None:
    report = RankReport({})
    gone = LostPeerError("rank 1 is gone")
    assert tell(report, gone) is ExitCode.LOST_PEER
    assert (report.known.error, report.known.exit_code) == ("LostPeerError: rank 1 is gone", 75)
    report.update(finished=True)
    assert tell(report, gone) is ExitCode.DONE
    assert (report.known.error, report.known.exit_code) == (None, 0)


def test_the_environment_of_the_launcher_comes_first() -> None:
    found = environment_of(
        {
            **{"DDP_BACKEND": "gloo", "MASTER_ADDR": "job-0.job", "MASTER_PORT": "29500"},
            **{"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"},
            **{"RANK": "3", "LOCAL_RANK": "1", "DDP_CHECKPOINT_DIR": "/mnt/there"},
        },
        checkpoint_dir="/mnt/here",
    )
    assert (found.rank, found.local_rank, found.placement.world_size) == (3, 1, 4)
    assert str(found.placement.checkpoint_dir) == "/mnt/here"


def test_torchrun_is_understood() -> None:
    found = environment_of(
        {
            **{"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"},
            **{"MASTER_ADDR": "first", "MASTER_PORT": "1234", "TORCHELASTIC_RUN_ID": "mine"},
            **{"GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1", "DDP_CHECKPOINT_DIR": "/mnt"},
        }
    )
    placement = found.placement
    assert (placement.node_rank, placement.master_addr, placement.master_port) == (1, "first", 1234)
    assert (placement.job_name, str(placement.checkpoint_dir)) == ("mine", "/mnt")


def test_without_an_environment_a_process_is_alone() -> None:
    found = environment_of({})
    assert (found.rank, found.placement.world_size) == (0, 1)
    assert found.placement.checkpoint_dir is None


def test_a_rank_without_a_local_rank_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="LOCAL_RANK or LOCAL_WORLD_SIZE is not"):
        environment_of({"RANK": "1", "WORLD_SIZE": "2"})
