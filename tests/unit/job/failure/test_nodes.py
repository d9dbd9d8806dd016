"""Tests of excluded nodes: nodes that fail pods are avoided, but not too many of them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec import FailureClass
from ddp_operator.api.status import DDPJobStatus, Failure
from ddp_operator.engine.status_patch import as_stored
from ddp_operator.job.failure.nodes import with_bad_nodes
from ddp_operator.job.failure.records import describe
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Node, Nodes
from hypothesis import given
from hypothesis import strategies as st

from tests.good_manifests import template
from tests.unit.job.builders import (
    NOW,
    does_nothing,
    ended,
    fresh_job,
    later,
    running_job,
    stored,
    with_status,
)

FLIPPED = (
    "rank 1 differs from the other ranks after step 40; last equal at step 30: "
    "flipped bits in memory"
)
NODE: FailureClass = "Infrastructure"
EIGHT = [Node(f"node-{letter}", {"zone": "1"}) for letter in "abcdefgh"]


def failure(node: str, class_: FailureClass = "Infrastructure") -> Failure:
    return Failure(
        time=NOW, attempt=0, index=0, pod="digits-0-0", node=node, reason="Error", class_=class_
    )


def judged(
    job: DDPJob, *failures: Failure, nodes: Sequence[Node] = EIGHT, before: Sequence[str] = ()
) -> DDPJobStatus:
    status = job.status.model_copy(update={"failures": failures, "excluded_nodes": tuple(before)})
    return with_bad_nodes(job, status, Nodes(nodes))


def test_node_that_fails_twice_is_excluded() -> None:
    once = judged(fresh_job(), failure("node-a"))
    assert (once.node_failures, once.excluded_nodes) == ({"node-a": 1}, ())
    twice = judged(fresh_job(), failure("node-a"), failure("node-b"), failure("node-a"))
    assert twice.node_failures == {"node-a": 2, "node-b": 1}
    assert twice.excluded_nodes == ("node-a",)


def test_application_failures_on_one_node_only_exclude_it() -> None:
    on_a = failure("node-a", "Application")
    assert judged(fresh_job(), on_a, on_a).excluded_nodes == ("node-a",)
    elsewhere = failure("node-b", "Application")
    assert judged(fresh_job(), on_a, elsewhere, on_a).excluded_nodes == ()


@pytest.mark.parametrize(
    ("class_", "more"),
    [
        ("Disruption", {}),
        ("Configuration", {}),
        ("Application", {"exit_code": 75}),
        ("Application", {"exit_code": 42, "action": "Ignore"}),
    ],
    ids=["disruption", "configuration", "secondary", "ignored"],
)
def test_other_failures_are_not_charged_to_the_node(
    class_: FailureClass, more: dict[str, Any]
) -> None:
    other = failure("node-a", class_).model_copy(update=more)
    status = judged(fresh_job(), *[other] * 5)
    assert (status.node_failures, status.excluded_nodes) == ({}, ())


def test_node_failure_limit_decides() -> None:
    patient = fresh_job(restart={"nodeFailureLimit": 3})
    assert judged(patient, *[failure("node-a")] * 2).excluded_nodes == ()
    assert judged(patient, *[failure("node-a")] * 3).excluded_nodes == ("node-a",)
    never = fresh_job(restart={"nodeFailureLimit": 0})
    assert judged(never, *[failure("node-a")] * 9, before=["node-b"]).excluded_nodes == ()


def test_quarter_of_the_fitting_nodes_may_be_excluded() -> None:
    failures = [failure(f"node-{letter}") for letter in "abc" for _ in range(2)]
    assert judged(fresh_job(), *failures).excluded_nodes == ("node-b", "node-c")
    assert judged(fresh_job(), *failures, nodes=EIGHT[:7]).excluded_nodes == ("node-c",)
    assert judged(fresh_job(), *failures, nodes=EIGHT[:3]).excluded_nodes == ()


def test_unusable_nodes_do_not_count() -> None:
    selective = fresh_job(template=template(nodeSelector={"zone": "1"}))
    unfit = [
        replace(EIGHT[4], labels={"zone": "2"}),
        replace(EIGHT[5], schedulable=False),
        replace(EIGHT[6], taints=({"key": "gpu", "value": "", "effect": "NoSchedule"},)),
        EIGHT[7],
    ]
    two = [failure("node-a")] * 2
    assert judged(selective, *two, nodes=[*EIGHT[:3], *unfit]).excluded_nodes == ("node-a",)
    assert judged(selective, *two, nodes=[*EIGHT[:2], *unfit]).excluded_nodes == ()


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "no"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"value": "yes"}, False),
    ],
)
def test_tolerations_match_taints_as_in_kubernetes(
    toleration: dict[str, str], *, tolerated: bool
) -> None:
    job = fresh_job(template=template(tolerations=[toleration]))
    taint = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    nodes = [replace(node, taints=(taint,)) for node in EIGHT]
    excluded = judged(job, *[failure("node-a")] * 2, nodes=nodes).excluded_nodes
    assert excluded == (("node-a",) if tolerated else ())


def test_node_stays_excluded_while_it_exists() -> None:
    assert judged(fresh_job(), before=["node-a"]).excluded_nodes == ("node-a",)
    assert judged(fresh_job(), before=["node-a"], nodes=EIGHT[1:]).excluded_nodes == ()
    assert judged(fresh_job(), before=["node-a"], nodes=[]).excluded_nodes == ("node-a",), "unseen"


def test_nodes_for_any_of_the_pods_count() -> None:
    """Two of eight nodes of two kinds may be excluded, not only one of pod 0's four."""
    nodes = [Node(f"node-{name}", {"zone": "1" if name < "e" else "2"}) for name in "abcdefgh"]
    zones = [
        {"indexes": [str(i)], "template": {"spec": {"nodeSelector": {"zone": str(i + 1)}}}}
        for i in range(2)
    ]
    failures = [*[failure("node-a")] * 2, *[failure("node-h")] * 2]
    status = judged(fresh_job(overrides=zones), *failures, nodes=nodes)
    assert status.excluded_nodes == ("node-a", "node-h")


