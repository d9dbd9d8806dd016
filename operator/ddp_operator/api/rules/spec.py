"""All rules, and the check of a job against them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic.alias_generators import to_camel

from ddp_operator.api.constants import (
    MAX_GPUS,
    MAX_NAME_LENGTH,
    RESERVED_ENVIRONMENT,
)
from ddp_operator.api.rules.accelerator import ACCELERATOR_RULES
from ddp_operator.api.rules.command import COMMAND_RULES, LAUNCHER_RULES
from ddp_operator.api.rules.membership import MEMBERSHIP_RULES
from ddp_operator.api.rules.memory_checkpoint import MEMORY_CHECKPOINT_RULES
from ddp_operator.api.rules.network import NETWORK_RULES
from ddp_operator.api.rules.overrides import OVERRIDE_RULES, different_in_gang
from ddp_operator.api.rules.own_names import OWN_NAME_RULES
from ddp_operator.api.rules.restart import RESTART_RULES
from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.rules.scheduling import SCHEDULING_RULES
from ddp_operator.api.rules.trainer import (
    HAS_GPU_LIMIT,
    HAS_LIMITS,
    HAS_PLAIN_LIMIT,
    IS_GPU,
    LIMITS,
    PLAIN_LIMIT,
    TRAINER_RULES,
    for_trainer,
    gpu_limits,
    is_whole,
    plain_limit,
    pod_spec,
    trainer_container,
    wants_host_network,
    whole,
)
from ddp_operator.api.spec import POD_FIELDS, DDPJobSpec, overrides
from ddp_operator.api.values.limits import linear

_RESERVED = ", ".join(f"'{name}'" for name in RESERVED_ENVIRONMENT)


def _environment(spec: DDPJobSpec) -> set[str]:
    return {e.get("name", "") for e in trainer_container(spec.template).get("env") or []}


def _containers(spec: DDPJobSpec) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = pod_spec(spec).get("containers") or ()
    return found


def _locations(spec: DDPJobSpec) -> int:
    c = spec.checkpoint
    return sum(v is not None for v in (c.persistent_volume_claim, c.gcs_bucket, c.host_path))


SPEC_RULES = (
    Rule(
        "spec.template.spec.restartPolicy: remove it or set it to Never; "
        "the operator restarts pods according to spec.restart",
        "!has(self.spec.restartPolicy) || self.spec.restartPolicy == 'Never'",
        lambda spec: pod_spec(spec).get("restartPolicy", "Never") == "Never",
        on="template",
    ),
    Rule(
        "spec.template.spec.containers: remove restartPolicy or set it to Never, in each "
        "container; the operator restarts pods according to spec.restart",
        "self.spec.containers.all(c, !has(c.restartPolicy) || c.restartPolicy == 'Never')",
        lambda spec: all(c.get("restartPolicy", "Never") == "Never" for c in _containers(spec)),
        on="template",
    ),
    Rule(
        "spec.template.spec: remove restartPolicyRules from all containers and initContainers; "
        "the operator restarts pods according to spec.restart.rules",
        "self.spec.containers.all(c, !has(c.restartPolicyRules))"
        " && (!has(self.spec.initContainers)"
        " || self.spec.initContainers.all(c, !has(c.restartPolicyRules)))",
        lambda spec: (
            not any(
                "restartPolicyRules" in c
                for c in (*_containers(spec), *(pod_spec(spec).get("initContainers") or ()))
            )
        ),
        on="template",
    ),
    Rule(
        "spec.template.spec: remove hostname and subdomain; the operator sets them, "
        "and other ranks find the pod by them",
        "!has(self.spec.hostname) && !has(self.spec.subdomain)",
        lambda spec: not {"hostname", "subdomain"} & set(pod_spec(spec)),
        on="template",
    ),
    Rule(
        "spec.template.spec.containers: remove the variables that only the operator can set from "
        f"the trainer's env ({', '.join(RESERVED_ENVIRONMENT)}); it sets them in each pod",
        for_trainer(f"!has(c.env) || c.env.all(e, !(e.name in [{_RESERVED}]))", "self"),
        lambda spec: not _environment(spec) & set(RESERVED_ENVIRONMENT),
        on="template",
    ),
    Rule(
        "spec.template.spec.containers: write the trainer's GPU limits as whole numbers of at most "
        f"{MAX_GPUS}, such as 2",
        for_trainer(
            f"!({HAS_LIMITS}) || {LIMITS}.all(k, !{IS_GPU} || {whole(f'{LIMITS}[k]')})", "self"
        ),
        lambda spec: all(is_whole(amount) for amount in gpu_limits(spec).values()),
        on="template",
    ),
    Rule(
        "spec.nprocPerNode: more processes than the trainer container's nvidia.com/gpu limit; "
        "lower it, raise the limit, or set spec.backend to gloo to train on CPU",
        "self.backend == 'gloo' || type(self.nprocPerNode) != int || "
        + for_trainer(f"!{HAS_PLAIN_LIMIT} || int(self.nprocPerNode) <= int({PLAIN_LIMIT})"),
        lambda spec: (
            spec.backend == "gloo"
            or spec.nproc_per_node == "auto"
            or (limit := plain_limit(spec)) is None
            or spec.nproc_per_node <= limit
        ),
    ),
    Rule(
        "spec.nprocPerNode: more processes than spec.accelerator.count; "
        "lower it, raise the count, or set spec.backend to gloo to train on CPU",
        "self.backend == 'gloo' || type(self.nprocPerNode) != int || !has(self.accelerator)"
        " || int(self.nprocPerNode) <= self.accelerator.count || " + for_trainer(HAS_GPU_LIMIT),
        lambda spec: (
            spec.backend == "gloo"
            or spec.nproc_per_node == "auto"
            or spec.accelerator is None
            or spec.nproc_per_node <= spec.accelerator.count
            or bool(gpu_limits(spec))
        ),
    ),
    Rule(
        "spec.backend: nccl needs GPUs; set spec.accelerator, give the trainer container a limit "
        "such as nvidia.com/gpu, or use gloo",
        f"self.backend != 'nccl' || has(self.accelerator) || {for_trainer(HAS_GPU_LIMIT)}",
        lambda spec: (
            spec.backend != "nccl" or spec.accelerator is not None or bool(gpu_limits(spec))
        ),
    ),
    Rule(
        "spec.accelerator.count: differs from the trainer container's nvidia.com/gpu limit; "
        "remove one of them, or make them equal",
        "!has(self.accelerator) || self.accelerator.count == 1 || "
        + for_trainer(
            f"!{HAS_GPU_LIMIT} || {HAS_PLAIN_LIMIT} && self.accelerator.count == int({PLAIN_LIMIT})"
        ),
        lambda spec: (
            spec.accelerator is None
            or spec.accelerator.count == 1
            or not gpu_limits(spec)
            or spec.accelerator.count == plain_limit(spec)
        ),
    ),
    *OWN_NAME_RULES,
    *TRAINER_RULES,
    *LAUNCHER_RULES,
    *COMMAND_RULES,
    *OVERRIDE_RULES,
    *MEMBERSHIP_RULES,
    *MEMORY_CHECKPOINT_RULES,
    *ACCELERATOR_RULES,
    *NETWORK_RULES,
    *SCHEDULING_RULES,
    Rule(
        "spec.statusPort: must differ from spec.masterPort; change one of them",
        "self.statusPort != self.masterPort",
        lambda spec: spec.status_port != spec.master_port,
    ),
    Rule(
        "spec.isolation: a NetworkPolicy does not affect pods with hostNetwork; remove it from "
        "spec.template.spec, or remove isolation",
        "!has(self.isolation) || self.isolation != 'Job' || !has(self.template.spec.hostNetwork)"
        " || !self.template.spec.hostNetwork",
        lambda spec: spec.isolation != "Job" or not wants_host_network(spec),
    ),
    *RESTART_RULES,
    Rule(
        "spec.progress.logPattern: name the group that holds the step: (?P<step>\\d+)",
        "self.logPattern.contains('(?P<step>') || self.logPattern.contains('(?<step>')",
        lambda spec: (
            spec.progress is None
            or any(name in spec.progress.log_pattern for name in ("(?P<step>", "(?<step>"))
        ),
        on="progress",
    ),
    Rule(
        "spec.checkpoint: name at most one of persistentVolumeClaim, gcsBucket and hostPath",
        "[has(self.persistentVolumeClaim), has(self.gcsBucket),"
        " has(self.hostPath)].filter(given, given).size() <= 1",
        lambda spec: _locations(spec) <= 1,
        on="checkpoint",
    ),
)


class TransitionRule(NamedTuple):
    """A rule on a change of a job. It applies to the whole object, which it compares with the
    stored one.
    """

    field: str
    cel: str
    message: str


_MAY_CHANGE = (
    "oldSelf.spec.suspend || self.spec.suspend || !has(self.status)"
    " || !has(self.status.firstPodStartTime) && !has(self.status.completionTime)"
)
"""CEL: no pod that the change would end has ever run. `DDPJobStatus.fixes_pods` is the same in
Python."""
_REMEDY = "set spec.suspend to true, change it, set it to false; or create a new job"


def _unchanged(name: str) -> TransitionRule:
    return _immutable(*_same(name))


def _same(name: str) -> tuple[str, str]:
    """Return a field with the condition that it has not changed."""
    field = f"spec.{to_camel(name)}"
    new, old = f"self.{field}", f"oldSelf.{field}"
    same = f"{new} == {old}"
    if DDPJobSpec.model_fields[name].default is None:  # the field may be absent
        same = f"(has({new}) ? has({old}) && {same} : !has({old}))"
    return field, same


def _immutable(field: str, same: str, but: str = "") -> TransitionRule:
    message = f"{field}: immutable once a pod has run or the job has finished{but}; {_REMEDY}"
    return TransitionRule(field, f"{same} || {_MAY_CHANGE}", message)


# The API server's `==` (k8s.io/apiserver/pkg/cel/common/values.go) also sees fields that the schema
# does not name, with one gap: two objects are equal if one such field is replaced by another, such
# as command by args. The server estimates the cost from the declared lengths of strings and lists;
# an object has none and costs next to nothing.
TRANSITION_RULES = (
    *(_unchanged(name) for name in POD_FIELDS if name != "replicas"),
    _immutable(
        "spec.replicas",
        "self.spec.replicas == oldSelf.spec.replicas || has(self.spec.elastic)",
        ", except with spec.elastic",
    ),
    _immutable(
        "spec.elastic",
        "(has(self.spec.elastic) ? has(oldSelf.spec.elastic)"
        " && self.spec.elastic.batch == oldSelf.spec.elastic.batch : !has(oldSelf.spec.elastic))",
        " (sizes and seconds may change at any time)",
    ),
    TransitionRule(*_same("managed_by"), "spec.managedBy: immutable; create a new job instead"),
)
"""One rule for each field that shapes pods, and one for the controller.

