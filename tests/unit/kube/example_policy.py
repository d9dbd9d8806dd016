"""The example of a policy on DDPJobs, and jobs that it must refuse."""

from typing import Any, Final

import yaml

from tests.good_manifests import Json, job, template
from tests.unit.kube.bad_requests import MANIFESTS

POLICY, BINDING = yaml.safe_load_all((MANIFESTS / "examples/policies/limit-jobs.yaml").read_text())
REGISTRY: Final = "registry.example.com/"


def trainer(**fields: Any) -> Json:
    """Return a container that the policy admits."""
    return {"name": "trainer", "image": f"{REGISTRY}trainer:1", **fields}


def limited(**spec: Any) -> Json:
    """Return a job that the policy admits, with these fields."""
    return job(**{"replicas": 2, "template": template(trainer()), **spec})


def override(**pod_spec: Any) -> Json:
    """Return a job with one override."""
    return limited(overrides=[{"indexes": ["1"], "template": {"spec": pod_spec}}])


def pods(*containers: Json, **pod_spec: Any) -> Json:
    """Return a job with this template."""
    return limited(template=template(*(containers or (trainer(),)), **pod_spec))


GOOD: Final = {
    "plain": limited(isolation="Job", elastic={"maxReplicas": 64}, spares=2),
    "own account": pods(serviceAccountName="default"),
    "volumes": pods(volumes=[{"name": "a", "emptyDir": {}}], hostNetwork=False),
    "restricted": pods(
        trainer(securityContext={"privileged": False, "capabilities": {"drop": ["ALL"]}})
    ),
    "GPUs for one pod": limited(overrides=[{"indexes": ["1"], "nprocPerNode": 2}]),
}

_FOREIGN: Final = trainer(image="docker.io/library/python:3")
_PRIVILEGED: Final = trainer(securityContext={"privileged": True})
_NODE: Final = [{"name": "a", "hostPath": {"path": "/"}}]
_IMAGES, _PRIVILEGES = "use images of these registries", "remove privileged and added capabilities"
_HOST, _DISK = "remove hostNetwork, hostPID and hostIPC", "remove hostPath"
_ACCOUNT, _PODS = "spec.template.spec.serviceAccountName: choose one", "spec.replicas: lower it"

BAD: Final = (
    ("foreign image", pods(_FOREIGN), _IMAGES),
    (
        "image of a registry with a longer name",
        pods(trainer(image="registry.example.com.evil/a")),
        _IMAGES,
    ),
    ("no image", pods({"name": "trainer"}), _IMAGES),
    ("foreign image at first", pods(initContainers=[_FOREIGN]), _IMAGES),
    ("foreign image of one pod", override(containers=[_FOREIGN]), _IMAGES),
    ("privileged", pods(_PRIVILEGED), _PRIVILEGES),
    ("privileged at first", pods(initContainers=[_PRIVILEGED]), _PRIVILEGES),
    (
        "capability",
        pods(trainer(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}})),
        _PRIVILEGES,
    ),
    ("one pod privileged", override(containers=[_PRIVILEGED]), _PRIVILEGES),
    ("host network", pods(hostNetwork=True), _HOST),
    ("host processes", pods(hostPID=True), _HOST),
    ("host network of one pod", override(hostNetwork=True), _HOST),
    ("host path", pods(volumes=_NODE), _DISK),
    ("host path of one pod", override(volumes=_NODE), _DISK),
    ("checkpoints on the node", limited(checkpoint={"hostPath": "/data"}), _DISK),
    ("other account", pods(serviceAccountName="admin"), _ACCOUNT),
    ("other account by its old field", pods(serviceAccount="admin"), _ACCOUNT),
    ("other account of one pod", override(serviceAccountName="admin"), _ACCOUNT),
    ("not isolated", limited(isolation="None"), "spec.isolation: remove it, or set it to Job"),
    ("too many pods", limited(replicas=65), _PODS),
    ("too many spares", limited(replicas=60, spares=5), _PODS),
    ("too many elastic pods", limited(elastic={"maxReplicas": 65}), _PODS),
)
"""Name, job and part of the message."""
