"""Tests of pods for each scheduler against golden files.

`DDP_WRITE_GOLDEN=1` writes the files again; review the difference.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_operator.api.constants import MAX_NAME_LENGTH
from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.world import world_of
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.prerequisites import prerequisites
from ddp_operator.job.pods.schedulers import in_queue, scheduled
from ddp_operator.job.pods.state import Identity

from tests.good_manifests import Json, container, template
from tests.unit.job.builders import fresh_job, with_status

GOLDEN = Path(__file__).parent / "golden"
SCHEDULERS: dict[str, Json] = {
    "kueue": {"queueName": "team-a"},
    "native": {"gang": "native"},
    "coscheduling": {"gang": "coscheduling"},
    "kai": {"gang": "kai", "queueName": "team-a"},
}
"""The scheduling of one job for each scheduler."""
TOPOLOGIES: dict[str, Json] = {
    "near": {"topology": {"level": "block"}},
    "nearest": {"topology": {"level": "host", "required": True}},
    "kueue-near": {"queueName": "team-a", "topology": {"level": "sub-block"}},
    "kueue-nearest": {"queueName": "team-a", "topology": {"level": "block", "required": True}},
    "kai-nearest": {"gang": "kai", "topology": {"level": "block", "required": True}},
}
"""The scheduling of jobs with a topology."""
ALL = SCHEDULERS | TOPOLOGIES
GANGS = ("native", "coscheduling", "kai")
PLAIN: Json = {"metadata": {"name": "digits-1-0"}, "spec": {"containers": [container()]}}
OWN: Json = {
    "metadata": {
        "labels": {"kueue.x-k8s.io/priority-class": "urgent"},
        "annotations": {
            "kueue.x-k8s.io/pod-group-name": "of-somebody-else",
            "kueue.x-k8s.io/pod-group-total-count": "7",
            "kueue.x-k8s.io/podset-preferred-topology": "cloud.google.com/gce-topology-block",
        },
    },
    "spec": {"schedulerName": "mine", "containers": [container()]},
}


def job_for(name: str, **spec: Any) -> DDPJob:
    return fresh_job(scheduling=ALL[name], **spec)


def golden(name: str, made: Any) -> Any:
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("DDP_WRITE_GOLDEN"):
        path.write_text(yaml.safe_dump(made, sort_keys=False, width=1000))
    return yaml.safe_load(path.read_text())


def marked(job: DDPJob, pod: Json) -> Json:
    """Return the first pod of the second attempt, as its scheduler needs it."""
    first = Identity(0, 1)
    return scheduled(job, first, in_queue(job.spec, first.index, pod))


@pytest.mark.parametrize("name", ALL)
def test_plain_pod_gets_what_its_scheduler_needs(name: str) -> None:
    made = marked(job_for(name), PLAIN)
    assert made == golden(name, made)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_users_settings_are_kept(name: str) -> None:
    made = marked(job_for(name), OWN)
    assert made["spec"] == {**golden(name, made)["spec"], **OWN["spec"]}
    assert OWN["metadata"]["labels"].items() <= made["metadata"]["labels"].items()
    topology = "kueue.x-k8s.io/podset-preferred-topology"
    annotations = made["metadata"]["annotations"]
    assert annotations[topology] == OWN["metadata"]["annotations"][topology]
    if name == "kueue":
        own_group = made["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"]
        assert annotations["kueue.x-k8s.io/pod-group-name"] == own_group


def test_job_without_scheduling_changes_nothing() -> None:
    job = fresh_job(template=template())
    assert marked(job, OWN) == OWN
    empty = fresh_job(scheduling={})
    assert marked(empty, OWN) == OWN
    assert [*prerequisites(job), *prerequisites(empty)] == []


def group(job: DDPJob) -> Json:
    [needed] = prerequisites(job)
    return dict(needed.manifest)


@pytest.mark.parametrize("name", GANGS)
def test_gang_needs_its_group_object(name: str) -> None:
    job = job_for(name)
    made = group(job)
    assert made == golden(f"{name}-group", made)
    metadata = manifests.pod(job, Identity(0, 3))["metadata"]
    assert made["metadata"]["ownerReferences"] == metadata["ownerReferences"]
    assert f"spec.scheduling.gang: {name} needs" in next(prerequisites(job)).needs


def test_native_pods_name_their_group() -> None:
    job = job_with("native", replicas=3)
    for pod in pods_of(job):
        assert pod["spec"]["schedulingGroup"] == {"podGroupName": group(job)["metadata"]["name"]}
    policy = {"gang": {"minCount": 3}}
    assert group(job)["spec"] == {"schedulingPolicy": policy, "priorityClassName": "important"}


def test_coscheduling_pods_name_their_group() -> None:
    job = job_for("coscheduling", replicas=3)
    for pod in pods_of(job):
        label = pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"]
        assert label == group(job)["metadata"]["name"]
    assert group(job)["spec"] == {"minMember": 3}


def test_kai_pods_name_their_group_and_queue() -> None:
    job = job_for("kai", replicas=3)
    for pod in pods_of(job):
        metadata = pod["metadata"]
        assert metadata["annotations"]["pod-group-name"] == group(job)["metadata"]["name"]
        assert metadata["annotations"]["kai.scheduler/skip-podgrouper"] == "true"
        assert metadata["labels"]["kai.scheduler/queue"] == "team-a"
        assert pod["spec"]["schedulerName"] == "kai-scheduler"
        assert not any(label.startswith("kueue") for label in metadata["labels"])


@pytest.mark.parametrize("name", GANGS)
def test_elastic_gang_needs_its_fewest_pods_only(name: str) -> None:
    sizes = {"minReplicas": 2, "maxReplicas": 6}
    job = job_for(name, replicas=4, elastic=sizes, restart={"scope": "Auto"})
    spec = group(job)["spec"]
    assert spec.get("minMember", spec.get("schedulingPolicy")) in (2, {"gang": {"minCount": 2}})
    assert world_of(job).members == "0-1", "the others join once the first pods run"
    first, sixth = (manifests.pod(job, Identity(slot, 0)) for slot in (0, 5))
    assert marks_of(first) == marks_of(sixth)


def test_kai_keeps_the_survivors_of_a_lost_pod() -> None:
    gang = {"minMember": 3, "stalenessGracePeriod": "-1s", "queue": "team-a"}
    assert group(job_for("kai", replicas=3))["spec"] == gang


def test_kai_groups_of_equal_jobs_in_two_namespaces_have_different_names() -> None:
    # KAI 0.17 finds groups and their pods by name alone: cluster_info.go, snapshotPodGroups.
    job = job_for("kai")
    other = replace(job, namespace="another", uid="another")
    names = {group(each)["metadata"]["name"] for each in (job, other)}
    marks = {pods_of(each)[0]["metadata"]["annotations"]["pod-group-name"] for each in (job, other)}
    assert len(names) == 2
    assert names == marks


def test_kai_group_without_a_queue_is_in_kais_default_queue() -> None:
    defaults = {"queue": "default-queue", "priorityClassName": "important"}
    assert defaults.items() <= group(job_with("kai"))["spec"].items()


def marks_of(pod: Json) -> Json:
    """Return the pod's marks for a scheduler, which are the same for all pods of a gang."""
    marks = {**pod["metadata"]["labels"], **pod["metadata"].get("annotations", {})}
    marks = {key: value for key, value in marks.items() if "ddp-operator" not in key}
    return {**marks, "group": pod["spec"].get("schedulingGroup")}