def test_more_excluded_nodes_than_fit_keep_the_newest() -> None:
    many = [Node(f"node-{number}", {}) for number in range(1000)]
    before = [node.name for node in many[:100]]
    status = judged(fresh_job(), *[failure("node-500")] * 2, nodes=many, before=before)
    kept = DDPJobStatus.model_validate(as_stored(status)).excluded_nodes
    assert kept == (*before[1:], "node-500")


@pytest.mark.parametrize(
    ("limit", "message"),
    [(1, ""), (2, "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.")],
    ids=["limit", "lost GPU"],
)
def test_next_pods_avoid_the_excluded_node(limit: int, message: str) -> None:
    job, pods = running_job(restart={"nodeFailureLimit": limit})
    broken = ended(job, 1, code=1, node="node-a", message=message)
    job = stored(job, plan(job, [pods[0], broken], later(60), nodes=EIGHT))
    assert job.status.excluded_nodes == ("node-a",)
    assert node_terms(job) == [{"matchFields": [avoided("node-a")]}]


def avoided(node: str) -> dict[str, object]:
    return {"key": "metadata.name", "operator": "NotIn", "values": [node]}


def node_terms(job: DDPJob) -> list[dict[str, object]]:
    affinity = manifests.pod(job, Identity(0, 0))["spec"]["affinity"]["nodeAffinity"]
    terms: list[dict[str, object]] = affinity["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    return terms


def test_users_node_affinity_is_kept() -> None:
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [z]}]} for z in "12"]
    required = {"nodeSelectorTerms": zones}
    affinity = {
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required},
    }
    job = fresh_job(template=template(affinity=affinity))
    job = with_status(job, excluded_nodes=("node-a", "node-b"))
    fields = [avoided("node-a"), avoided("node-b")]
    assert node_terms(job) == [{**zone, "matchFields": fields} for zone in zones]
    assert "podAntiAffinity" in manifests.pod(job, Identity(0, 0))["spec"]["affinity"]
    assert "matchFields" not in zones[0], "the template was changed"


_failures = st.lists(
    st.builds(
        failure,
        st.sampled_from([node.name for node in EIGHT] + ["", "gone"]),
        st.sampled_from(["Disruption", "Application", "Configuration", "Infrastructure"]),
    ),
    max_size=10,
)


@given(_failures, st.integers(0, 8), st.lists(st.sampled_from("abcdefgh"), unique=True))
def test_never_more_than_a_quarter_is_excluded(
    failures: list[Failure], count: int, before: list[str]
) -> None:
    nodes = EIGHT[:count]
    status = judged(
        fresh_job(), *failures, nodes=nodes, before=[f"node-{letter}" for letter in before]
    )
    if nodes:
        assert len(status.excluded_nodes) * 4 <= len(nodes)
        assert set(status.excluded_nodes) <= {node.name for node in nodes}
    assert sum(status.node_failures.values()) <= len(failures)


@pytest.mark.parametrize(
    ("message", "class_", "excluded"),
    [
        ("NVRM: Xid (PCI:0000:65:00): 79, pid=1234, GPU has fallen off the bus.", NODE, True),
        ("NVRM: Xid 48", NODE, True),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", NODE, True),
        (FLIPPED, NODE, True),
        ("NVRM: Xid (PCI:0000:65:00): 31, pid=1234, Ch 00000008", NODE, False),
        ("nvidia-container-cli: initialization error", NODE, False),
        ("NVRM: Xid 79", "Disruption", False),
    ],
)
def test_lost_gpu_excludes_its_node_at_once(
    message: str, class_: FailureClass, *, excluded: bool
) -> None:
    lost = failure("node-a", class_).model_copy(update={"message": message})
    assert judged(fresh_job(), lost).excluded_nodes == (("node-a",) if excluded else ())
    never = fresh_job(restart={"nodeFailureLimit": 0})
    assert judged(never, lost).excluded_nodes == ()


