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

from pydantic.alias_generators import to_camel

from ddp_operator.api import overrides
from ddp_operator.api.constants import (
    GKE_ACCELERATOR_LABEL,
    GPU_RESOURCE,
    MAX_GPUS,
    MAX_NAME_LENGTH,
    MIG_RESOURCE_PREFIX,
    RESERVED_ENVIRONMENT,
    TRAINER_CONTAINER,
)
from ddp_operator.api.spec import POD_FIELDS, DDPJobSpec, RestartRule


@dataclass(frozen=True)
class Rule:
    """One rule on `spec`: `holds` and `cel` say the same, `message` names the field and the
    remedy.
    """

    message: str
    cel: str
    holds: Callable[[DDPJobSpec], bool]
    names: Callable[[DDPJobSpec], str] = lambda _: ""
    """What exactly breaks it, where the operator can say so; CEL's messages are fixed."""


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
    limits = _gpu_limits(spec)
    if limits:
        return sum(int(amount) for amount in limits.values())
    return spec.accelerator.count if spec.accelerator else 0


def wants_host_network(spec: DDPJobSpec) -> bool:
    """Whether the pods shall have their nodes' own addresses."""
    return _pod_spec(spec).get("hostNetwork") is True


def is_gpu(resource: str) -> bool:
    """Whether a resource of this name is a GPU or a slice of one."""
    return resource == GPU_RESOURCE or resource.startswith(MIG_RESOURCE_PREFIX)


def _gpu_limits(spec: DDPJobSpec) -> Mapping[str, int | str]:
    limits = (trainer_container(spec.template).get("resources") or {}).get("limits") or {}
    return {name: amount for name, amount in limits.items() if is_gpu(name)}


# CEL of the trainer container, `c`, and of its GPUs, as `trainer_container` and `_gpu_limits` have
# them. The API server refuses a rule whose cost it cannot bound before it runs, and loses the
# bounds of all that comes out of filter() or a conditional: hence all() over the containers. It
# takes every int-or-string to be as long as a whole request, so that matches() on one costs too
# much: hence lists of what is allowed.
_IS_TRAINER = (
    "(c.name == 'trainer' || c.name == self.template.spec.containers[0].name"
    " && !self.template.spec.containers.exists(d, d.name == 'trainer'))"
)
_LIMITS = "c.resources.limits"
_HAS_LIMITS = f"has(c.resources) && has({_LIMITS})"
_IS_GPU = f"(k == '{GPU_RESOURCE}' || k.startsWith('{MIG_RESOURCE_PREFIX}'))"
_HAS_GPU_LIMIT = f"({_HAS_LIMITS} && {_LIMITS}.exists(k, {_IS_GPU}))"
_PLAIN_LIMIT = f"{_LIMITS}['{GPU_RESOURCE}']"
_RESERVED = ", ".join(f"'{name}'" for name in RESERVED_ENVIRONMENT)
_WHOLE_NUMBERS = tuple(str(number) for number in range(MAX_GPUS + 1))


def _first(pods: str) -> str:
    return f"int({pods}.split('-')[0])"


def _last(pods: str) -> str:
    return f"int({pods}.substring({pods}.indexOf('-') + 1))"  # of one index: its whole text


_BEGINS_IN = f"({_first('q')} <= {_first('r')} && {_first('r')} <= {_last('q')})"


def _for_trainer(predicate: str) -> str:
    return f"self.template.spec.containers.all(c, !{_IS_TRAINER} || {predicate})"


def _whole(amount: str) -> str:
    numbers = ", ".join(f"'{number}'" for number in _WHOLE_NUMBERS)
    return (
        f"(type({amount}) == int ? {amount} >= 0 && {amount} <= {MAX_GPUS}"
        f" : {amount} in [{numbers}])"
    )


_HAS_PLAIN_LIMIT = f"({_HAS_LIMITS} && '{GPU_RESOURCE}' in {_LIMITS} && {_whole(_PLAIN_LIMIT)})"


def _is_whole(amount: int | str) -> bool:
    return str(amount) in _WHOLE_NUMBERS


def _plain_limit(spec: DDPJobSpec) -> int | None:
    amount = _gpu_limits(spec).get(GPU_RESOURCE)
    return int(amount) if amount is not None and _is_whole(amount) else None


def _environment(spec: DDPJobSpec) -> set[str]:
    return {e.get("name", "") for e in trainer_container(spec.template).get("env") or []}


