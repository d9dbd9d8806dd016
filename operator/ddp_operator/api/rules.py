"""Rules that concern more than one field, each written twice: in CEL for the API server, in Python
for the operator.

The API server evaluates CEL rules at `kubectl apply` from Kubernetes 1.25 on. Older servers drop
them silently, so the operator checks the same rules before it acts on a job. A test runs both
forms of every rule over the same specs.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ddp_operator.api.constants import (
    GKE_ACCELERATOR_LABEL,
    GPU_RESOURCE,
    MAX_NAME_LENGTH,
    MIG_RESOURCE_PREFIX,
    RESERVED_ENVIRONMENT,
    TRAINER_CONTAINER,
)
from ddp_operator.api.spec import DDPJobSpec


@dataclass(frozen=True)
class Rule:
    """One rule on `spec`: `holds` and `cel` say the same, `message` names the field and the
    remedy.
    """

    message: str
    cel: str
    holds: Callable[[DDPJobSpec], bool]


def trainer_container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container of a pod template that trains: the one named `trainer`, else the
    first.
    """
    containers = (template.get("spec") or {}).get("containers") or [{}]
    named = (c for c in containers if c.get("name") == TRAINER_CONTAINER)
    found: Mapping[str, Any] = next(named, containers[0])
    return found


def gpu_limit(spec: DDPJobSpec) -> int:
    """GPUs (or MIG slices) of each pod's trainer container: its own limit, else
    `accelerator.count`, else 0.
    """
    limits = (trainer_container(spec.template).get("resources") or {}).get("limits") or {}
    own = sum(
        _quantity(amount)
        for name, amount in limits.items()
        if name == GPU_RESOURCE or name.startswith(MIG_RESOURCE_PREFIX)
    )
    return own or (spec.accelerator.count if spec.accelerator else 0)


def _quantity(amount: object) -> int:
    """Read a GPU quantity; what the API server would refuse in a pod counts as none."""
    text = str(amount)
    return int(text) if text.isdecimal() else 0


# CEL of the trainer container and of its GPUs, as `trainer_container` and `gpu_limit` have them.
_TRAINER = (
    "(self.template.spec.containers.exists(c, c.name == 'trainer')"
    " ? self.template.spec.containers.filter(c, c.name == 'trainer')[0]"
    " : self.template.spec.containers[0])"
)
_LIMITS_KNOWN = f"(has({_TRAINER}.resources) && has({_TRAINER}.resources.limits))"
_GPU_KEYS = (
    f"{_TRAINER}.resources.limits"
    f".filter(k, k == '{GPU_RESOURCE}' || k.startsWith('{MIG_RESOURCE_PREFIX}'))"
)
_OWN_GPU_LIMIT = f"({_LIMITS_KNOWN} && size({_GPU_KEYS}) > 0)"
_HAS_GPUS = f"({_OWN_GPU_LIMIT} || has(self.accelerator))"
_PLAIN_LIMIT = f"{_TRAINER}.resources.limits['{GPU_RESOURCE}']"
_HAS_PLAIN_LIMIT = f"({_LIMITS_KNOWN} && '{GPU_RESOURCE}' in {_TRAINER}.resources.limits)"
_RESERVED = ", ".join(f"'{name}'" for name in RESERVED_ENVIRONMENT)


def _plain_limit(spec: DDPJobSpec) -> int | None:
    limits = (trainer_container(spec.template).get("resources") or {}).get("limits") or {}
    return _quantity(limits[GPU_RESOURCE]) if GPU_RESOURCE in limits else None


def _environment(spec: DDPJobSpec) -> set[str]:
    return {e.get("name", "") for e in trainer_container(spec.template).get("env") or []}


def _pod_spec(spec: DDPJobSpec) -> Mapping[str, Any]:
    pod_spec: Mapping[str, Any] = spec.template.get("spec") or {}
    return pod_spec


def _locations(spec: DDPJobSpec) -> int:
    c = spec.checkpoint
    return sum(v is not None for v in (c.persistent_volume_claim, c.gcs_bucket, c.host_path))


