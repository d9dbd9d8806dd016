"""Tests of nodes that a job's pods avoid, because of failures there and of what nodes report."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec import FailureClass
from ddp_operator.api.status import MAX_EXCLUDED, DDPJobStatus, Failure
from ddp_operator.engine.status_patch import as_stored
from ddp_operator.job.failure.nodes import MAX_RECORDS, usable_again, with_bad_nodes
from ddp_operator.job.failure.records import MAX_FAILURES, describe, remember
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Node, Nodes
from hypothesis import example, given
from hypothesis import strategies as st

from tests.good_manifests import template
from tests.unit.job.builders import (
    NOW,
    does_nothing,
    ended,
    fresh_job,
    later,
    node_failures,
    pod,
    running_job,
    stored,
    with_status,
)

FLIPPED = (
    "rank 1 differs from the other ranks after step 40; last equal at step 30: "
    "flipped bits in memory"
)
ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
NODE: FailureClass = "Infrastructure"
EIGHT = tuple(Node(f"node-{letter}", {}, boot_id=f"boot-{letter}") for letter in "abcdefgh")


def failure(node: str, class_: FailureClass = NODE, **more: Any) -> Failure:
    return Failure(
        time=NOW, attempt=0, index=0, pod="digits-0-0", node=node, reason="Error", class_=class_
    ).updated(**{"exit_code": 1, **more})


def after(job: DDPJob, *failures: Failure, nodes: Sequence[Node] = EIGHT, at: float = 0) -> DDPJob:
    """Return the job after these failures, one after the other, as the next reconcile reads it."""
    for number, new in enumerate(failures or (None,)):
        status = job.status
        if new is not None:
            status = remember(status, new.updated(time=later(at + number)))
        status = with_bad_nodes(job, status, Nodes(nodes))
        job = replace(job, status=DDPJobStatus.model_validate(as_stored(status)))
    return job


def avoided(job: DDPJob) -> tuple[list[str], list[str]]:
    """Return the nodes that the next pod must not use, and those that it avoids if others fit."""
    affinity = (
        manifests.pod(job, Identity(0, 0))["spec"].get("affinity", {}).get("nodeAffinity", {})
    )
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    return (
        [name for term in required.get("nodeSelectorTerms") or () for name in names(term)],
        [name for term in preferred for name in names(term["preference"])],
    )


def names(term: dict[str, Any]) -> list[str]:
    assert all(field["key"] == "metadata.name" for field in term["matchFields"])
    assert all(field["operator"] == "NotIn" for field in term["matchFields"])
    return [name for field in term["matchFields"] for name in field["values"]]


def test_node_that_fails_twice_is_avoided_if_others_fit() -> None:
    once = after(fresh_job(), failure("node-a"))
    assert (node_failures(once.status), once.status.excluded_nodes) == ({"node-a": 1}, ())
    twice = after(once, failure("node-b"), failure("node-a"), at=10)
    assert node_failures(twice.status) == {"node-a": 2, "node-b": 1}
    assert twice.status.excluded_nodes == ("node-a",)
    assert avoided(twice) == ([], ["node-a"])


@pytest.mark.parametrize(
    ("class_", "more"),
    [
        ("Application", {}),
        ("Application", {"exit_code": 139, "signal": 11}),
        ("Application", {"reason": "NoProgress", "exit_code": None}),
        ("Disruption", {}),
        ("Disruption", {"reason": "Preempted", "exit_code": None}),
        ("Disruption", {"reason": "NodeLeaving", "exit_code": None}),
        ("Disruption", {"reason": "Evicted", "exit_code": 137}),
        ("Configuration", {}),
        (NODE, {"action": "Ignore"}),
    ],
)
def test_other_failures_do_not_count_for_the_node(
    class_: FailureClass, more: dict[str, Any]
) -> None:
    job = after(fresh_job(), *[failure("node-a", class_, **more)] * 5)
    assert (node_failures(job.status), job.status.excluded_nodes) == ({}, ())


@pytest.mark.parametrize(
    ("class_", "reason"),
    [
        ("Disruption", "OutOfnvidia.com/gpu"),
        ("Disruption", "NodeAffinity"),
        ("Disruption", "Evicted"),
        (NODE, "UnexpectedAdmissionError"),
        ("Disruption", "StartTimeout"),
        ("Disruption", "ImagePullBackOff"),
        (NODE, "RunContainerError"),
        ("Disruption", "NodeLost"),
        (NODE, "SlowRank"),
    ],
)
def test_node_where_a_pod_could_not_begin_is_avoided_at_once(
    class_: FailureClass, reason: str
) -> None:
    job = after(fresh_job(), failure("node-a", class_, reason=reason, exit_code=None))
    assert node_failures(job.status) == {"node-a": 1}
    assert avoided(job) == ([], ["node-a"])


@pytest.mark.parametrize("limit", [1, 3])
def test_node_failure_limit_decides(limit: int) -> None:
    job = fresh_job(restart={"nodeFailureLimit": limit})
    assert after(job, *[failure("node-a")] * (limit - 1)).status.excluded_nodes == ()
    assert after(job, *[failure("node-a")] * limit).status.excluded_nodes == ("node-a",)


def test_node_failure_limit_0_avoids_no_node() -> None:
    never = fresh_job(restart={"nodeFailureLimit": 0})
    nodes = [replace(EIGHT[0], bad="condition y"), *EIGHT[1:]]
    broken = [failure("node-b", message=ECC)] * 9
    assert after(never, *broken, nodes=nodes).status.excluded_nodes == ()
    assert not plan(never, [], NOW, nodes=nodes).decided
    job, pods = running_job()
    assert does_nothing(plan(job, pods, later(20), nodes=nodes)), "a running job is kept"


def test_failures_count_although_many_disruptions_come_between() -> None:
    """On spot, the record of failures holds only the last ten of all nodes."""
    taken = [
        failure(f"spot-{number}", "Disruption", reason="Preempted")
        for number in range(MAX_FAILURES)
    ]
    job = after(fresh_job(), failure("node-a"), *taken)
    assert "node-a" not in {each.node for each in job.status.failures}
    job = after(job, failure("node-a"), at=100)
    assert avoided(job) == ([], ["node-a"])


def test_failure_told_by_launcher_and_by_pod_counts_once() -> None:
    first = failure("node-a", pod="digits-0-1")
    again = first.updated(exit_code=2, continued=True)
    other = failure("node-b", pod="digits-0-2", continued=True)
    job = after(fresh_job(), first, again, other)
    assert node_failures(job.status) == {"node-a": 1, "node-b": 1}
    job = after(job, first, at=100)
    assert node_failures(job.status) == {"node-a": 2, "node-b": 1}


@pytest.mark.parametrize(
    ("message", "class_", "barred"),
    [
        ("NVRM: Xid (PCI:0000:65:00): 79, pid=1234, GPU has fallen off the bus.", NODE, True),
        ("NVRM: Xid 48", NODE, True),
        (ECC, NODE, True),
        (FLIPPED, NODE, True),
        ("NVRM: Xid (PCI:0000:65:00): 31, pid=1234, Ch 00000008", NODE, False),
        ("nvidia-container-cli: initialization error", NODE, False),
        ("NVRM: Xid 79", "Disruption", False),
    ],
)
def test_pods_must_not_run_where_a_device_broke(
    message: str, class_: FailureClass, *, barred: bool
) -> None:
    job = after(fresh_job(), failure("node-a", class_, message=message))
    assert avoided(job) == ((["node-a"], []) if barred else ([], []))


def test_flipped_bits_bar_the_node_and_name_rank_and_pod() -> None:
    job, pods = running_job()
    message = json.dumps({"exitCode": 71, "rank": 1, "error": FLIPPED})
    broken = ended(job, 1, code=71, node="node-a", message=message)
    job = stored(job, plan(job, [pods[0], broken], later(60), nodes=EIGHT))
    [failure] = job.status.failures
    assert (failure.class_, failure.charged, failure.rank) == (NODE, False, 1)
    assert avoided(job) == (["node-a"], [])
    assert describe(failure) == (
        f"pod {failure.pod} (node rank 1) exited with code 71 (Error) on node node-a: {FLIPPED}"
    )


def test_node_is_barred_whatever_else_is_there() -> None:
    """Neither its taints nor the number of other nodes matter: only the scheduler knows of room."""
    for nodes in ((), EIGHT[:1], EIGHT[:2], EIGHT):
        assert avoided(after(fresh_job(), failure("node-a", message=ECC), nodes=nodes)) == (
            ["node-a"],
            [],
        )


def test_node_that_is_gone_is_not_avoided() -> None:
    job = after(fresh_job(), failure("node-a", message=ECC), failure("node-b", reason="SlowRank"))
    assert avoided(after(job, nodes=EIGHT[2:])) == ([], [])
    assert avoided(after(job, nodes=EIGHT)) == (["node-a"], ["node-b"])


def test_users_node_affinity_is_kept() -> None:
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [z]}]} for z in "12"]
    wanted = {"weight": 7, "preference": {"matchExpressions": []}}
    affinity = {
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones},
            "preferredDuringSchedulingIgnoredDuringExecution": [wanted],
        },
    }
    job = fresh_job(template=template(affinity=affinity))
    job = with_status(job, excluded_nodes=("node-a", "node-b"), barred_nodes=("node-a",))
    made = manifests.pod(job, Identity(0, 0))["spec"]["affinity"]
    [*terms] = made["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert [term["matchExpressions"] for term in terms] == [z["matchExpressions"] for z in zones]
    assert [names(term) for term in terms] == [["node-a"]] * 2
    first, second = made["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert (first, names(second["preference"])) == (wanted, ["node-b"])
    assert second["weight"] == 100
    assert "podAntiAffinity" in made
    assert "matchFields" not in zones[0], "the template was changed"


def test_only_pods_outside_the_group_keep_off_nodes_to_leave() -> None:
    job = with_status(fresh_job(), nodes_to_leave=("node-b",), successors=1)
    assert avoided(job) == ([], [])
    spec = manifests.pod(job, Identity(2, 0))["spec"]
    [term] = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert names(term) == ["node-b"]


class TestSignals:
    def test_new_job_avoids_bad_silent_and_leaving_nodes(self) -> None:
        nodes = [
            *EIGHT[:5],
            replace(EIGHT[5], unready=True),
            replace(EIGHT[6], leaving="taint x"),
            replace(EIGHT[7], bad="condition y"),
        ]
        decision = plan(fresh_job(), [], NOW, nodes=nodes)
        assert decision.decided
        job = stored(fresh_job(), decision)
        assert avoided(job) == (["node-h"], ["node-f", "node-g"])
        again = plan(job, [], NOW, nodes=nodes)
        assert not again.decided, "the same nodes are avoided already"
        assert len(again.create) == 2
        assert not plan(job, [], NOW, nodes=[*reversed(nodes)]).decided, "in any order"
        well = stored(job, plan(job, [], NOW, nodes=EIGHT))
        assert avoided(well) == ([], [])

    def test_node_that_failed_before_is_barred_once_it_reports_itself_broken(self) -> None:
        job = after(fresh_job(), failure("node-a", reason="SlowRank"))
        nodes = [replace(EIGHT[0], bad="condition y"), *EIGHT[1:]]
        assert avoided(after(job, nodes=nodes)) == (["node-a"], [])


def test_pod_prefers_the_node_that_failed_least_if_all_did() -> None:
    job = after(fresh_job(), *[failure("node-a")] * 3)
    job = after(job, *[failure("node-b")] * 2, at=10)
    affinity = manifests.pod(job, Identity(0, 0))["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [(term["weight"], names(term["preference"])) for term in terms] == [
        (100, ["node-a", "node-b"]),
        (50, ["node-a"]),
    ]


def test_broken_node_is_tried_again_once_another_fails_much_more_often() -> None:
    job = after(fresh_job(), failure("node-a", message=ECC))
    for at in range(5):
        job = after(job, failure("node-b"), at=10 * at + 10)
        assert avoided(job)[0] == ["node-a"]
    job = after(job, failure("node-b"), at=100)
    assert avoided(job)[0] == []


class TestDropped:
    def test_node_is_preferred_less_instead(self) -> None:
        job = after(fresh_job(), failure("node-a", message=ECC))
        job = replace(job, status=usable_again(job.status, ["node-a"]))
        assert avoided(after(job)) == ([], ["node-a"])
        again = after(job, failure("node-a"), at=10)
        assert avoided(again) == ([], ["node-a"]), "that may have other causes"
        again = after(again, failure("node-a", message=ECC), at=20)
        assert avoided(again) == (["node-a"], [])

    def test_node_with_a_signal_is_not_barred_again(self) -> None:
        nodes = [replace(EIGHT[0], bad="condition y"), *EIGHT[1:]]
        job = after(fresh_job(), nodes=nodes)
        assert avoided(job) == (["node-a"], [])
        job = replace(job, status=usable_again(job.status, ["node-a"]))
        job = after(job, nodes=nodes)
        assert avoided(job) == ([], ["node-a"])
        assert node_failures(job.status) == {}
        rebooted = [replace(nodes[0], boot_id="b2"), *EIGHT[1:]]
        assert avoided(after(job, nodes=rebooted)) == (["node-a"], [])


class TestBootIds:
    REBOOTED = (replace(EIGHT[0], boot_id="b2"), *EIGHT[1:])
    UNKNOWN = (replace(EIGHT[0], boot_id=""), *EIGHT[1:])

    @pytest.mark.parametrize("more", [{}, {"message": ECC}, {"reason": "StartTimeout"}])
    def test_rebooted_node_is_no_longer_avoided(self, more: dict[str, Any]) -> None:
        job = after(fresh_job(), *[failure("node-a", **more)] * 2)
        assert job.status.excluded_nodes == ("node-a",)
        job = after(job, nodes=self.REBOOTED)
        assert (job.status.excluded_nodes, node_failures(job.status)) == ((), {})

    def test_failures_before_a_reboot_do_not_count(self) -> None:
        job = after(fresh_job(), failure("node-a"))
        job = after(job, failure("node-a"), nodes=self.REBOOTED, at=10)
        assert (job.status.excluded_nodes, node_failures(job.status)) == ((), {"node-a": 1})

    @pytest.mark.parametrize("nodes", [(), UNKNOWN])
    def test_unknown_boot_ids_forget_nothing(self, nodes: Sequence[Node]) -> None:
        job = after(fresh_job(), *[failure("node-a")] * 2, nodes=nodes)
        assert after(job, nodes=EIGHT).status.excluded_nodes == ("node-a",)
        job = after(after(job, nodes=EIGHT), nodes=nodes)
        assert job.status.excluded_nodes == ("node-a",)
        assert after(job, nodes=self.REBOOTED).status.excluded_nodes == ()


class TestBounds:
    def test_oldest_of_many_nodes_is_forgotten(self) -> None:
        nodes = [Node(f"node-{number}", {}) for number in range(150)]
        many = [failure(node.name, message=ECC) for node in nodes]
        job = after(fresh_job(), *many, failure("node-50"), nodes=nodes)
        notes = job.status.bookkeeping
        assert len(notes.nodes) == MAX_RECORDS
        assert [notes.nodes[0].name, notes.nodes[-1].name] == ["node-51", "node-50"]
        assert set(notes.barred_nodes) == {f"node-{number}" for number in range(50, 150)}
        assert len(json.dumps(as_stored(job.status))) < 64 * 1024

    def test_longest_names_are_bounded(self) -> None:
        nodes = [
            Node(f"{number:03}".ljust(253, "n"), {}, boot_id="b" * 64) for number in range(120)
        ]
        job = after(fresh_job(), *[failure(node.name, message=ECC) for node in nodes], nodes=nodes)
        size = len(json.dumps(as_stored(job.status)["bookkeeping"]["nodes"]))
        assert size < 50_000

    def test_barred_nodes_come_before_all_others(self) -> None:
        nodes = [Node(f"node-{n}", {}, unready=True) for n in range(300)]
        job = after(fresh_job(), failure("node-299", message=ECC), nodes=nodes)
        assert job.status.bookkeeping.barred_nodes == ("node-299",)
        assert job.status.excluded_nodes[0] == "node-299"
        assert len(job.status.excluded_nodes) == MAX_EXCLUDED


_failures = st.lists(
    st.builds(
        failure,
        st.sampled_from([node.name for node in EIGHT] + ["", "gone"]),
        st.sampled_from(["Disruption", "Application", "Configuration", NODE]),
        message=st.sampled_from(["", ECC]),
        reason=st.sampled_from(["Error", "StartTimeout", "Preempted"]),
    ),
    max_size=30,
)


@given(_failures, st.integers(0, 8), st.integers(0, 3))
@example([failure("node-a"), failure("node-a"), failure("node-b")], 0, 1)
def test_only_broken_devices_bar_a_node(failures: list[Failure], count: int, limit: int) -> None:
    job = fresh_job(restart={"nodeFailureLimit": limit})
    job = after(job, *failures, nodes=EIGHT[:count])
    broken = {one.node for one in failures if one.class_ == NODE and one.message == ECC}
    barred, others = avoided(job)
    assert set(barred) <= broken
    assert not {*barred} & {*others}
    # Nodes with more failures than others are in a second preference, too.
    assert (*barred, *dict.fromkeys(others)) == job.status.excluded_nodes
    assert sum(node_failures(job.status).values()) <= len(failures)
    assert after(job, nodes=EIGHT[:count]).status == job.status, "it is stable"


def test_refused_pod_counts_for_its_node() -> None:
    """From the kubelet's status to the next pod's affinity."""
    job, pods = running_job(restart={"scope": "Pod"})
    reason = "OutOfnvidia.com/gpu"
    refused = pod(job, 1, node="node-b", phase="Failed", reason=reason, message="no GPU is left")
    job = stored(job, plan(job, [pods[0], refused], later(60), nodes=EIGHT))
    [failure] = job.status.failures
    assert (failure.class_, failure.charged) == ("Disruption", False)
    assert avoided(job) == ([], ["node-b"])