def _pod_spec(spec: DDPJobSpec) -> Mapping[str, Any]:
    pod_spec: Mapping[str, Any] = spec.template.get("spec") or {}
    return pod_spec


def _has_matcher(rule: RestartRule) -> bool:
    matchers = (rule.exit_codes, rule.reasons, rule.message_regex, rule.ranks, rule.classes)
    return any(matcher is not None for matcher in matchers)


def _locations(spec: DDPJobSpec) -> int:
    c = spec.checkpoint
    return sum(v is not None for v in (c.persistent_volume_claim, c.gcs_bucket, c.host_path))


SPEC_RULES = (
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
        "spec.template.spec.containers: remove the variables that only the operator can know from "
        f"the trainer's env ({', '.join(RESERVED_ENVIRONMENT)}); it sets them in each pod",
        _for_trainer(f"!has(c.env) || c.env.all(e, !(e.name in [{_RESERVED}]))"),
        lambda spec: not _environment(spec) & set(RESERVED_ENVIRONMENT),
    ),
    Rule(
        "spec.template.spec.containers: write the trainer's GPU limits as whole numbers of at most "
        f"{MAX_GPUS}, such as 2",
        _for_trainer(
            f"!({_HAS_LIMITS}) || {_LIMITS}.all(k, !{_IS_GPU} || {_whole(f'{_LIMITS}[k]')})"
        ),
        lambda spec: all(_is_whole(amount) for amount in _gpu_limits(spec).values()),
    ),
    Rule(
        "spec.nprocPerNode: more processes than the trainer container's nvidia.com/gpu limit; "
        "lower it, raise the limit, or set spec.backend to gloo to train on CPU",
        "self.backend == 'gloo' || type(self.nprocPerNode) != int || "
        + _for_trainer(f"!{_HAS_PLAIN_LIMIT} || int(self.nprocPerNode) <= int({_PLAIN_LIMIT})"),
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
        " || int(self.nprocPerNode) <= self.accelerator.count || " + _for_trainer(_HAS_GPU_LIMIT),
        lambda spec: (
            spec.backend == "gloo"
            or spec.nproc_per_node == "auto"
            or spec.accelerator is None
            or spec.nproc_per_node <= spec.accelerator.count
            or bool(_gpu_limits(spec))
        ),
    ),
    Rule(
        "spec.backend: nccl needs GPUs; set spec.accelerator, give the trainer container an "
        "nvidia.com/gpu limit, or use gloo",
        f"self.backend != 'nccl' || has(self.accelerator) || {_for_trainer(_HAS_GPU_LIMIT)}",
        lambda spec: (
            spec.backend != "nccl" or spec.accelerator is not None or bool(_gpu_limits(spec))
        ),
    ),
    Rule(
        "spec.accelerator.count: differs from the trainer container's nvidia.com/gpu limit; "
        "leave one of the two out, or make them equal",
        "!has(self.accelerator) || self.accelerator.count == 1 || "
        + _for_trainer(
            f"!{_HAS_GPU_LIMIT}"
            f" || {_HAS_PLAIN_LIMIT} && self.accelerator.count == int({_PLAIN_LIMIT})"
        ),
        lambda spec: (
            spec.accelerator is None
            or spec.accelerator.count == 1
            or not _gpu_limits(spec)
            or spec.accelerator.count == _plain_limit(spec)
        ),
    ),
    Rule(
        "spec.overrides: indexes of which there are no pods; they go from 0 to spec.replicas - 1, "
        "and a range from its lower end to its higher one, such as 2-5",
        "!has(self.overrides) || self.overrides.all(o, o.indexes.all(r,"
        f" {_first('r')} <= {_last('r')} && {_last('r')} < self.replicas))",
        lambda spec: not overrides.unknown(spec),
        overrides.unknown,
    ),
    Rule(
        "spec.overrides: an index that is named twice; name each pod in one override, once",
        "!has(self.overrides) || self.overrides.all(o, o.indexes.all(r,"
        f" {_first('r')} > {_last('r')} || o.indexes.exists_one(q, {_BEGINS_IN})"
        f" && self.overrides.exists_one(p, p.indexes.exists(q, {_BEGINS_IN}))))",
        lambda spec: not overrides.twice(spec),
        overrides.twice,
    ),
    Rule(
        "spec.overrides: an override that changes nothing; give it nprocPerNode, accelerator or "
        "template, or leave it out",
        "!has(self.overrides) || self.overrides.all(o,"
        " has(o.nprocPerNode) || has(o.accelerator) || has(o.template))",
        lambda spec: (
            not any(
                one.nproc_per_node is None and one.accelerator is None and one.template is None
                for one in spec.overrides or ()
            )
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
        "spec.statusPort: must differ from spec.masterPort; change one of them",
        "self.statusPort != self.masterPort",
        lambda spec: spec.status_port != spec.master_port,
    ),
    Rule(
        "spec.isolation: a NetworkPolicy does not reach pods with hostNetwork; take it out of "
        "spec.template.spec, or leave isolation out",
        "self.isolation != 'Job' || !has(self.template.spec.hostNetwork)"
        " || !self.template.spec.hostNetwork",
        lambda spec: spec.isolation != "Job" or not wants_host_network(spec),
    ),
    Rule(
        "spec.restart.backoff: maxSeconds is less than initialSeconds; raise the one or lower the "
        "other",
        "self.restart.backoff.initialSeconds <= self.restart.backoff.maxSeconds",
        lambda spec: spec.restart.backoff.initial_seconds <= spec.restart.backoff.max_seconds,
    ),
    Rule(
        "spec.restart.rules: a rule without a matcher; give it exitCodes, reasons, messageRegex, "
        "ranks or classes",
        "!has(self.restart.rules) || self.restart.rules.all(r, has(r.exitCodes)"
        " || has(r.reasons) || has(r.messageRegex) || has(r.ranks) || has(r.classes))",
        lambda spec: all(_has_matcher(rule) for rule in spec.restart.rules),
    ),
    Rule(
        "spec.restart.rules: charged goes with RestartPod and RestartGang only; leave it out",
        "!has(self.restart.rules) || self.restart.rules.all(r, !has(r.charged)"
        " || r.action in ['RestartPod', 'RestartGang'])",
        lambda spec: all(
            rule.charged is None or rule.action in ("RestartPod", "RestartGang")
            for rule in spec.restart.rules
        ),
    ),
    Rule(
        "spec.checkpoint: name at most one of persistentVolumeClaim, gcsBucket and hostPath",
        "[has(self.checkpoint.persistentVolumeClaim), has(self.checkpoint.gcsBucket),"
        " has(self.checkpoint.hostPath)].filter(given, given).size() <= 1",
        lambda spec: _locations(spec) <= 1,
    ),
)