SPEC_RULES = (
    Rule(
        "spec.template.spec.containers: at least one container is needed; "
        "the one named trainer, else the first, runs the training",
        "has(self.template.spec) && has(self.template.spec.containers)"
        " && size(self.template.spec.containers) > 0",
        lambda spec: bool(_pod_spec(spec).get("containers")),
    ),
    Rule(
        "spec.template.spec.restartPolicy: leave it out or set it to Never; "
        "the operator restarts pods according to spec.restart",
        "!has(self.template.spec.restartPolicy) || self.template.spec.restartPolicy == 'Never'",
        lambda spec: _pod_spec(spec).get("restartPolicy", "Never") == "Never",
    ),
    Rule(
        "spec.template.spec: leave out hostname and subdomain; the operator sets them, "
        "and other ranks find the pod by them",
        "!has(self.template.spec.hostname) && !has(self.template.spec.subdomain)",
        lambda spec: not {"hostname", "subdomain"} & set(_pod_spec(spec)),
    ),
    Rule(
        "spec.template.spec.containers: remove the rank and world variables from the trainer's env "
        f"({', '.join(RESERVED_ENVIRONMENT)}); the operator sets them, different in each pod",
        f"!has({_TRAINER}.env) || {_TRAINER}.env.all(e, !(e.name in [{_RESERVED}]))",
        lambda spec: not _environment(spec) & set(RESERVED_ENVIRONMENT),
    ),
    Rule(
        "spec.nprocPerNode: more processes than the trainer container's nvidia.com/gpu limit; "
        "lower it, raise the limit, or set spec.backend to gloo to train on CPU",
        "self.backend == 'gloo' || type(self.nprocPerNode) != int"
        f" || !{_HAS_PLAIN_LIMIT} || int(self.nprocPerNode) <= int({_PLAIN_LIMIT})",
        lambda spec: (
            spec.backend == "gloo"
            or spec.nproc_per_node == "auto"
            or (limit := _plain_limit(spec)) is None
            or spec.nproc_per_node <= limit
        ),
    ),
    Rule(
        "spec.nprocPerNode: more processes than spec.accelerator.count; "
        "lower it, raise the count, or set spec.backend to gloo to train on CPU",
        "self.backend == 'gloo' || type(self.nprocPerNode) != int || !has(self.accelerator)"
        f" || {_OWN_GPU_LIMIT} || int(self.nprocPerNode) <= self.accelerator.count",
        lambda spec: (
            spec.backend == "gloo"
            or spec.nproc_per_node == "auto"
            or spec.accelerator is None
            or _has_own_limit(spec)
            or spec.nproc_per_node <= spec.accelerator.count
        ),
    ),
    Rule(
        "spec.backend: nccl needs GPUs; set spec.accelerator, give the trainer container an "
        "nvidia.com/gpu limit, or use gloo",
        f"self.backend != 'nccl' || {_HAS_GPUS}",
        lambda spec: spec.backend != "nccl" or spec.accelerator is not None or _has_own_limit(spec),
    ),
    Rule(
        "spec.accelerator.count: differs from the trainer container's nvidia.com/gpu limit; "
        "leave one of the two out, or make them equal",
        f"!has(self.accelerator) || !{_HAS_PLAIN_LIMIT} || self.accelerator.count == 1"
        f" || self.accelerator.count == int({_PLAIN_LIMIT})",
        lambda spec: (
            spec.accelerator is None
            or (limit := _plain_limit(spec)) is None
            or spec.accelerator.count in (1, limit)
        ),
    ),
    Rule(
        f"spec.accelerator.nodeSelector: leave out {GKE_ACCELERATOR_LABEL}; "
        "spec.accelerator.type sets it",
        "!has(self.accelerator) || !has(self.accelerator.nodeSelector)"
        f" || !('{GKE_ACCELERATOR_LABEL}' in self.accelerator.nodeSelector)",
        lambda spec: (
            spec.accelerator is None or GKE_ACCELERATOR_LABEL not in spec.accelerator.node_selector
        ),
    ),
    Rule(
        "spec.checkpoint: name at most one of persistentVolumeClaim, gcsBucket and hostPath",
        "[has(self.checkpoint.persistentVolumeClaim), has(self.checkpoint.gcsBucket),"
        " has(self.checkpoint.hostPath)].filter(given, given).size() <= 1",
        lambda spec: _locations(spec) <= 1,
    ),
)

TRANSITION_CEL = (
    "self.replicas == oldSelf.replicas || oldSelf.suspend || self.suspend",
    "spec.replicas: immutable while the job runs; set spec.suspend to true, change it, "
    "and set suspend to false again",
)
"""Compares with the stored spec, so that only the API server can check it: (CEL, message)."""

NAME_CEL = (
    f"size(self.metadata.name) <= {MAX_NAME_LENGTH}"
    " && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    f"metadata.name: at most {MAX_NAME_LENGTH} lower-case letters, digits and dashes, beginning "
    "with a letter; it becomes part of host names (63 characters with attempt and index)",
)
"""On the whole object: (CEL, message)."""

_NAME = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")


def _has_own_limit(spec: DDPJobSpec) -> bool:
    limits = (trainer_container(spec.template).get("resources") or {}).get("limits") or {}
    return any(k == GPU_RESOURCE or k.startswith(MIG_RESOURCE_PREFIX) for k in limits)


def violations(name: str, spec: DDPJobSpec) -> list[str]:
    """Return the messages of all rules that a job breaks; empty for a good one."""
    broken = [NAME_CEL[1]] if len(name) > MAX_NAME_LENGTH or not _NAME.match(name) else []
    for rule in SPEC_RULES:
        if not rule.holds(spec):
            broken.append(rule.message)
            if rule is SPEC_RULES[0]:
                break  # the other rules look into the containers
    return broken
