"""The container that trains, and its accelerators, in Python and in CEL."""

from collections.abc import Mapping, Sequence
from typing import Any

from ddp_operator.api.constants import (
    ANNOTATION_DEFAULT_CONTAINER,
    GPU_RESOURCE,
    MAX_GPUS,
    TRAINER_CONTAINER,
)
from ddp_operator.api.devices import accelerators, has_accelerators, is_accelerator_cel
from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.spec import DDPJobSpec


def trainer_container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container of a pod template that trains.

    It is the one named `trainer`; else the one that `kubectl.kubernetes.io/default-container`
    names; else the only one with accelerators; else the first.
    """
    containers = _containers(template)
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    for name in (TRAINER_CONTAINER, annotations.get(ANNOTATION_DEFAULT_CONTAINER)):
        for container in containers:
            if container.get("name") == name:
                return container
    equipped = [container for container in containers if has_accelerators(container)]
    return equipped[0] if len(equipped) == 1 else containers[0]


def gpu_limit(spec: DDPJobSpec) -> int:
    """Return the accelerators, or shares of them, of each pod's trainer container: its own limit,
    else `accelerator.count`, else 0.
    """
    limits = gpu_limits(spec)
    if limits:
        return sum(int(amount) for amount in limits.values())
    return spec.accelerator.count if spec.accelerator else 0


def wants_host_network(spec: DDPJobSpec) -> bool:
    """Return whether the pods use their nodes' own addresses."""
    return pod_spec(spec).get("hostNetwork") is True


def gpu_limits(spec: DDPJobSpec) -> Mapping[str, int | str]:
    """Return the accelerators that the trainer container itself requests."""
    return accelerators(trainer_container(spec.template))


def _containers(template: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (template.get("spec") or {}).get("containers") or [{}]


def _is_clear(spec: DDPJobSpec) -> bool:
    """Return whether it is clear who gets the accelerators: the trainer container has them, or none
    has.
    """
    containers = _containers(spec.template)
    trainer = trainer_container(spec.template)
    return (
        trainer.get("name") == TRAINER_CONTAINER
        or has_accelerators(trainer)
        or not any(map(has_accelerators, containers))
    )


# CEL of the trainer container, `c`, and of its accelerators, the same as `trainer_container` and
# `gpu_limits`. The API server refuses a rule if it cannot bound its cost in advance. It loses the
# bounds of the results of filter() and of a conditional: hence all() over the containers. It
# assumes that every int-or-string is as long as a whole request, so that matches() on one costs too
# much: hence lists of allowed values.
IS_GPU = is_accelerator_cel("k")


def _equipped(container: str) -> str:
    limits = f"{container}.resources.limits"
    return (
        f"(has({container}.resources) && has({limits}) && {limits}.exists(k, {IS_GPU}"
        f" && !(type({limits}[k]) == int ? {limits}[k] == 0 : {limits}[k] == '0')))"
    )


LIMITS = "c.resources.limits"
HAS_LIMITS = f"has(c.resources) && has({LIMITS})"
HAS_GPU_LIMIT = f"({HAS_LIMITS} && {LIMITS}.exists(k, {IS_GPU}))"
HAS_OTHER_LIMIT = f"({HAS_LIMITS} && {LIMITS}.exists(k, {IS_GPU} && k != '{GPU_RESOURCE}'))"
PLAIN_LIMIT = f"{LIMITS}['{GPU_RESOURCE}']"
_WHOLE_NUMBERS = tuple(str(number) for number in range(MAX_GPUS + 1))


def for_trainer(predicate: str, template: str = "self.template") -> str:
    """CEL: whether a predicate holds for a template's trainer container, `c`."""
    containers, notes = f"{template}.spec.containers", f"{template}.metadata.annotations"
    default = f"{notes}['{ANNOTATION_DEFAULT_CONTAINER}']"
    names_one = (
        f"(has({template}.metadata) && has({notes}) && '{ANNOTATION_DEFAULT_CONTAINER}' in {notes}"
        f" && {containers}.exists(d, d.name == {default}))"
    )
    is_trainer = (
        f"(c.name == '{TRAINER_CONTAINER}'"
        f" || !{containers}.exists(d, d.name == '{TRAINER_CONTAINER}')"
        f" && ({names_one} ? c.name == {default}"
        f" : {containers}.exists_one(d, {_equipped('d')}) ? {_equipped('c')}"
        f" : c.name == {containers}[0].name))"
    )
    return f"{containers}.all(c, !{is_trainer} || {predicate})"


def whole(amount: str) -> str:
    """CEL: whether an amount is a whole number of GPUs that a machine may have."""
    numbers = ", ".join(f"'{number}'" for number in _WHOLE_NUMBERS)
    return (
        f"(type({amount}) == int ? {amount} >= 0 && {amount} <= {MAX_GPUS}"
        f" : {amount} in [{numbers}])"
    )


HAS_PLAIN_LIMIT = f"({HAS_LIMITS} && '{GPU_RESOURCE}' in {LIMITS} && {whole(PLAIN_LIMIT)})"


def is_whole(amount: int | str) -> bool:
    """Return whether an amount is a whole number of GPUs that a machine may have."""
    return str(amount) in _WHOLE_NUMBERS


def plain_limit(spec: DDPJobSpec) -> int | None:
    """Return the trainer container's own nvidia.com/gpu limit, or None if it cannot be read."""
    amount = gpu_limits(spec).get(GPU_RESOURCE)
    return int(amount) if amount is not None and is_whole(amount) else None


def pod_spec(spec: DDPJobSpec) -> Mapping[str, Any]:
    """Return the pod's spec in the template."""
    found: Mapping[str, Any] = spec.template.get("spec") or {}
    return found


TRAINER_RULES = (
    Rule(
        "spec.template.spec.containers: not the trainer but another container has the "
        f"accelerators; give the container that trains the name {TRAINER_CONTAINER}",
        for_trainer(
            f"(c.name == '{TRAINER_CONTAINER}' || {_equipped('c')}"
            f" || !self.spec.containers.exists(d, {_equipped('d')}))",
            "self",
        ),
        _is_clear,
        lambda spec: f"{trainer_container(spec.template).get('name')} would be the trainer",
        on="template",
    ),
)
