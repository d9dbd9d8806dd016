"""The container that trains, and its GPUs, as rules see them in Python and in CEL."""

from collections.abc import Mapping
from typing import Any

from ddp_operator.api.constants import (
    GPU_RESOURCE,
    MAX_GPUS,
    MIG_RESOURCE_PREFIX,
    TRAINER_CONTAINER,
)
from ddp_operator.api.spec import DDPJobSpec


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
    limits = gpu_limits(spec)
    if limits:
        return sum(int(amount) for amount in limits.values())
    return spec.accelerator.count if spec.accelerator else 0


def wants_host_network(spec: DDPJobSpec) -> bool:
    """Whether the pods shall have their nodes' own addresses."""
    return pod_spec(spec).get("hostNetwork") is True


def is_gpu(resource: str) -> bool:
    """Whether a resource of this name is a GPU or a slice of one."""
    return resource == GPU_RESOURCE or resource.startswith(MIG_RESOURCE_PREFIX)


def gpu_limits(spec: DDPJobSpec) -> Mapping[str, int | str]:
    """The GPUs, and slices of them, that the trainer container itself asks for."""
    limits = (trainer_container(spec.template).get("resources") or {}).get("limits") or {}
    return {name: amount for name, amount in limits.items() if is_gpu(name)}


# CEL of the trainer container, `c`, and of its GPUs, as `trainer_container` and `gpu_limits` have
# them. The API server refuses a rule whose cost it cannot bound before it runs, and loses the
# bounds of all that comes out of filter() or a conditional: hence all() over the containers. It
# takes every int-or-string to be as long as a whole request, so that matches() on one costs too
# much: hence lists of what is allowed.
_IS_TRAINER = (
    "(c.name == 'trainer' || c.name == self.template.spec.containers[0].name"
    " && !self.template.spec.containers.exists(d, d.name == 'trainer'))"
)
LIMITS = "c.resources.limits"
HAS_LIMITS = f"has(c.resources) && has({LIMITS})"
IS_GPU = f"(k == '{GPU_RESOURCE}' || k.startsWith('{MIG_RESOURCE_PREFIX}'))"
HAS_GPU_LIMIT = f"({HAS_LIMITS} && {LIMITS}.exists(k, {IS_GPU}))"
PLAIN_LIMIT = f"{LIMITS}['{GPU_RESOURCE}']"
_WHOLE_NUMBERS = tuple(str(number) for number in range(MAX_GPUS + 1))


def for_trainer(predicate: str) -> str:
    """CEL: whether something holds of the trainer container, `c`."""
    return f"self.template.spec.containers.all(c, !{_IS_TRAINER} || {predicate})"


def whole(amount: str) -> str:
    """CEL: whether an amount is a whole number of GPUs that a machine may have."""
    numbers = ", ".join(f"'{number}'" for number in _WHOLE_NUMBERS)
    return (
        f"(type({amount}) == int ? {amount} >= 0 && {amount} <= {MAX_GPUS}"
        f" : {amount} in [{numbers}])"
    )


HAS_PLAIN_LIMIT = f"({HAS_LIMITS} && '{GPU_RESOURCE}' in {LIMITS} && {whole(PLAIN_LIMIT)})"


def is_whole(amount: int | str) -> bool:
    """Whether an amount is a whole number of GPUs that a machine may have."""
    return str(amount) in _WHOLE_NUMBERS


def plain_limit(spec: DDPJobSpec) -> int | None:
    """The trainer container's own nvidia.com/gpu limit; None without one that can be read."""
    amount = gpu_limits(spec).get(GPU_RESOURCE)
    return int(amount) if amount is not None and is_whole(amount) else None


def pod_spec(spec: DDPJobSpec) -> Mapping[str, Any]:
    """The pod's spec in the template."""
    found: Mapping[str, Any] = spec.template.get("spec") or {}
    return found
