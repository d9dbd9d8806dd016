"""The benchmark's jobs, as users write them, and the pods that the operator makes of them."""

import json
from typing import Any

from ddp_operator.api.constants import API_VERSION, KIND
from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity

Manifest = dict[str, Any]


def job(
    namespace: str,
    name: str,
    *,
    replicas: int,
    scope: str = "Pod",
) -> Manifest:
    """Return a job with about as much in its template as a real one has."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "backend": "gloo",
            # No kubelet ends the old pods, and how long one takes is not the operator's doing.
            "restart": {"scope": scope, "replaceWhen": "Terminating"},
            "checkpoint": {"persistentVolumeClaim": "checkpoints"},
            "template": template(),
        },
    }


def pods(namespace: str, owner: Manifest, count: int) -> list[bytes]:
    """Return the bodies of pods as the operator would post them for one job named `raw`.

    They belong to `owner` instead, so that the garbage collector leaves them alone.
    """
    stored = job(namespace, "raw", replicas=count)
    stored["metadata"] |= {
        "uid": "00000000-0000-0000-0000-000000000000",
        "creationTimestamp": "2020-01-01T00:00:00Z",
    }
    parsed = DDPJob.parse(stored)
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }
    bodies = []
    for index in range(count):
        pod = manifests.pod(parsed, Identity(index, 0))
        pod["metadata"]["ownerReferences"] = [reference]
        bodies.append(json.dumps(pod, separators=(",", ":")).encode())
    return bodies


def pod_names(job_name: str, *, replicas: int) -> set[str]:
    """Return the names of a new job's pods."""
    return {Identity(index, 0).pod_name(job_name) for index in range(replicas)}


def template() -> Manifest:
    """Return a pod template as users write them."""
    return {
        "metadata": {"labels": {"team": "research"}, "annotations": {"example.com/owner": "me"}},
        "spec": {
            "securityContext": {
                "runAsNonRoot": True,
                "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "trainer",
                    "image": "registry.example.com/research/trainer:1.0.0",
                    "args": ["--workload=digits", "--epochs=30", "--checkpoint-every-steps=100"],
                    "env": [
                        {"name": "OMP_NUM_THREADS", "value": "4"},
                        {"name": "GLOO_SOCKET_IFNAME", "value": "eth0"},
                    ],
                    "resources": {
                        "requests": {"cpu": "4", "memory": "12Gi"},
                        "limits": {"memory": "16Gi"},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
                }
            ],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    }