def job_with(gang: str, **spec: Any) -> DDPJob:
    """Return a job in no queue, with a priority."""
    important = template(priorityClassName="important")
    return fresh_job(scheduling={"gang": gang}, template=important, **spec)


def pods_of(job: DDPJob) -> list[Json]:
    return [manifests.pod(job, Identity(index, 0)) for index in range(job.spec.replicas)]


def test_coscheduling_gang_may_wait_in_kueue() -> None:
    job = fresh_job(scheduling={"gang": "coscheduling", "queueName": "team-a"})
    labels = manifests.pod(job, Identity(0, 0))["metadata"]["labels"]
    assert {"kueue.x-k8s.io/queue-name", "scheduling.x-k8s.io/pod-group"} <= labels.keys()


KUEUE = "kueue.x-k8s.io/"


def group_and_count(job: DDPJob, identity: Identity) -> tuple[str, str]:
    metadata = manifests.pod(job, identity)["metadata"]
    name: str = metadata["labels"][f"{KUEUE}pod-group-name"]
    assert metadata["annotations"][f"{KUEUE}pod-group-name"] == name
    count: str = metadata["annotations"][f"{KUEUE}pod-group-total-count"]
    return name, count


def test_pods_of_a_job_are_one_kueue_group() -> None:
    one = {"indexes": ["1"], "nprocPerNode": 2}
    job = job_for("kueue", replicas=3, overrides=[one])
    pods = [Identity(index, attempt) for index in range(3) for attempt in (0, 1)]
    pods.append(Identity(2, 1, 3))
    [(first, count)] = {group_and_count(job, pod) for pod in pods}
    assert count == "3"
    again, _ = group_and_count(with_status(job, queue_group=1), Identity(0, 1))
    assert first != again, "a job that queues again has a new group"


