"""Which pods one request can delete."""

from dataclasses import replace

import pytest
from ddp_operator.api.constants import (
    LABEL_ATTEMPT,
    LABEL_INDEX,
    LABEL_JOB_UID,
    LABEL_REPLACEMENT,
)
from ddp_operator.job.planning.deletions import PodGroup, groups
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.ports import Manifest

from tests.unit.job.builders import UID, fresh_job, pod

JOB = fresh_job(replicas=100)


def doomed(*pods: PodState, graces: dict[int, int] | None = None) -> Plan:
    seconds = {one.key: (graces or {}).get(one.identity.index) for one in pods}
    shorter = {key: value for key, value in seconds.items() if value is not None}
    return Plan(JOB.status, delete=tuple(one.key for one in pods), grace_seconds=shorter)


def selects(group: PodGroup, labels: Manifest) -> bool:
    return all(labels.get(name) in values for name, values in group.labels.items())


def test_pods_of_an_attempt_are_deleted_in_groups_of_64() -> None:
    pods = [pod(JOB, index) for index in range(100)]
    found = groups(UID, pods, doomed(*pods))
    assert [len(group.pods) for group in found] == [64, 36]
    assert [key for group in found for key in group.pods] == [one.key for one in pods]
    assert found[1].labels == {
        LABEL_JOB_UID: (UID,),
        LABEL_ATTEMPT: ("0",),
        LABEL_REPLACEMENT: ("0",),
        LABEL_INDEX: tuple(map(str, range(64, 100))),
    }


@pytest.mark.parametrize(
    ("uid", "identity"),
    [
        (UID, Identity(2, 1)),  # not doomed: a spare, or one that completed
        (UID, Identity(0, 2)),  # of the next attempt
        (UID, Identity(0, 1, 1)),  # the replacement of a doomed one
        ("another", Identity(0, 1)),  # of a later job of the same name
    ],
)
def test_labels_of_a_group_select_no_other_pod(uid: str, identity: Identity) -> None:
    pods = [pod(JOB, index, attempt=1) for index in range(3)]
    (group,) = groups(UID, pods, doomed(*pods[:2]))
    mine = manifests.pod(JOB, Identity(0, 1))
    other = manifests.pod(replace(JOB, uid=uid), identity)
    assert selects(group, mine["metadata"]["labels"])
    assert not selects(group, other["metadata"]["labels"])


def test_pods_with_other_grace_periods_or_owners_are_apart() -> None:
    pods = [pod(JOB, index) for index in range(7)]
    pods[6] = replace(pods[6], owner_uid="another")
    planned = doomed(*pods, graces={1: 15, 4: 15, 5: 3})
    found = {tuple(one.name for one in g.pods): g.grace_seconds for g in groups(UID, pods, planned)}
    assert found == {
        ("digits-0-0", "digits-0-2", "digits-0-3"): None,
        ("digits-0-1", "digits-0-4"): 15,
    }


def test_pod_that_took_another_rank_is_named_by_its_slot() -> None:
    moved = pod(JOB, 3)
    moved = replace(moved, identity=Identity.at(7, 0, 0, index=3))
    (group,) = groups(UID, [moved, pod(JOB, 4)], doomed(moved, pod(JOB, 4)))
    assert group.labels[LABEL_INDEX] == ("7", "4")


def test_pod_without_a_valid_name_is_in_no_group() -> None:
    pods = [replace(pod(JOB, index), identity=Identity(-1, -1)) for index in range(2)]
    assert groups(UID, pods, doomed(*pods)) == []
