"""Tests of the placement: one line of the status, reported once and never guessed."""

from collections.abc import Sequence
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.engine.status_patch import as_stored
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Node

from tests.unit.job.builders import NOW, edited, ended, fresh_job, later, ready, stored

TOPOLOGY = "cloud.google.com/gce-topology-"


def node(name: str, **labels: str) -> Node:
    return Node(name, {f"{TOPOLOGY}{level}": value for level, value in labels.items()})


def landed(*names: str, **spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a job and its pods, which are ready on these nodes."""
    job = fresh_job(replicas=len(names), **spec)
    job = stored(job, plan(job, [], NOW))
    return job, [ready(job, index, node=name) for index, name in enumerate(names)]


def spread_events(planned: Plan) -> list[str]:
    return [event.message for event in planned.events if event.reason == "Spread"]


def hosts(*places: tuple[str, str]) -> list[Node]:
    return [
        node(f"n{number}", block=block, subblock=sub, host=f"h{number}")
        for number, (block, sub) in enumerate(places)
    ]


TOGETHER = hosts(("b1", "s1"), ("b1", "s1"), ("b1", "s1"))


@pytest.mark.parametrize(
    ("nodes", "placement", "event"),
    [
        (TOGETHER, "3 hosts, 1 sub-block", []),
        (
            hosts(("b1", "s1"), ("b1", "s2"), ("b1", "s2")),
            "3 hosts, 2 sub-blocks, 1 block",
            ["the pods run in 2 sub-blocks: 2 in s2, 1 in s1"],
        ),
        (
            hosts(("b1", "s1"), ("b2", "s1"), ("b2", "s1")),
            "3 hosts, 2 sub-blocks, 2 blocks",
            ["the pods run in 2 blocks: 2 in b2, 1 in b1"],
        ),
        ([node("n0"), node("n1"), node("n2")], "3 hosts", []),
        ([node(f"n{i}", host="same") for i in range(3)], "1 host", []),
        ([node(f"n{i}", block=f"b{i // 2}") for i in range(3)], "3 hosts, 2 blocks",
         ["the pods run in 2 blocks: 2 in b0, 1 in b1"]),
        ([node("n0", block="b"), node("n1", block="b"), node("n2")], "3 hosts", []),
    ],
    ids=["together", "sub-blocks", "blocks", "no labels", "host", "blocks alone", "some labels"],
)  # fmt: skip
def test_placement_names_hosts_sub_blocks_and_blocks(
    nodes: Sequence[Node], placement: str, event: list[str]
) -> None:
    job, pods = landed("n0", "n1", "n2")
    planned = plan(job, pods, later(10), nodes=nodes)
    assert planned.status.placement == placement
    assert spread_events(planned) == event
    assert as_stored(planned.status)["placement"] == placement


def test_placement_is_reported_once() -> None:
    job, pods = landed("n0", "n1")
    apart = hosts(("b1", "s1"), ("b2", "s2"))
    job = stored(job, plan(job, pods, later(10), nodes=apart))
    again = plan(job, pods, later(20), nodes=apart)
    assert (spread_events(again), again.status) == ([], job.status)


def test_placement_needs_running_pods_and_known_nodes() -> None:
    job, pods = landed("n0", "n1")
    assert plan(job, pods[:1], later(10), nodes=TOGETHER).status.placement == ""
    unseen = plan(job, pods, later(10))
    assert "placement" not in as_stored(unseen.status)
    job = stored(job, unseen)
    late = plan(job, pods, later(20), nodes=TOGETHER[:1])
    assert late.status.placement == "", "one node is unknown"
    assert plan(job, pods, later(30), nodes=TOGETHER).status.placement == "2 hosts, 1 sub-block"


def test_completed_job_keeps_its_placement() -> None:
    job, pods = landed("n0", "n1")
    job = stored(job, plan(job, pods, later(10), nodes=TOGETHER))
    over = plan(job, [ended(job, i, code=0, at=20) for i in (0, 1)], later(30), nodes=TOGETHER)
    assert over.status.phase == "Succeeded"
    assert over.status.placement == "2 hosts, 1 sub-block"


def test_restart_and_suspension_clear_the_placement() -> None:
    job, pods = landed("n0", "n1")
    job = stored(job, plan(job, pods, later(10), nodes=TOGETHER))
    assert job.status.placement
    failed = [ended(job, 0, code=1, at=11, message="boom"), pods[1]]
    restarted = plan(job, failed, later(30), nodes=TOGETHER)
    assert restarted.decided
    assert restarted.status.placement == ""
    suspended = plan(edited(job, suspend=True), pods, later(20), nodes=TOGETHER)
    assert suspended.decided
    assert suspended.status.placement == ""


def test_placement_in_many_blocks_is_summarized() -> None:
    count = 50
    job, pods = landed(*(f"n{number}" for number in range(count)))
    nodes = hosts(*((f"b{number:02}", "s") for number in range(count)))
    [message] = spread_events(plan(job, pods, later(10), nodes=nodes))
    assert message == "the pods run in 50 blocks: 1 in b00, 1 in b01, 1 in b02 and 47 elsewhere"
