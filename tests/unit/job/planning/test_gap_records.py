"""Tests of the record of gaps: complete, small, and never too early."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import orjson
import pytest
from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import MAX_GAPS, DDPJobStatus, GapReason, GapRecord
from ddp_operator.engine.status_patch import News, as_stored, news
from ddp_operator.job.planning import gap_records
from ddp_operator.job.planning.gaps import NODE_SECONDS, UNSTARTABLE_SECONDS
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.observed import Gap
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Node
from hypothesis import given
from hypothesis import strategies as st

from tests.good_manifests import Json
from tests.unit.cpu_budget import loops
from tests.unit.job.builders import fresh_job, later, pod, ready, stored, with_status

REASONS: Sequence[GapReason] = ("Unscheduled", "NotStarted", "CannotStart", "Silent")


def remembered(gaps: Sequence[Gap]) -> dict[int, Gap]:
    """Return the gaps as the next plan reads them from the stored status."""
    status = DDPJobStatus(gaps=gap_records.record(gaps))
    status = DDPJobStatus.model_validate(as_stored(status))
    return {gap.node_rank: gap for gap in gap_records.stored(status)}


def started(size: int, *, every: float, reason: GapReason = "NotStarted") -> list[Gap]:
    """Return gaps that began one after another."""
    return [Gap(node_rank, reason, later(every * node_rank)) for node_rank in range(size)]


@given(
    st.dictionaries(
        st.integers(0, 300), st.tuples(st.sampled_from(REASONS), st.integers(0, 2000)), max_size=200
    )
)
def test_each_gap_keeps_its_reason_and_never_gets_an_earlier_time(
    begun: dict[int, tuple[GapReason, int]],
) -> None:
    gaps = [Gap(node_rank, reason, later(at)) for node_rank, (reason, at) in begun.items()]
    known = remembered(gaps)
    assert known.keys() == begun.keys()
    distinct = len({(gap.reason, gap.since) for gap in gaps})
    for gap in gaps:
        kept = known[gap.node_rank]
        assert kept.reason == gap.reason
        assert gap.since <= kept.since <= later(2000)
        assert distinct > MAX_GAPS or kept.since == gap.since
    assert remembered(list(known.values())) == known


def test_crowded_reason_leaves_other_clocks_exact() -> None:
    others = [Gap(500 + n, "Silent", later(7 * n)) for n in range(5)]
    known = remembered([*started(400, every=3), *others])
    assert [known[gap.node_rank] for gap in others] == others


def test_clocks_that_are_merged_again_and_again_hardly_move() -> None:
    """A pod gets its node each second, for ten minutes, and no pod starts."""
    known: dict[int, Gap] = {}
    for second in range(600):
        known = remembered([*known.values(), Gap(second, "NotStarted", later(second))])
    late = [(known[second].since - later(second)).total_seconds() for second in range(600)]
    assert min(late) >= 0
    assert max(late) < 16, "64 spans of 16 s are enough for 600 s"


@pytest.mark.parametrize(("size", "most"), [(5000, 32), (MAX_REPLICAS, 64)])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_record_of_the_largest_group_is_small(size: int, most: int, step: int) -> None:
    """Neighbours have different clocks, so that no two ranks make a range."""
    gaps = [Gap(rank, REASONS[rank % (step + 1)], later(rank * step % 977)) for rank in range(size)]
    clocks = gap_records.record(gaps)
    assert len(clocks) <= MAX_GAPS
    assert len(orjson.dumps(as_stored(DDPJobStatus(gaps=clocks))["gaps"])) <= most * 1024
    assert remembered(gaps).keys() == set(range(size))


def test_record_edited_by_hand_is_read_within_limits() -> None:
    clocks = tuple(
        GapRecord(reason="Silent", since=later(n), node_ranks=f"x,-3,0-{n + 99999999},7")
        for n in range(MAX_GAPS)
    )
    job = with_status(fresh_job(replicas=3), gaps=clocks)
    assert len(gap_records.stored(job.status)) == MAX_REPLICAS
    assert loops(lambda: plan(job, [], later(9))) < 1


def test_changes_of_clocks_alone_may_wait() -> None:
    before, after = (
        DDPJobStatus(gaps=gap_records.record(started(size, every=1))) for size in (40, 41)
    )
    assert news(before, after) is News.COUNTS


def test_gaps_are_shown_with_their_times() -> None:
    job = fresh_job(replicas=100)
    job = stored(job, plan(job, [], later(0)))
    pods = [pod(job, index) for index in range(100)]
    job = stored(job, plan(job, pods, later(50)))
    assert [(gap.node_ranks, gap.since) for gap in job.status.gaps] == [("0-99", later(0))]
    placed = [replace(ready(job, index), started=later(60)) for index in range(90)]
    job = stored(job, plan(job, [*placed, *pods[90:]], later(70)))
    assert [gap.node_ranks for gap in job.status.gaps] == ["90-99"]


class TestManyPods:
    """Any number of pods counts from its own beginning, and all are replaced at once."""

    SIZE = 200

    def trained(self) -> tuple[DDPJob, list[PodState]]:
        job = fresh_job(replicas=self.SIZE, restart={"scope": "Pod"})
        job = stored(job, plan(job, [], later(0)))
        pods = [ready(job, i, started=later(5), node=f"node-{i}") for i in range(self.SIZE)]
        pods = [replace(each, stays_on_lost_node=True) for each in pods]
        return stored(job, plan(job, pods, later(10))), pods

    def replaced(self, job: DDPJob) -> set[int]:
        return set(map(int, job.status.bookkeeping.replacements))

    def test_pods_that_never_start_are_replaced_together(self) -> None:
        job, pods = self.trained()
        late = range(50, 150)
        stuck = [pod(job, index, node="rack-7", stage="sandbox") for index in late]
        seen = [*pods[:50], *stuck, *pods[150:]]
        job = stored(job, plan(job, seen, later(20)))
        assert not plan(job, seen, later(619)).decided
        assert self.replaced(stored(job, plan(job, seen, later(620)))) == set(late)

    def test_pods_that_cannot_start_are_replaced_together(self) -> None:
        job, pods = self.trained()
        how: Json = {"stage": "image", "waiting": "ErrImagePull", "waiting_message": "not found"}
        stuck = [pod(job, index, node="rack-7", **how) for index in range(100)]
        seen = [*stuck, *pods[100:]]
        job = stored(job, plan(job, seen, later(20)))
        job = stored(job, plan(job, seen, later(20 + UNSTARTABLE_SECONDS)))
        assert self.replaced(job) == set(range(100))

    def test_pods_of_silent_nodes_are_replaced_together(self) -> None:
        job, pods = self.trained()
        nodes = [Node(f"node-{i}", {}, unready=i < 100) for i in range(self.SIZE)]
        job = stored(job, plan(job, pods, later(20), nodes=nodes))
        job = stored(job, plan(job, pods, later(20 + NODE_SECONDS), nodes=nodes))
        assert self.replaced(job) == set(range(100))

    def test_refused_pods_stay_refused(self) -> None:
        job = fresh_job(replicas=self.SIZE)
        gaps = [Gap(node_rank, "Refused", later(0)) for node_rank in range(self.SIZE)]
        job = with_status(job, gaps=gap_records.record(gaps))
        planned = plan(job, [], later(60))
        assert planned.seen is not None
        kept = planned.seen.gaps
        assert [(gap.reason, gap.since) for gap in kept] == [("Refused", later(0))]


def test_clocks_of_5000_pods_cost_little() -> None:
    gaps = [
        Gap(rank, reason, later(rank * 13 % 4999))
        for rank, reason in zip(range(5000), itertools.cycle(REASONS), strict=False)
    ]
    status = DDPJobStatus(gaps=gap_records.record(gaps))
    assert loops(lambda: gap_records.record(gaps)) < 0.5
    assert loops(lambda: gap_records.record(gap_records.stored(status))) < 0.3