def test_flipped_bits_exclude_the_node_and_name_rank_and_pod() -> None:
    job, pods = running_job()
    message = json.dumps({"exitCode": 71, "rank": 1, "error": FLIPPED})
    broken = ended(job, 1, code=71, node="node-a", message=message)
    job = stored(job, plan(job, [pods[0], broken], later(60), nodes=EIGHT))
    [failure] = job.status.failures
    assert (failure.class_, failure.charged, failure.rank) == ("Infrastructure", False, 1)
    assert job.status.excluded_nodes == ("node-a",)
    assert describe(failure) == (
        f"pod {failure.pod} (node rank 1) exited with code 71 (Error) on node node-a: {FLIPPED}"
    )


class TestSignals:
    def test_new_job_avoids_bad_and_leaving_nodes(self) -> None:
        nodes = [replace(EIGHT[6], leaving="taint x"), replace(EIGHT[7], bad="condition y")]
        nodes = [*EIGHT[:6], *nodes]
        decision = plan(fresh_job(), [], NOW, nodes=nodes)
        assert decision.decided
        job = stored(fresh_job(), decision)
        assert job.status.excluded_nodes == ("node-h", "node-g")
        assert node_terms(job) == [{"matchFields": [avoided("node-h"), avoided("node-g")]}]
        again = plan(job, [], NOW, nodes=nodes)
        assert not again.decided, "the same nodes are avoided already"
        assert len(again.create) == 2
        well = stored(job, plan(job, [], NOW, nodes=EIGHT))
        assert well.status.excluded_nodes == ()

    def test_failed_node_comes_before_bad_ones(self) -> None:
        nodes = [*EIGHT[:5], *(replace(node, bad="condition y") for node in EIGHT[5:])]
        status = judged(fresh_job(), *[failure("node-a")] * 2, nodes=nodes)
        assert status.excluded_nodes == ("node-a", "node-f"), "a quarter of eight"
        status = with_bad_nodes(fresh_job(), status, Nodes(EIGHT))
        assert status.excluded_nodes == ("node-a",)
        leaving = [replace(node, leaving="taint x") for node in EIGHT[:7]]
        nodes = [*leaving, replace(EIGHT[7], bad="condition y")]
        assert judged(fresh_job(), nodes=nodes).excluded_nodes == ("node-h", "node-a")

    def test_unusable_leaving_nodes_are_not_excluded(self) -> None:
        taint = {"key": "gone", "value": "", "effect": "NoSchedule"}
        nodes = [replace(node, leaving="taint gone", taints=(taint,)) for node in EIGHT[:3]]
        assert judged(fresh_job(), nodes=[*nodes, *EIGHT[3:]]).excluded_nodes == ()

    def test_node_failure_limit_0_excludes_no_bad_node(self) -> None:
        never = fresh_job(restart={"nodeFailureLimit": 0})
        nodes = [replace(EIGHT[0], bad="condition y"), *EIGHT[1:]]
        assert judged(never, nodes=nodes).excluded_nodes == ()
        assert not plan(never, [], NOW, nodes=nodes).decided
        job, pods = running_job()
        assert does_nothing(plan(job, pods, later(20), nodes=nodes)), "a running job is kept"


class TestBootIds:
    OLD = (replace(EIGHT[0], boot_id="b1"), *EIGHT[1:])
    NEW = (replace(EIGHT[0], boot_id="b2"), *EIGHT[1:])

    def test_rebooted_node_is_no_longer_excluded(self) -> None:
        status = judged(fresh_job(), *[failure("node-a")] * 2, nodes=self.OLD)
        assert status.excluded_nodes == ("node-a",)
        assert {f.boot_id for f in status.failures} == {"b1"}
        kept = DDPJobStatus.model_validate(as_stored(status))
        status = with_bad_nodes(fresh_job(), kept, Nodes(self.NEW))
        assert (status.excluded_nodes, status.node_failures) == ((), {})

    def test_failures_before_a_reboot_do_not_count(self) -> None:
        once = judged(fresh_job(), failure("node-a"), nodes=self.OLD)
        status = judged(fresh_job(), *once.failures, failure("node-a"), nodes=self.NEW)
        assert (status.excluded_nodes, status.node_failures) == ((), {"node-a": 1})

    def test_node_without_records_stays_excluded_until_a_reboot(self) -> None:
        status = judged(fresh_job(), *[failure("node-a")] * 2, nodes=self.OLD)
        forgotten = status.model_copy(update={"failures": ()})
        assert with_bad_nodes(fresh_job(), forgotten, Nodes(self.OLD)).excluded_nodes == ("node-a",)
        assert with_bad_nodes(fresh_job(), forgotten, Nodes(self.NEW)).excluded_nodes == ()

    def test_status_without_boot_ids_keeps_its_excluded_nodes(self) -> None:
        assert judged(fresh_job(), before=["node-a"], nodes=self.NEW).excluded_nodes == ("node-a",)
        status = judged(fresh_job(), *[failure("node-a")] * 2, nodes=self.OLD)
        unknown = with_bad_nodes(fresh_job(), status, Nodes(EIGHT))
        assert unknown.excluded_nodes == ("node-a",)

    def test_disruption_record_has_no_boot_id(self) -> None:
        status = judged(fresh_job(), failure("node-a", "Disruption"), nodes=self.OLD)
        assert status.failures[0].boot_id == ""
