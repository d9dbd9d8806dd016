"""Groups that change their size during training, while their steps stay the same.

They stay the same up to rounding, or bit by bit with logical shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.trainer.recovery.runs import run_with_faults
from tests.trainer.stream_device.device import Sabotage
from tests.trainer.stream_device.sabotaged import assert_wrong_without
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.membership_changes import FLAGS, World, losses_of, resize
from tests.trainer.support.pods import Job, assert_same, job
from tests.trainer.support.preloaded import CPU, STREAM

SHARDS = 3
GLOBAL = {"DDP_BATCH": "global", "DDP_BATCH_RANKS": str(SHARDS)}
LOGICAL_SHARDS = ("--logical-shards", str(SHARDS))
LAST_STEP = 30  # 2 epochs of ceil(ceil(1438 / 3) / 32) steps
TOLERANCE = 1e-6
DOUBLE_TOLERANCE = 1e-13
DOUBLES = "--workload=tests.trainer.support.own_digits:doubles"


@contextmanager
def training(
    folder: Path, *more: str, pods: int, variables: Mapping[str, str] | None = None
) -> Iterator[World]:
    """Start a job with running statistics, dropout and several buckets of gradients."""
    with job(folder, nodes=pods, local_world_size=1, extra_environment=variables or {}) as of:
        world = World(
            of,
            [
                *("--workload", "tests.trainer.support.norm:load", "--bucket-cap-mb", "0.01"),
                *("--log-every-steps", "1", "--checkpoint-every-steps", "10"),
                *(*FLAGS, *more, "--trace-samples", str(of.traces)),
            ],
        )
        world.start_all(pods)
        yield world


def end(world: World) -> None:
    for pod in world.slots.values():
        assert pod.wait() == 0, pod.log


def samples_of(of: Job, *, ranks: int) -> dict[int, list[int]]:
    """Return the samples of each step from all ranks."""
    found: dict[int, set[tuple[int, ...]]] = {}
    for rank in range(ranks):
        for step, samples in of.begun_by(rank):
            if samples:  # a rank may have none that count
                found.setdefault(step, set()).add(tuple(samples))
    return {step: sorted(i for some in found[step] for i in some) for step in found}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Return a job that is not elastic, with as many ranks as shards."""
    with training(tmp_path_factory.mktemp("undisturbed"), pods=SHARDS) as world:
        end(world)
        yield world.of


def assert_close(of: Job, undisturbed: Job, tolerance: float = TOLERANCE) -> None:
    """Check that steps are the same except for rounding."""
    expected = losses_of(undisturbed)
    assert losses_of(of) == pytest.approx(expected, rel=tolerance)
    assert len(expected) == LAST_STEP
    actual, wanted = of.state(LAST_STEP), undisturbed.state(LAST_STEP)
    assert actual["position"] == wanted["position"]
    rates = [state["optimizer"]["param_groups"][0]["lr"] for state in (actual, wanted)]
    assert rates[0] == rates[1]
    # The first layer's statistics cover all inputs of a model.
    tracked = [state["model"].get("2.num_batches_tracked") for state in (actual, wanted)]
    assert tracked[0] == tracked[1]


def test_three_become_one_and_three_again_and_take_the_same_steps(
    tmp_path: Path, undisturbed: Job
) -> None:
    with training(tmp_path, pods=SHARDS, variables=GLOBAL) as world:
        world.of.wait_for_step(4)
        # Later pods were created when the job wanted another number.
        world.of.extra_environment = {**world.of.extra_environment, "DDP_BATCH_RANKS": "5"}
        resize(world, 1, 3)
        assert_close(world.of, undisturbed)
        assert samples_of(world.of, ranks=3) == samples_of(undisturbed, ranks=3)
        message = "a step has the batches of 3 ranks, as when this training began, not of 5"
        assert message in world.slots[2].log


