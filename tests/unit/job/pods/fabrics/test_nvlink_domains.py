"""Tests of A4X and A4X Max: their pods share an NVLink domain.

The golden files were compared with nccl-test-imex-a4x.yaml, nccl-test-a4x-max.yaml and
nccl-test-a4x-max-jobset.yaml of Google's container-engine-accelerators at 992db812.
`DDP_WRITE_GOLDEN=1` writes them again; review the difference.
"""

import os
from typing import Any

import pytest
import yaml
from ddp_operator.api.constants import LABEL_ATTEMPT, LABEL_JOB_NAME, LABEL_JOB_UID
from ddp_operator.api.gpus import GPUS, Fabric
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.fabrics import on_fabric
from ddp_operator.job.pods.prerequisites import compute_domain, prerequisites
from ddp_operator.job.pods.state import Identity

from tests.good_manifests import Json
from tests.unit.job.builders import fresh_job
from tests.unit.job.pods.fabrics.test_fabrics import GOLDEN, PLAIN, Readable

TYPES = {"a4x": "nvidia-gb200", "a4x-max": "nvidia-gb300"}
PODS: dict[str, tuple[str, Fabric]] = {
    "a4x": ("nvidia-gb200", "dranet"),
    "a4x-rdma": ("nvidia-gb200", "rdma"),
    "a4x-max": ("nvidia-gb300", "dranet"),
}
"""GPU type and network, by golden file."""
SUB_BLOCK = "cloud.google.com/gce-topology-subblock"
SPARES: Json = {"spares": 2, "restart": {"scope": "InPlace"}}


def a4x(type_: str = "nvidia-gb200", network: str = "auto", **spec: Any) -> DDPJob:
    accelerator = {"type": type_, "count": 4, "network": network}
    return fresh_job(**{"replicas": 2, "accelerator": accelerator, **spec})


def golden(name: str, made: object) -> object:
    """Return the content of a golden file; write it first if that is asked for."""
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("DDP_WRITE_GOLDEN"):
        file.write_text(yaml.dump(made, Dumper=Readable, sort_keys=False, width=1000))
    return yaml.safe_load(file.read_text())


@pytest.mark.parametrize("name", PODS)
def test_a_plain_pod_gets_what_the_machine_needs(name: str) -> None:
    type_, fabric = PODS[name]
    pod = on_fabric(fabric, PLAIN, trainer="trainer", gpu=GPUS[type_])
    assert pod == golden(name, pod)
    assert on_fabric(fabric, pod, trainer="trainer", gpu=GPUS[type_]) == pod


def test_a4x_may_name_its_cards_instead_of_claiming_them() -> None:
    [needed] = prerequisites(a4x(network="rdma"))
    assert needed.manifest == compute_domain(a4x())
    assert manifests.pod(a4x(network="rdma"), Identity(0, 0))["spec"]["affinity"]
    with pytest.raises(InvalidJobError, match="do not have this network"):
        a4x("nvidia-gb300", network="rdma")


@pytest.mark.parametrize("machine", TYPES)
def test_job_needs_a_domain_and_claims_of_its_cards(machine: str) -> None:
    job = a4x(TYPES[machine], replicas=16, **SPARES)
    objects = [dict(needed.manifest) for needed in prerequisites(job)]
    assert objects == golden(f"{machine}-objects", objects)
    domain, cards = objects
    assert domain["spec"]["numNodes"] == 18
    pod = manifests.pod(job, Identity(0, 0))["spec"]
    assert [claim["resourceClaimTemplateName"] for claim in pod["resourceClaims"]] == [
        cards["metadata"]["name"],
        domain["spec"]["channel"]["resourceClaimTemplate"]["name"],
    ]
    assert pod["nodeSelector"]["kubernetes.io/arch"] == "arm64"
    [trainer] = pod["containers"]
    assert trainer["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert [claim["name"] for claim in trainer["resources"]["claims"]] == [
        claim["name"] for claim in pod["resourceClaims"]
    ]


def test_domain_has_its_jobs_uid_but_no_owner() -> None:
    job = a4x()
    domain = compute_domain(job)
    assert domain is not None
    assert domain["metadata"]["labels"] == {LABEL_JOB_NAME: job.name, LABEL_JOB_UID: job.uid}
    # Kubernetes would delete it while the pods still save.
    assert "ownerReferences" not in domain["metadata"]
    assert domain == compute_domain(a4x(network="dranet"))


@pytest.mark.parametrize("network", ["none", None])
def test_job_without_network_needs_no_domain(network: str | None) -> None:
    job = a4x(network=network) if network else fresh_job()
    assert compute_domain(job) is None
    assert not list(prerequisites(job))
    assert "affinity" not in manifests.pod(job, Identity(0, 0))["spec"]


def test_elastic_job_has_a_domain_for_its_largest_size() -> None:
    domain = compute_domain(a4x(elastic={"minReplicas": 1, "maxReplicas": 5}))
    assert domain is not None
    assert domain["spec"]["numNodes"] == 5


@pytest.mark.parametrize("scheduling", [None, {"queueName": "team"}], ids=["plain", "queue"])
@pytest.mark.parametrize("slot", [0, 1, 2])
def test_pods_and_spares_share_a_sub_block(slot: int, scheduling: Json | None) -> None:
    own: Json = {"scheduling": scheduling} if scheduling else {}
    job = a4x(**SPARES, **own)
    pod = manifests.pod(job, Identity(slot, 3))
    affinity = pod["spec"]["affinity"]["podAffinity"]
    assert affinity == {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "labelSelector": {
                    "matchLabels": {LABEL_JOB_NAME: job.name, LABEL_ATTEMPT: "3"},
                },
                "topologyKey": SUB_BLOCK,
            }
        ]
    }
    assert (
        affinity["requiredDuringSchedulingIgnoredDuringExecution"][0]["labelSelector"][
            "matchLabels"
        ].items()
        <= pod["metadata"]["labels"].items()
    ), "the first pod of an attempt fits by itself"


def test_other_machines_have_another_claim_template() -> None:
    names = {
        needed.manifest["metadata"]["name"]
        for type_ in TYPES.values()
        for needed in prerequisites(a4x(type_))
        if needed.manifest["kind"] == "ResourceClaimTemplate"
    }
    assert len(names) == 2, "a template is never changed, and a suspended job may change its type"


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 19},
        {"replicas": 17, **SPARES},
        {"replicas": 2, "elastic": {"maxReplicas": 19}},
    ],
    ids=["replicas", "spares", "elastic"],
)
def test_more_pods_than_nodes_of_a_domain_are_refused(spec: Json) -> None:
    with pytest.raises(
        InvalidJobError, match=r"one NVLink domain; lower replicas.*18 with nvidia-g"
    ):
        a4x(**spec)
    assert a4x(network="none", **spec)


def test_pods_outside_the_domain_are_refused() -> None:
    own = {"indexes": ["1"], "accelerator": {"type": "nvidia-gb200", "count": 4}}
    with pytest.raises(InvalidJobError, match="all pods are in it; remove accelerator from"):
        a4x(overrides=[own])
    own["accelerator"] = {"type": "nvidia-gb300", "count": 4, "network": "auto"}
    with pytest.raises(InvalidJobError, match="all pods are in it"):
        a4x(overrides=[own])
    own["accelerator"] = {"type": "nvidia-gb200", "count": 4, "network": "auto"}
    assert a4x(overrides=[own])
