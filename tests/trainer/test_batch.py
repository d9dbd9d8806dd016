"""The samples of a step, whoever computes them: what is dealt out, in which order, and to whom."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import ddp_trainer
import pytest
import torch
from ddp_trainer.collectives.deal import Deal
from ddp_trainer.data.loading import Loading
from ddp_trainer.data.sampler import ShardedSampler
from ddp_trainer.exit_codes import ConfigurationError, ExitCode
from ddp_trainer.library.fixed_batch import check
from ddp_trainer.run.run import Run
from ddp_trainer.settings.batch import Batch
from ddp_trainer.settings.training import DDPOptions
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

SAMPLES, BATCH_SIZE, SHARDS = 45, 4, 3
GLOBAL = {"DDP_BATCH": "global", "DDP_BATCH_RANKS": "3"}


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
def test_each_shard_counts_once_and_all_ranks_compute_as_many(shards: int, size: int) -> None:
    deals = [Deal(shards=shards, rank=rank, size=size) for rank in range(size)]
    counting = [
        (deal.shard(slot), (deal.rank, slot))
        for deal in deals
        for slot in range(deal.slots)
        if deal.counts(slot)
    ]
    assert dict(counting) == {shard: deals[0].whereabouts(shard) for shard in range(shards)}
    assert len(counting) == shards
    assert {deal.slots for deal in deals} == {-(-shards // size)}
    own = [sum(deal.counts(slot) for slot in range(deal.slots)) for deal in deals]
    assert max(own) - min(own) <= 1
    assert all(deal.is_plain for deal in deals) == (shards == size)


def loader(**settings: Any) -> DataLoader[Any]:
    return DataLoader(
        TensorDataset(torch.arange(SAMPLES)), batch_size=BATCH_SIZE, shuffle=True, **settings
    )


def steps_of(deal: Deal, *, accumulate: int, start: int) -> Iterator[list[list[int]]]:
    """The batches of each step that count, as one rank reads them."""
    rest = Loading(loader(), seed=5).dealt(1, start, deal, accumulate=accumulate)
    while places := rest.next_places(accumulate * deal.slots):
        read = [batch[0].tolist() for batch in islice(rest.batches, len(places))]
        assert read == places
        parts = len(places) // deal.slots
        yield [batch for number, batch in enumerate(places) if deal.counts(number // parts)]
    assert rest.is_at_end


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("accumulate", "start"), [(1, 0), (2, 0), (2, 24), (1, 1)])
def test_any_number_of_ranks_has_the_batches_of_each_step(
    size: int, accumulate: int, start: int
) -> None:
    expected: list[list[list[int]]] = []
    samplers = [
        ShardedSampler(SAMPLES, rank=shard, world_size=SHARDS, seed=5) for shard in range(SHARDS)
    ]
    for sampler in samplers:
        sampler.set_epoch(1, start=start)
    batches = [sampler.batches(BATCH_SIZE) for sampler in samplers]
    while step := [batch for shard in batches for batch in islice(shard, accumulate)]:
        expected.append(sorted(step))
    deals = [Deal(shards=SHARDS, rank=rank, size=size) for rank in range(size)]
    ranks = [[*steps_of(deal, accumulate=accumulate, start=start)] for deal in deals]
    steps = [sorted(batch for rank in step for batch in rank) for step in zip(*ranks, strict=True)]
    assert steps == expected


@pytest.mark.parametrize(
    ("variables", "shards", "per_rank"),
    [
        ({}, 0, False),
        ({"DDP_BATCH": "", "DDP_BATCH_RANKS": ""}, 0, False),
        ({"DDP_BATCH": "perRank", "DDP_BATCH_RANKS": "3"}, 0, True),
        (GLOBAL, 3, False),
    ],
)
def test_the_environment(variables: dict[str, str], shards: int, per_rank: bool) -> None:
    batch = Batch.from_env(variables)
    assert (batch.shards, batch.per_rank, batch.exact) == (shards, per_rank, False)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"DDP_BATCH": "fixed"}, "DDP_BATCH is 'fixed': set it to global or perRank"),
        ({"DDP_BATCH": "global"}, "DDP_BATCH_RANKS is not set: set it to the number"),
        (GLOBAL | {"DDP_BATCH_RANKS": "0"}, "DDP_BATCH_RANKS is '0': set it to the number"),
    ],
)
def test_a_wrong_environment(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Batch.from_env(variables)


def test_logical_shards_take_the_place_of_the_operators_number() -> None:
    assert Batch.from_env(GLOBAL).with_logical_shards(4) == Batch(shards=4, exact=True)
    assert Batch().with_logical_shards(4) == Batch(shards=4, exact=True)
    assert Batch.from_env(GLOBAL).with_logical_shards(0) == Batch(shards=3)
    with pytest.raises(ConfigurationError, match=r"set elastic\.batch: global, or leave"):
        Batch(per_rank=True).with_logical_shards(4)


def run(batch: Batch) -> Run:
    return Run({"model": nn.Linear(1, 1)}, seed=0, device=torch.device("cpu"), batch=batch)


@pytest.mark.parametrize(
    ("begun", "goes_on", "shards"),
    [
        (Batch(shards=3), Batch(shards=5), 3),
        (Batch(), Batch(shards=5), 5),
        (Batch(shards=3), Batch(per_rank=True), 0),
        (Batch(shards=3), Batch(shards=3, exact=True), 3),
    ],
)
def test_a_training_keeps_the_number_that_it_began_with(
    begun: Batch, goes_on: Batch, shards: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    later = run(goes_on)
    later.take_in(copy.deepcopy(run(begun).state()))
    later.choose_samples(SAMPLES)
    assert later.order.shards == shards
    deal = later.deal(rank=1, size=2)
    assert (deal.shards, deal.exact) == (shards or 2, goes_on.exact)
    differs = goes_on.shards not in (0, shards)
    assert ("a step has the batches of 3 ranks, as when this training" in caplog.text) == differs


def test_another_number_of_logical_shards_cannot_go_on_to_the_bit() -> None:
    with pytest.raises(ValueError, match="with 3 shards a step: set --logical-shards 3"):
        run(Batch(shards=4, exact=True)).take_in(run(Batch(shards=3)).state())


@pytest.mark.parametrize(
    ("batch", "remedy"),
    [
        (Batch(shards=3), "elastic.batch global cannot have: set elastic.batch: perRank"),
        (Batch(shards=3, exact=True), "--logical-shards cannot have: leave --logical-shards out"),
    ],
    ids=["global", "logical shards"],
)
@pytest.mark.parametrize(
    ("model", "options", "what"),
    [
        (nn.SyncBatchNorm(2), DDPOptions(), "SyncBatchNorm"),
        (nn.Embedding(2, 2, sparse=True), DDPOptions(), "sparse gradients"),
        (nn.BatchNorm1d(2), DDPOptions(broadcast_buffers=False), "without broadcast_buffers"),
        (nn.Linear(2, 2), DDPOptions(gradient_compression="powersgd"), "powersgd remembers"),
    ],
)
def test_what_any_number_of_ranks_cannot_compute(
    batch: Batch, remedy: str, model: nn.Module, options: DDPOptions, what: str
) -> None:
    check(Batch(), model, options)
    with pytest.raises(ConfigurationError, match=f"{what}.*, which {remedy}"):
        check(batch, model, options)


def test_halves_of_gradients_are_summed_as_they_come_or_not_at_all() -> None:
    halves = DDPOptions(gradient_compression="bf16")
    check(Batch(shards=3), nn.Linear(2, 2), halves)
    with pytest.raises(ConfigurationError, match="bf16 compression rounds"):
        check(Batch(shards=3, exact=True), nn.Linear(2, 2), halves)


class Endless(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield torch.ones(1)


def takes_turns(job: ddp_trainer.Job, optimizer: torch.optim.Optimizer) -> None:
    for _ in job.batches(loader()):
        job.step(optimizer=optimizer)


def reads_a_stream(job: ddp_trainer.Job, _: torch.optim.Optimizer) -> None:
    next(job.batches(DataLoader(Endless(), batch_size=2)))


def goes_back_twice(job: ddp_trainer.Job, optimizer: torch.optim.Optimizer) -> None:
    [group] = optimizer.param_groups
    for _ in job.batches(loader()):
        for parameter in group["params"] * 2:
            parameter.sum().backward()


@pytest.mark.parametrize(
    ("script", "remedy"),
    [
        (takes_turns, "set elastic.batch: perRank"),
        (reads_a_stream, "set elastic.batch: perRank"),
        (goes_back_twice, "weight got a gradient twice in one batch: add up the losses"),
    ],
)
def test_scripts_that_any_number_of_ranks_cannot_run(
    no_launcher: None,
    script: Callable[[ddp_trainer.Job, torch.optim.Optimizer], None],
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    del no_launcher
    for name, value in GLOBAL.items():
        monkeypatch.setenv(name, value)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        with ddp_trainer.join(model=model, optimizer=optimizer) as job:
            job.wrap(model)
            script(job, optimizer)

    with pytest.raises(SystemExit) as end:
        train()
    assert end.value.code == ExitCode.CONFIGURATION
    assert remedy in caplog.text


@pytest.mark.parametrize("logical_shards", [0, SHARDS])
def test_a_script_finds_the_mean_of_all_shards_whatever_it_does_with_gradients(
    no_launcher: None, logical_shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It scales losses, accumulates, clears, unscales and clips, after each batch as if alone."""
    del no_launcher
    if not logical_shards:
        for name, value in GLOBAL.items():
            monkeypatch.setenv(name, value)
    torch.manual_seed(0)
    model = nn.Linear(1, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    found: list[list[Tensor]] = []
    optimizer.register_step_pre_hook(
        lambda *_: found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    )

    def loss_of(inputs: Tensor) -> Tensor:
        outputs: Tensor = model(inputs.float().unsqueeze(1))
        return (outputs - 3).square().mean()

    expected: list[list[Tensor]] = []
    norms = iter((20.0, 0.5))
    with ddp_trainer.join(
        model=model, optimizer=optimizer, scaler=scaler, logical_shards=logical_shards
    ) as job:
        net = job.wrap(model)
        for _ in job.epochs(1, max_steps=2):
            norm, given = next(norms), 0
            for (inputs,) in job.batches(loader(), accumulate=2):
                if given == 0:
                    expected.append(gradients(model, loss_of, step=job.steps_done, norm=norm))
                given += 1
                optimizer.zero_grad()
                loss = (net(inputs.float().unsqueeze(1)) - 3).square().mean() * job.weight
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), norm)
                if job.step(loss):
                    assert given == 2 * SHARDS
                    norm, given = next(norms, 0.0), 0
    assert len(found) == 2
    for actual, wanted in zip(found, expected, strict=True):
        for one, other in zip(actual, wanted, strict=True):
            torch.testing.assert_close(one, other)


def gradients(
    model: nn.Module, loss_of: Callable[[Tensor], Tensor], *, step: int, norm: float
) -> list[Tensor]:
    """Of the mean over the shards' samples in a step, clipped."""
    means = []
    for shard in range(SHARDS):
        sampler = ShardedSampler(SAMPLES, rank=shard, world_size=SHARDS, seed=0)
        indices = [*sampler][step * 2 * BATCH_SIZE : (step + 1) * 2 * BATCH_SIZE]
        means.append(loss_of(torch.tensor(indices)))
    mean = torch.stack(means).mean()
    found = [*torch.autograd.grad(mean, [*model.parameters()])]
    whole = torch.cat([one.flatten() for one in found]).norm()
    return [one * min(1.0, norm / (whole.item() + 1e-6)) for one in found]