def test_sizes_that_do_not_divide_share_the_same_steps_evenly(tmp_path: Path) -> None:
    with training(tmp_path / "undisturbed", DOUBLES, pods=SHARDS) as world:
        end(world)
        undisturbed = world.of
    folder = tmp_path / "elastic"
    with training(folder, DOUBLES, pods=SHARDS, variables=GLOBAL) as world:
        resize(world, 2, 4)
        assert_close(world.of, undisturbed, DOUBLE_TOLERANCE)
        assert samples_of(world.of, ranks=4) == samples_of(undisturbed, ranks=3)
        sizes = {
            tuple(len(dict(world.of.begun_by(rank)).get(step, [])) for rank in range(4))
            for step in range(1, LAST_STEP + 1)
        }
        assert sizes == {(32, 32, 32, 0), (48, 48, 0, 0), (24, 24, 24, 24)}


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Return a job of one rank, which computes all shards."""
    with training(tmp_path_factory.mktemp("exact"), *LOGICAL_SHARDS, pods=1) as world:
        end(world)
        yield world.of


def test_logical_shards_of_one_rank_are_the_steps_of_three(exact: Job, undisturbed: Job) -> None:
    assert_close(exact, undisturbed)
    assert samples_of(exact, ranks=1) == samples_of(undisturbed, ranks=3)


@pytest.mark.parametrize(
    "sizes", [(3, 2, 4), pytest.param((3,), marks=pytest.mark.nightly)], ids=str
)
def test_logical_shards_end_the_same_to_the_bit(
    sizes: Sequence[int], tmp_path: Path, exact: Job
) -> None:
    with training(tmp_path, *LOGICAL_SHARDS, pods=sizes[0], variables=GLOBAL) as world:
        resize(world, *sizes[1:]) if sizes[1:] else end(world)
        assert_same(world.of.state(LAST_STEP), exact.state(LAST_STEP))
        assert losses_of(world.of) == losses_of(exact)
        assert samples_of(world.of, ranks=max(sizes)) == samples_of(exact, ranks=1)


SHARDS_OF_A_POD = 4
LAST_STEP_OF_A_POD = 48  # 4 epochs of ceil(ceil(1438 / 4) / 32) steps
EVEN_SHARES = {"DDP_BATCH": "global", "DDP_BATCH_RANKS": str(SHARDS_OF_A_POD)}


SHARDED = ("--logical-shards", str(SHARDS_OF_A_POD))


@pytest.fixture(scope="module")
def shards_of_a_pod(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Return a run without faults; any device must compute the same, at once or in a stream."""
    return run_with_faults(tmp_path_factory.mktemp("shards"), [], *SHARDED, ranks=3)


@pytest.fixture(scope="module")
def shares_of_a_pod(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Return the same in even shares."""
    return run_with_faults(tmp_path_factory.mktemp("shares"), [], ranks=3, variables=EVEN_SHARES)


@pytest.mark.parametrize(
    ("exact", "forkserver"),
    [
        (True, STREAM),
        (False, CPU),
        pytest.param(True, CPU, marks=pytest.mark.nightly),
        pytest.param(False, STREAM, marks=pytest.mark.nightly),
    ],
    ids=["exact-stream", "even-cpu", "exact-cpu", "even-stream"],
)
def test_a_step_needs_the_parts_of_all_ranks_although_some_die(
    exact: bool, forkserver: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    expected: Job = request.getfixturevalue("shards_of_a_pod" if exact else "shares_of_a_pod")
    points = ("backward", "gate", "within the optimizer's step", "after the optimizer's step")
    plan = [
        FaultAt(rank=number % 3, point=point, step=5 * number + 3)
        for number, point in enumerate(points)
    ]
    actual = run_with_faults(
        tmp_path,
        plan,
        *(SHARDED if exact else ()),
        ranks=3,
        forkserver=forkserver,
        variables={} if exact else EVEN_SHARES,
    )
    assert_same(actual.state(LAST_STEP_OF_A_POD), expected.state(LAST_STEP_OF_A_POD))
    for rank in range(3):
        assert actual.steps_of(rank) == expected.steps_of(rank)


@pytest.mark.nightly
def test_shards_that_did_not_come_are_missed_without_the_gate(
    tmp_path: Path, shards_of_a_pod: Job
) -> None:
    assert_wrong_without(
        Sabotage.NO_GATE,
        tmp_path,
        *SHARDED,
        state_of=lambda run: run.state(LAST_STEP_OF_A_POD),
        expected=shards_of_a_pod.state(LAST_STEP_OF_A_POD),
    )
