"""Tests of each fabric with each provisioning and each scheduler: a pod is the sum of its parts.

The combinations cover all pairs. The parts are golden files: those of the tests of fabrics and
schedulers, and `golden/provisioning.yaml`. `DDP_WRITE_GOLDEN=1` writes the last one again; review
the difference.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.job.membership.rank_order import HOLD_SECONDS
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.fabrics import on_fabric
from ddp_operator.job.pods.prerequisites import prerequisites
from ddp_operator.job.pods.schedulers import scheduled
from ddp_operator.job.pods.state import Identity

from tests.good_manifests import Json, container, gpus, template
from tests.unit.job.builders import fresh_job
from tests.unit.job.pods.fabrics import test_fabrics
from tests.unit.job.pods.pairs import all_pairs, pairs_of
from tests.unit.job.pods.schedulers import test_schedulers

GOLDEN = Path(__file__).parent / "golden" / "provisioning.yaml"
SECOND = Identity(0, 1)
FABRICS: dict[str, str] = {
    "none": "nvidia-l4",
    "tcpx": "nvidia-h100-80gb",
    "tcpxo": "nvidia-h100-mega-80gb",
    "rdma": "nvidia-h200-141gb",
    "dranet": "nvidia-b200",
}
"""Fabrics, each with a type of GPU that has it."""
RESERVED: Json = {"name": "ours", "blocks": "ours-block-0001"}
PROVISIONING: dict[str, Json] = {
    "standard": {},
    "spot": {"provisioning": "spot"},
    "flex-start": {"provisioning": "flex-start"},
    "flex-start for an hour": {"provisioning": "flex-start", "maxRunSeconds": 3600},
    "queued": {"provisioning": "queued"},
    "queued for an hour": {"provisioning": "queued", "maxRunSeconds": 3600},
    "reservation": {"provisioning": "reservation", "reservation": RESERVED},
    "compute class": {"computeClass": "gpus"},
}
GANGS: dict[str, Json | None] = {
    "none": None,
    **test_schedulers.SCHEDULERS,
    **{name: test_schedulers.TOPOLOGIES[name] for name in ("near", "nearest", "kueue-near")},
    "coscheduling and kueue": {"gang": "coscheduling", "queueName": "team-a"},
    "kai and near": {**test_schedulers.SCHEDULERS["kai"], **test_schedulers.TOPOLOGIES["near"]},
}
RESTART: Json = {"scope": "Gang"}
"""The restart policy, which is the default only outside queues."""
TEMPLATE = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "kept"}},
    **template(
        container(resources=gpus(gpu=8), env=[{"name": "MINE", "value": "1"}]),
        container("logs"),
        affinity={
            "podAffinity": {
                f"{kind}DuringSchedulingIgnoredDuringExecution": [{"mine": kind}]
                for kind in ("required", "preferred")
            },
            "podAntiAffinity": {"mine": True},
        },
        nodeSelector={"disk": "nvme"},
        tolerations=[{"key": "mine", "operator": "Exists"}],
        volumes=[{"name": "mine", "emptyDir": {}}],
    ),
}
"""A template with a value for everything that parts add to."""


def in_queue(gang: str) -> bool:
    return "kueue" in gang


def job_of(fabric: str, provisioning: str, gang: str) -> DDPJob:
    kind = {} if "computeClass" in PROVISIONING[provisioning] else {"type": FABRICS[fabric]}
    accelerator = {**kind, "count": 8, "network": fabric, **PROVISIONING[provisioning]}
    scheduling = GANGS[gang]
    return fresh_job(
        template=TEMPLATE,
        accelerator=accelerator,
        restart=RESTART,
        **({"scheduling": scheduling} if scheduling else {}),
    )


def pod_of(job: DDPJob) -> Json:
    made = manifests.pod(job, SECOND)
    del made["metadata"]["annotations"]["ddp-operator.io/spec-hash"]
    return made


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each value with its path; members of lists with names have these in their paths."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}/{key}")
    elif isinstance(value, list) and all(isinstance(one, dict) and "name" in one for one in value):
        for one in value:
            rest = {key: inner for key, inner in one.items() if key != "name"}
            yield from leaves(rest, f"{path}/{one['name']}")
    elif isinstance(value, list):
        yield from ((path, json.dumps(one, sort_keys=True)) for one in value)
    else:
        yield path, json.dumps(value)


def entries(manifest: Any) -> Counter[tuple[str, str]]:
    return Counter(leaves(manifest))


def adds(golden: Path, plain: Json) -> Counter[tuple[str, str]]:
    """Return what a golden pod has and the plain pod, from which it was made, lacks."""
    return entries(yaml.safe_load(golden.read_text())) - entries(plain)


def fabric_part(fabric: str) -> Counter[tuple[str, str]]:
    if fabric == "none":
        return Counter()
    return adds(test_fabrics.GOLDEN / f"{fabric}.yaml", test_fabrics.PLAIN)


def gang_part(gang: str) -> Counter[tuple[str, str]]:
    parts = gang.split(" and ") if GANGS[gang] else []
    files = (test_schedulers.GOLDEN / f"{name}.yaml" for name in parts)
    return sum((adds(file, test_schedulers.PLAIN) for file in files), topology_part(gang))


def topology_part(gang: str) -> Counter[tuple[str, str]]:
    """Return the variable that holds ranks until their order is known."""
    if "topology" not in (GANGS[gang] or {}):
        return Counter()
    waits = {"name": "DDP_HOLD_SECONDS", "value": str(HOLD_SECONDS)}
    return entries({"spec": {"containers": [{"name": "trainer", "env": [waits]}]}})


def type_part(fabric: str, provisioning: str) -> Counter[tuple[str, str]]:
    if "computeClass" in PROVISIONING[provisioning]:
        return Counter()
    label = "cloud.google.com/gke-accelerator"
    return entries({"spec": {"nodeSelector": {label: FABRICS[fabric]}}})


PLAIN = pod_of(fresh_job(template=TEMPLATE, restart=RESTART))


def written() -> Json:
    """Return what each provisioning adds to a pod, for golden/provisioning.yaml."""
    found = {}
    for provisioning in PROVISIONING:
        pod = pod_of(job_of("none", provisioning, "kueue"))
        own, plain = pod["spec"], PLAIN["spec"]
        label = "cloud.google.com/gke-accelerator"
        selector = own["nodeSelector"].items() - plain["nodeSelector"].items()
        part: Json = {
            "spec": {
                "nodeSelector": {k: v for k, v in sorted(selector) if k != label},
                "tolerations": [
                    one for one in own["tolerations"] if one not in plain["tolerations"]
                ],
            }
        }
        if not part["spec"]["nodeSelector"]:
            del part["spec"]["nodeSelector"]
        annotations = {k: v for k, v in pod["metadata"]["annotations"].items() if "provreq" in k}
        found[provisioning] = {
            **({"metadata": {"annotations": annotations}} if annotations else {}),
            **part,
        }
    return found


def provisioning_parts() -> Json:
    if os.environ.get("DDP_WRITE_GOLDEN"):
        GOLDEN.write_text(yaml.safe_dump(written(), sort_keys=False))
    parts: Json = yaml.safe_load(GOLDEN.read_text())
    return parts


PARTS = provisioning_parts()
DIMENSIONS = (FABRICS, PROVISIONING, GANGS)


def is_valid(_: str, provisioning: str, gang: str) -> bool:
    return in_queue(gang) or not provisioning.startswith("queued")


PAIRS = all_pairs(*DIMENSIONS, valid=is_valid)


def test_every_part_has_a_golden_file() -> None:
    assert PARTS.keys() == PROVISIONING.keys()
    assert {"none", *test_fabrics.FABRICS} == FABRICS.keys()


def test_every_valid_pair_of_parts_is_combined() -> None:
    combined = {pair for cell in PAIRS for pair in pairs_of(cell)}
    matrix = [cell for cell in product(*DIMENSIONS) if is_valid(*cell)]
    assert combined == {pair for cell in matrix for pair in pairs_of(cell)}
    assert len(PAIRS) < len(matrix) / 4


@pytest.mark.parametrize(("fabric", "provisioning", "gang"), PAIRS)
def test_pod_is_the_sum_of_its_parts(fabric: str, provisioning: str, gang: str) -> None:
    job = job_of(fabric, provisioning, gang)
    parts = [
        fabric_part(fabric),
        entries(PARTS[provisioning]),
        gang_part(gang),
        type_part(fabric, provisioning),
    ]
    assert entries(pod_of(job)) == sum(parts, entries(PLAIN))
    pod = manifests.pod(job, SECOND)
    once = json.dumps(pod)
    again = scheduled(job, SECOND, pod)
    accelerator = job.spec.accelerator
    if accelerator and accelerator.fabric:
        gpu = accelerator.gpu
        again = on_fabric(accelerator.fabric, again, trainer="trainer", gpu=gpu)
    assert json.dumps(again) == once, "parts applied twice change nothing"
    assert json.dumps(pod) == once, "the pod was changed in place"


@pytest.mark.parametrize(("fabric", "provisioning", "gang"), PAIRS)
def test_parts_need_their_objects(fabric: str, provisioning: str, gang: str) -> None:
    job = job_of(fabric, provisioning, gang)
    objects = [dict(needed.manifest) for needed in prerequisites(job)]
    groups = [name for name in test_schedulers.GANGS if name in gang]
    if fabric == "dranet":
        claims = objects.pop(0)
        golden = test_fabrics.GOLDEN / "dranet-claims.yaml"
        assert (claims["kind"], claims["spec"]) == (
            "ResourceClaimTemplate",
            yaml.safe_load(golden.read_text()),
        )
    files = (test_schedulers.GOLDEN / f"{name}-group.yaml" for name in groups)
    assert objects == [yaml.safe_load(file.read_text()) for file in files]


@pytest.mark.parametrize("gang", [gang for gang in GANGS if not in_queue(gang)])
def test_queued_provisioning_outside_a_queue_is_invalid(gang: str) -> None:
    with pytest.raises(InvalidJobError, match=r"spec\.accelerator\.provisioning: queued needs"):
        job_of("none", "queued", gang)
