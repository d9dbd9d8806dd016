"""Specs of single pods, and kinds of pods."""

from typing import Any

import pytest
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.spec.overrides import kinds, spec_of

from tests.good_manifests import Json, container, job, template


def spec(**fields: Any) -> DDPJobSpec:
    return DDPJobSpec.model_validate(job(**fields)["spec"])


def test_pod_without_an_override_has_the_spec_of_the_job() -> None:
    plain = spec(replicas=4, overrides=[{"indexes": ["1-2"], "nprocPerNode": 3}])
    assert spec_of(plain, 0) is plain
    assert spec_of(plain, 3) is plain
    assert spec_of(plain, 1).nproc_per_node == spec_of(plain, 2).nproc_per_node == 3


def test_accelerator_of_an_override_replaces_all_of_it() -> None:
    two = spec(
        accelerator={"type": "nvidia-l4", "count": 4, "provisioning": "spot"},
        overrides=[{"indexes": ["0"], "accelerator": {"type": "nvidia-l4", "count": 2}}],
    )
    accelerator = spec_of(two, 0).accelerator
    assert accelerator is not None
    assert (accelerator.count, accelerator.provisioning) == (2, "standard")


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"spec": {"nodeSelector": {"disk": "ssd"}}}, {"zone": "a", "disk": "ssd"}),
        ({"spec": {"nodeSelector": {"zone": "b"}}}, {"zone": "b"}),
        ({"spec": {"nodeSelector": {"zone": None}}}, {}),
        ({"spec": {"nodeSelector": None}}, None),
        ({"metadata": {"labels": {"a": "b"}}}, {"zone": "a"}),
    ],
)
def test_template_of_an_override_is_merged(patch: Json, expected: Json | None) -> None:
    before = template(nodeSelector={"zone": "a"})
    patched = spec(template=before, overrides=[{"indexes": ["0"], "template": patch}])
    after = spec_of(patched, 0).template
    assert after["spec"].get("nodeSelector") == expected
    assert after["spec"]["containers"] == [container()]
    assert after.get("metadata") == patch.get("metadata")
    assert patched.template == template(nodeSelector={"zone": "a"})


def test_kinds_of_pods() -> None:
    overrides = [
        {"indexes": ["5-7", "0"], "nprocPerNode": 1},
        {"indexes": ["2-3"], "nprocPerNode": 2},
    ]
    found = kinds(spec(replicas=10, nprocPerNode=3, overrides=overrides))
    assert [(kind.nproc_per_node, list(pods)) for kind, pods in found] == [
        (1, [range(5, 8), range(1)]),
        (2, [range(2, 4)]),
        (3, [range(1, 2), range(4, 5), range(8, 10)]),
    ]
    found = kinds(spec(replicas=2, overrides=[{"indexes": ["0-1"], "nprocPerNode": 2}]))
    assert [kind.nproc_per_node for kind, _ in found] == [2], "no kind is without pods"
    assert [list(pods) for _, pods in kinds(spec(replicas=2))] == [[range(2)]]
