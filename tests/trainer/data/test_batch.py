"""The samples of a step: how they are split among ranks, and in which order."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import ddp_trainer
import pytest
import torch
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.data.loading import Loading
from ddp_trainer.data.sampler import Share
from ddp_trainer.exit_codes import ConfigurationError, ExitCode
from ddp_trainer.library.steps.attempt import Attempt
from ddp_trainer.library.steps.fixed_batch import check
from ddp_trainer.library.steps.taking import note_loss
from ddp_trainer.run.buffers import Copies
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.settings.batch import Batch
from ddp_trainer.settings.training import DDPOptions
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.data.datasets import Endless

SAMPLES, BATCH_SIZE, SHARDS = 45, 4, 3
GLOBAL = {"DDP_BATCH": "global", "DDP_BATCH_RANKS": "3"}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
def test_each_part_counts_once_and_all_ranks_compute_as_many(
    shards: int, size: int, exact: bool
) -> None:
    assignments = [
        ShardAssignment(shards=shards, rank=rank, size=size, exact=exact) for rank in range(size)
    ]
    counting = [
        (assignment.part(slot), (assignment.rank, slot))
        for assignment in assignments
        for slot in range(assignment.slots)
        if assignment.counts(slot)
    ]
    parts = assignments[0].parts
    assert dict(counting) == {part: assignments[0].owner(part) for part in range(parts)}
    assert len(counting) == parts
    assert {assignment.slots for assignment in assignments} == {-(-shards // size)}
    assert parts == shards if exact or shards % size == 0 else parts > shards
    own = [
        sum(assignment.counts(slot) for slot in range(assignment.slots))
        for assignment in assignments
    ]
    assert max(own) - min(own) <= exact
    assert all(assignment.is_plain for assignment in assignments) == (shards == size and not exact)


def loader(**settings: Any) -> DataLoader[Any]:
    return DataLoader(
        TensorDataset(torch.arange(SAMPLES)), batch_size=BATCH_SIZE, shuffle=True, **settings
    )


def steps_of(
    loader: DataLoader[Any], assignment: ShardAssignment, *, accumulate: int, start: int
) -> list[Share]:
    """Return the steps of a rank, which reads the samples of each."""
    rest = Loading(loader, seed=5).rest(1, start, assignment, accumulate=accumulate)
    found = []
    while share := rest.next_step():
        read = [rest.batch(share, number)[0].tolist() for number in range(len(share.read))]
        assert read == share.read
        found.append(share)
    assert rest.is_at_end
    return found


def order(length: int, seed: int = 6) -> list[int]:
    """Return the order of an epoch's samples; `seed`: the run's plus the epoch."""
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randperm(length, generator=generator).tolist()
    return found


@pytest.mark.parametrize(
    ("size", "exact"), [(1, False), (3, False), *((size, True) for size in range(1, 6))]
)
@pytest.mark.parametrize(("accumulate", "start"), [(1, 0), (2, 0), (2, 24), (1, 1)])
def test_ranks_that_divide_the_shards_have_their_batches(
    size: int, exact: bool, accumulate: int, start: int
) -> None:
    a_shard = accumulate * BATCH_SIZE
    expected: list[list[list[int]]] = []
    for first in range(start, SAMPLES, a_shard * SHARDS):
        left = range(first, SAMPLES + -(SAMPLES - start) % SHARDS)[: a_shard * SHARDS]
        shards = [
            [order(SAMPLES)[place % SAMPLES] for place in left[shard::SHARDS]]
            for shard in range(SHARDS)
        ]
        places = range(0, len(shards[0]), BATCH_SIZE)
        expected.append(sorted(shard[i : i + BATCH_SIZE] for shard in shards for i in places))
    assignments = [
        ShardAssignment(shards=SHARDS, rank=rank, size=size, exact=exact) for rank in range(size)
    ]
    ranks = [
        steps_of(loader(), assignment, accumulate=accumulate, start=start)
        for assignment in assignments
    ]
    for shares, batches in zip(zip(*ranks, strict=True), expected, strict=True):
        counting = [
            batch
            for share in shares
            for batch, count in zip(share.read, share.counts, strict=True)
            if count > 0
        ]
        assert sorted(counting) == batches


@given(
    length=st.integers(1, 90),
    shards=st.integers(1, 7),
    size=st.integers(1, 9),
    batch_size=st.integers(1, 6),
    accumulate=st.integers(1, 4),
    drop_last=st.booleans(),
    data=st.data(),
)
def test_any_number_of_ranks_has_the_samples_of_each_step_in_even_shares(
    length: int,
    shards: int,
    size: int,
    batch_size: int,
    accumulate: int,
    drop_last: bool,
    data: st.DataObject,
) -> None:
    start = data.draw(st.integers(0, length), label="start")
    of = DataLoader(
        TensorDataset(torch.arange(length)),
        batch_size=batch_size,
        shuffle=True,
        drop_last=drop_last,
    )
    assignments = [ShardAssignment(shards=shards, rank=rank, size=size) for rank in range(size)]
    ranks = [
        steps_of(of, assignment, accumulate=accumulate, start=start) for assignment in assignments
    ]
    left = -(-(length - start) // shards)
    left -= left % batch_size if drop_last else 0
    slots, place = assignments[0].slots, start
    for shares in zip(*ranks, strict=True):
        a_shard = min(left, batch_size * accumulate)
        [samples] = {share.samples for share in shares}
        assert samples == a_shard * shards
        wanted = [order(length)[(place + i) % length] for i in range(samples)]
        assert sorted(index for share in shares for index in share.own) == sorted(wanted)
        own = [len(share.own) for share in shares]
        assert max(own) - min(own) <= slots
        batches = -(-a_shard // batch_size)
        for share in shares:
            assert len(share.read) == len(share.counts) == batches * slots
            for part in (
                share.counts[i : i + batches] for i in range(0, len(share.counts), batches)
            ):
                assert all(part) or sum(part) < batches, "none is empty that need not be"
                assert max(part[:-1], default=0) - min(part[:-1], default=0) <= 1
            for batch, count in zip(share.read, share.counts, strict=True):
                assert count <= len(batch) <= batch_size
                assert {*batch} <= {*wanted}
                assert count in (0, len(batch)) or batch == batch[:1] * 2, "or its mean is another"
        place, left = place + samples, left - a_shard
    assert left == 0


def test_some_ranks_may_have_no_sample_in_an_epochs_last_step() -> None:
    """Seven of eight ranks, where each of eight would have one sample left."""
    of = DataLoader(TensorDataset(torch.arange(40)), batch_size=4)
    assignments = [ShardAssignment(shards=8, rank=rank, size=7) for rank in range(7)]
    ranks = [steps_of(of, assignment, accumulate=1, start=0) for assignment in assignments]
    assert [len(share.own) for share, _ in ranks] == [5, 5, 5, 5, 4, 4, 4]
    assert [share.counts for share, _ in ranks][3:5] == [[3, 2], [2, 2]]
    assert [share.counts for _, share in ranks] == [[1, 1], *[[1, 0]] * 6]
    assert ranks[0][1].read == [[32, 32], [39, 39]], "batch norm needs two"
    assert ranks[1][1].read == [[33, 33], [32, 32]], "another's"


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 16])
def test_losses_and_gradients_weigh_by_their_samples(
    size: int, accumulate: int, exact: bool
) -> None:
    assignments = [
        ShardAssignment(shards=SHARDS, rank=rank, size=size, exact=exact) for rank in range(size)
    ]
    ranks = [
        steps_of(loader(), assignment, accumulate=accumulate, start=5) for assignment in assignments
    ]
    for shares in zip(*ranks, strict=True):
        loss = gradient = 0.0
        for assignment, share in zip(assignments, shares, strict=True):
            attempt = Attempt(
                before=Copies(),
                assignment=assignment,
                samples=share.samples,
                sizes=share.counts,
                batches=len(share.counts),
                ends_epoch=False,
            )
            for batch in share.read:
                attempt.given += 1
                attempt.begin_batch()
                weighed = sum(batch) / len(batch) * attempt.weight
                note_loss(attempt, weighed)
                gradient += weighed * attempt.weight_of_part
            loss += sum(attempt.losses_of_parts())
        indices = [index for share in shares for index in share.own]
        mean = sum(indices) / len(indices)
        assert [loss / SHARDS, gradient / SHARDS] == pytest.approx([mean, mean])


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


def run(batch: Batch) -> TrainState:
    return TrainState({"model": nn.Linear(1, 1)}, seed=0, device=torch.device("cpu"), batch=batch)


@pytest.mark.parametrize(
    ("begun", "later", "shards"),
    [
        (Batch(shards=3), Batch(shards=5), 3),
        (Batch(), Batch(shards=5), 5),
        (Batch(shards=3), Batch(per_rank=True), 0),
        (Batch(shards=3), Batch(shards=3, exact=True), 3),
    ],
)
def test_a_training_keeps_its_first_number_of_shards(
    begun: Batch, later: Batch, shards: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    resumed = run(later)
    resumed.load_state_dict(copy.deepcopy(run(begun).state_dict()))
    resumed.choose_samples(SAMPLES)
    assert resumed.order.shards == shards
    assignment = resumed.shard_assignment(rank=1, size=2)
    assert (assignment.shards, assignment.exact) == (shards or 2, later.exact)
    differs = later.shards not in (0, shards)
    assert ("a step has the batches of 3 ranks, as when this training" in caplog.text) == differs


def test_another_number_of_logical_shards_is_refused() -> None:
    with pytest.raises(ValueError, match="with 3 shards in a step: set --logical-shards 3"):
        run(Batch(shards=4, exact=True)).load_state_dict(run(Batch(shards=3)).state_dict())


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
    ],
)
def test_models_that_need_fixed_ranks_are_refused(
    batch: Batch, remedy: str, model: nn.Module, options: DDPOptions, what: str
) -> None:
    check(Batch(), model, options)
    with pytest.raises(ConfigurationError, match=f"{what}.*, which {remedy}"):
        check(batch, model, options)


def test_compressed_gradients_are_refused_for_exact_shards() -> None:
    halves = DDPOptions(gradient_compression="bf16")
    check(Batch(shards=3), nn.Linear(2, 2), halves)
    with pytest.raises(ConfigurationError, match="bf16 compression rounds"):
        check(Batch(shards=3, exact=True), nn.Linear(2, 2), halves)


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
def test_scripts_that_need_fixed_ranks_are_refused(
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
def test_a_script_gets_the_mean_of_all_shards_in_its_gradients(
    no_launcher: None, logical_shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It scales losses, accumulates, clears, unscales and clips after each batch."""
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
    """Return clipped gradients of the mean over the shards' samples in a step."""
    means = []
    for shard in range(SHARDS):
        places = range(shard, SAMPLES, SHARDS)[step * 2 * BATCH_SIZE :][: 2 * BATCH_SIZE]
        indices = [order(SAMPLES, seed=0)[place] for place in places]
        means.append(loss_of(torch.tensor(indices)))
    mean = torch.stack(means).mean()
    found = [*torch.autograd.grad(mean, [*model.parameters()])]
    whole = torch.cat([one.flatten() for one in found]).norm()
    return [one * min(1.0, norm / (whole.item() + 1e-6)) for one in found]