def _unchanged(name: str) -> tuple[str, str]:
    field = to_camel(name)
    new, old = f"self.{field}", f"oldSelf.{field}"
    same = f"{new} == {old}"
    if DDPJobSpec.model_fields[name].default is None:  # absent where nobody gives it
        same = f"(has({new}) ? has({old}) && {same} : !has({old}))"
    return (
        f"{same} || oldSelf.suspend || self.suspend",
        f"spec.{field}: immutable except while the job is suspended; set spec.suspend to true, "
        "change it, and set suspend to false again, or make a new job",
    )


# The API server's `==` (k8s.io/apiserver/pkg/cel/common/values.go) sees fields that the schema does
# not name, too, with one gap: objects are equal to it where one such field came in another's place,
# such as args for command. It estimates the cost from the declared lengths of strings and lists; an
# object has none and costs next to nothing.
TRANSITION_RULES = tuple(_unchanged(name) for name in POD_FIELDS)
"""For each field that shapes running pods: (CEL, message).

They compare with the stored spec, so that only the API server can check them. A change that it lets
through, for its age or otherwise, is not ignored: all pods start anew with it, for SpecChanged.
"""

NAME_CEL = (
    f"size(self.metadata.name) <= {MAX_NAME_LENGTH}"
    " && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    f"metadata.name: at most {MAX_NAME_LENGTH} lower-case letters, digits and dashes, beginning "
    "with a letter; it becomes part of host names (63 characters with attempt and index)",
)
"""On the whole object: (CEL, message)."""

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def violations(name: str, spec: DDPJobSpec) -> list[str]:
    """Return the messages of all rules that a job breaks; empty for a good one."""
    good_name = len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name)
    broken = [] if good_name else [NAME_CEL[1]]
    found = [rule for rule in SPEC_RULES if not rule.holds(spec)]
    for rule in found:
        names = rule.names(spec)
        broken.append(f"{rule.message}: {names}" if names else rule.message)
    for number, override in enumerate(spec.overrides or ()):
        # CEL cannot merge a patch: what only the pods of an override break is for the operator.
        own = overrides.applied(spec, override)
        broken += [
            f"spec.overrides[{number}] as its pods have it: {rule.message}"
            for rule in SPEC_RULES
            if rule not in found and not rule.holds(own)
        ]
    return broken