def test_spares_are_kueue_groups_of_their_own() -> None:
    job = job_for("kueue", replicas=2, spares=2)
    pods = [group_and_count(job, Identity(slot, 0)) for slot in range(4)]
    assert [count for _, count in pods] == ["2", "2", "1", "1"]
    assert len(set(pods)) == 3
    with_one = with_status(job, queue_group_size=3)
    again = [group_and_count(with_one, Identity(slot, 0))[1] for slot in range(4)]
    assert again == ["3", "3", "3", "1"], "the size of a group is fixed"


def test_further_elastic_pods_are_kueue_groups_of_their_own() -> None:
    job = job_for("kueue", replicas=4, spares=1, elastic={"minReplicas": 3})
    needed = [group_and_count(job, Identity(slot, 0)) for slot in range(3)]
    assert {count for _, count in needed} == {"3"}
    more = [group_and_count(job, Identity(slot, 0)) for slot in (3, 4)]
    assert {count for _, count in more} == {"1"}
    assert len({*needed, *more}) == 3
    later = with_status(job, attempt=1)
    assert group_and_count(later, Identity(0, 1)) == needed[0]
    assert group_and_count(later, Identity(3, 1)) not in more, (
        "the next attempt starts without the pod"
    )
    metadata = manifests.pod(job, Identity(3, 0))["metadata"]
    assert f"{KUEUE}pod-group-pod-index-label" not in metadata["annotations"]


def test_kueue_roles_follow_the_overrides() -> None:
    ones = [{"indexes": ["1", "3-4"], "nprocPerNode": 2}, {"indexes": ["2"], "nprocPerNode": 3}]
    job = job_for("kueue", replicas=5, overrides=ones)
    found = [manifests.pod(job, Identity(index, 0)) for index in range(5)]
    roles = [pod["metadata"]["annotations"][f"{KUEUE}role-hash"] for pod in found]
    assert roles == ["pods", "pods-1", "pods-2", "pods-1", "pods-1"]


def test_later_job_of_the_same_name_is_another_kueue_group() -> None:
    job = job_for("kueue")
    others = replace(job, uid="another")
    assert group_and_count(job, Identity(0, 0)) != group_and_count(others, Identity(0, 0))