Only the API server knows the stored object, so the operator has no copy of these rules. After a
possible change it replaces all pods of another spec, with the reason SpecChanged."""

NAME_CEL = (
    f"size(self.metadata.name) <= {MAX_NAME_LENGTH}"
    " && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    f"metadata.name: at most {MAX_NAME_LENGTH} lower-case letters, digits and dashes, starting "
    "with a letter; it becomes part of host names (63 characters with attempt and index)",
)
"""(CEL, message) of a rule on the whole object."""

_NAME = linear(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def violations(name: str, spec: DDPJobSpec) -> list[str]:
    """Return the messages of all rules that a job breaks; empty for a valid job."""
    good_name = len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name)
    broken = [] if good_name else [NAME_CEL[1]]
    found = [rule for rule in SPEC_RULES if not rule.holds(spec)]
    for rule in found:
        names = rule.names(spec)
        broken.append(f"{rule.message}: {names}" if names else rule.message)
    for number, override in enumerate(spec.overrides or ()):
        # CEL cannot merge a patch, so only the operator checks the pods of an override.
        own = overrides.applied(spec, override)
        broken += [
            f"spec.overrides[{number}] as applied to its pods: {rule.message}"
            for rule in SPEC_RULES
            if rule not in found and not rule.holds(own)
        ]
    return [*broken, *different_in_gang(spec)]
