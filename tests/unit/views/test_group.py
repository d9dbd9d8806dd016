"""The text about an elastic job's group."""

from typing import Any

import pytest
from ddp_client.views import changes
from ddp_client.views.job.diagnosis import diagnose
from ddp_client.views.job.pods import Pods, rows
from ddp_client.views.job.screen import screen
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.job.upcoming import upcoming
from ddp_operator.job.pods.state import PodState

from tests.good_manifests import Json
from tests.unit.cli.jobs import at, training
from tests.unit.job import builders
from tests.unit.job.builders import later

NOW = later(1200)
ELASTIC: Json = {"minReplicas": 2, "maxReplicas": 6}


def elastic(members: str, *, launcher: str = "Pod", **spec: Any) -> Json:
    """A job of four pods, or as `spec` says, with a group that changed a minute ago."""
    world = {"generation": 3, "members": members, "changedAt": at(1140)}
    manifest = training(world=world, bookkeeping={"launcher": launcher})
    manifest["spec"] |= {"replicas": 4, "elastic": ELASTIC, **spec}
    return manifest


def parsed(manifest: Json) -> Any:
    job = JobSnapshot.read(manifest).parsed
    assert job is not None
    return job


def trains(manifest: Json, slot: int) -> PodState:
    state: Json = {"started": later(1100), "address": f"10.0.0.{slot}:29501"}
    return builders.ready(parsed(manifest), slot, **state)


def shown(manifest: Json, *pods: PodState) -> list[str]:
    seen = JobSnapshot.read(manifest)
    return screen(seen, Pods.of(seen, pods), NOW)


def next_of(manifest: Json, *pods: PodState) -> list[str]:
    seen = JobSnapshot.read(manifest)
    return upcoming(seen, Pods.of(seen, pods), NOW)


def test_small_group_shows_pods_that_join() -> None:
    job = elastic("0,2-3")
    waiting: Json = {"waiting": "Unschedulable", "waiting_message": "0/3 nodes are available"}
    outside = [trains(job, 1), builders.pod(parsed(job), 4, **waiting)]
    lines = shown(job, *(trains(job, slot) for slot in (0, 2, 3)), *outside)
    assert "ranks       RRR  3 ready (R), 2 to join (1 ready, 1 waiting)" in lines
    assert "group       3 pods for 1m; 6 wanted, 2 enough" in lines
    assert "waits for   pod digits-0-4: Unschedulable: 0/3 nodes are available" in lines
    assert "next        in 1m one more pod joins the group (spec.elastic.growAfterSeconds)" in lines


def test_unscheduled_pods_do_not_join() -> None:
    job = elastic("0-3")
    pods = [trains(job, slot) for slot in range(4)]
    assert next_of(job, *pods, builders.pod(parsed(job), 4)) == []
    assert "2 more pods join" in next_of(job, *pods, trains(job, 4), trains(job, 5))[0]


def test_late_pod_is_left_out_after_shrink_after_seconds() -> None:
    job = elastic("0-3")
    gap: Json = {"reason": "Unscheduled", "since": at(1190)}
    job["status"]["gaps"] = [{"nodeRanks": "3", **gap}]
    [line] = next_of(job, *(trains(job, slot) for slot in range(3)), builders.pod(parsed(job), 3))
    assert line == (
        "in 20s training continues with 3 of 4 pods, unless the others are ready "
        "(spec.elastic.shrinkAfterSeconds)"
    )
    job["status"]["gaps"] = [{"nodeRanks": "1-3", **gap}]
    assert next_of(job, trains(job, 0)) == [], "with fewer than enough it waits"


@pytest.mark.parametrize(
    ("spares", "said"),
    [(0, "1 to join (1 ready)"), (2, "3 to join or as spares (3 ready)")],
)
def test_pods_outside_of_the_group_may_join_or_be_spares(spares: int, said: str) -> None:
    job = elastic("0-3", spares=spares, elastic={"maxReplicas": 5})
    outside = range(4, 5 + spares)
    seen = JobSnapshot.read(job)
    assert said in rows(Pods.of(seen, [trains(job, slot) for slot in outside]))[-1]
    full = JobSnapshot.read(elastic("0-4", spares=1, elastic={"maxReplicas": 5}))
    assert "1 spare (1 ready)" in rows(Pods.of(full, [trains(job, 5)]))[-1]


def test_why_shows_the_size_of_the_group() -> None:
    def why(manifest: Json) -> str:
        seen = JobSnapshot.read(manifest)
        pods = Pods.of(seen, [trains(manifest, slot) for slot in range(3)])
        return " ".join(str(diagnose(seen, pods, NOW)).split())

    assert "its group: 3 pods for 1m; 6 wanted, 2 enough" in why(elastic("0-2"))
    assert "what to do" not in why(elastic("0-2"))
    assert "spec.elastic has no effect: no launcher" in why(elastic("0-2", launcher=""))
    assert "its group" not in why(training())


def test_scale_announces_what_happens_to_pods() -> None:
    [said] = changes.scale(JobSnapshot.read(elastic("0-3")), 3).says
    assert said.startswith("scales digits from 4 to 3 pods while it runs")
    stopped = changes.scale(JobSnapshot.read(elastic("0-3", suspend=True)), 3)
    assert "to create the pods: kubectl ddp resume digits" in stopped.says


def test_why_shows_missing_node_ranks() -> None:
    manifest = training()
    manifest["status"]["gaps"] = [
        {"nodeRanks": "1", "reason": "NotStarted", "since": at(1140)},
        {"nodeRanks": "2", "reason": "Unscheduled", "since": at(900)},
        {"nodeRanks": "3", "reason": "Unscheduled", "since": at(1000)},
    ]
    waiting = builders.pod(parsed(manifest), 1, node="node-b")
    seen = JobSnapshot.read(manifest)
    evidence = diagnose(seen, Pods.of(seen, [waiting]), NOW).evidence
    assert "node ranks 2-3: Unscheduled for 5m" in evidence
    assert "node rank 1: NotStarted for 1m on node-b" in evidence