def test_kueue_pod_index_label_is_set() -> None:
    metadata = manifests.pod(job_for("kueue"), Identity(1, 0))["metadata"]
    label = metadata["annotations"][f"{KUEUE}pod-group-pod-index-label"]
    assert metadata["labels"][label] == "1"


def test_longest_kueue_group_name_is_a_valid_label() -> None:
    job = job_for("kueue", replicas=2, elastic={"maxReplicas": 9_999})
    job = replace(job, name="j" * MAX_NAME_LENGTH, uid="0d9b1e34-6f0a-4f53-b5e6")
    job = with_status(job, attempt=99_999, queue_group=9_999)
    for slot in (0, 9_998):
        name, _ = group_and_count(job, Identity(slot, 99_999))
        assert len(name) <= 63


TOPOLOGY = "cloud.google.com/gce-topology-"


def affinity(job: DDPJob, identity: Identity) -> Json:
    found: Json = manifests.pod(job, identity)["spec"]["affinity"]["podAffinity"]
    return found


@pytest.mark.parametrize(
    ("level", "key"), [("block", "block"), ("sub-block", "subblock"), ("host", "host")]
)
def test_required_topology_binds_the_pods_of_one_attempt(level: str, key: str) -> None:
    job = fresh_job(scheduling={"topology": {"level": level, "required": True}})
    labels = manifests.pod(job, Identity(1, 3, 2))["metadata"]["labels"]
    [(kind, [term])] = affinity(job, Identity(0, 3)).items()
    assert kind == "requiredDuringSchedulingIgnoredDuringExecution"
    assert term["topologyKey"] == TOPOLOGY + key
    wanted = term["labelSelector"]["matchLabels"]
    assert wanted.items() <= labels.items(), "a replacement is bound to the other pods"
    old = manifests.pod(job, Identity(1, 2))["metadata"]["labels"]
    assert not wanted.items() <= old.items(), "a new attempt is free to move"


def test_topology_is_preferred_by_default() -> None:
    job = fresh_job(scheduling={"topology": {"level": "block"}})
    [(kind, [preference])] = affinity(job, Identity(0, 0)).items()
    assert kind == "preferredDuringSchedulingIgnoredDuringExecution"
    assert preference["podAffinityTerm"]["topologyKey"] == f"{TOPOLOGY}block"


def test_affinity_of_template_and_override_is_kept() -> None:
    own: Json = {"labelSelector": {"matchLabels": {"cache": "x"}}, "topologyKey": "zone"}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    kept: Json = {
        "nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": []}]}},
        "podAntiAffinity": {required: [own]},
    }
    job = fresh_job(
        template=template(affinity={**kept, "podAffinity": {required: [own]}}),
        scheduling={"topology": {"level": "block", "required": True}},
        overrides=[{"indexes": ["1"], "template": {"spec": {"affinity": {"podAffinity": None}}}}],
    )
    for index, terms in ((0, 2), (1, 1)):
        made = manifests.pod(job, Identity(index, 0))["spec"]["affinity"]
        assert kept.items() <= made.items()
        assert len(made["podAffinity"][required]) == terms
        assert (own in made["podAffinity"][required]) == (terms == 2)


@pytest.mark.parametrize("name", ["kueue-near", "kueue-nearest"])
def test_topology_in_kueue_sets_no_affinity(name: str) -> None:
    made = manifests.pod(job_for(name), Identity(0, 0))
    assert "affinity" not in made["spec"]
    [annotation] = [key for key in made["metadata"]["annotations"] if key.endswith("-topology")]
    assert ("required" in annotation) == (name == "kueue-nearest")


def test_topology_in_a_kai_queue_sets_affinity() -> None:
    topology = {"level": "block", "required": True}
    job = fresh_job(scheduling={"gang": "kai", "queueName": "team-a", "topology": topology})
    made = manifests.pod(job, Identity(0, 0))
    assert affinity(job, Identity(0, 0))
    assert not any(key.endswith("-topology") for key in made["metadata"]["annotations"])
