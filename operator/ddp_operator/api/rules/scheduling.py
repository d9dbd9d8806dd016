"""Rules on jobs in queues."""

from typing import Final

from ddp_operator.api.constants import KUEUE_GROUP, KUEUE_QUEUE, MULTIKUEUE
from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.spec import DDPJobSpec

_MAX_ROLES: Final = 8
"""Pod sets of a Workload (pkg/controller/jobs/pod of Kueue)."""
_MEMBERSHIP: Final = (KUEUE_QUEUE, KUEUE_GROUP)
"""Labels that put a pod into a queue and a group."""
_LABELS: Final = "self.template.metadata.labels"
_NEARNESS: Final = (
    "kueue.x-k8s.io/podset-required-topology",
    "kueue.x-k8s.io/podset-preferred-topology",
    "kueue.x-k8s.io/podset-unconstrained-topology",
)
"""Annotations for the topology of a pod; Kueue accepts one of them."""
_ANNOTATIONS: Final = "self.template.metadata.annotations"


def _says_where(spec: DDPJobSpec) -> bool:
    labels = (spec.template.get("metadata") or {}).get("labels") or {}
    return any(label in labels for label in _MEMBERSHIP)


def _says_how_near(spec: DDPJobSpec) -> bool:
    annotations = (spec.template.get("metadata") or {}).get("annotations") or {}
    return any(annotation in annotations for annotation in _NEARNESS)


_NO_KUEUE: Final = (
    "!has(self.scheduling) || !has(self.scheduling.queueName) || self.scheduling.gang == 'kai'"
)


SCHEDULING_RULES = (
    Rule(
        "spec.restart.replaceWhen: Kueue deletes a pod that replaces one which still ends; remove "
        "it, set it to Gone, or remove spec.scheduling.queueName",
        f"{_NO_KUEUE} || !has(self.restart.replaceWhen) || self.restart.replaceWhen == 'Gone'",
        lambda spec: not (spec.kueue_queue and spec.restart.replace_when == "Terminating"),
    ),
    Rule(
        "spec.sparesPriorityClassName: Kueue gives all pods of a job one priority; remove it, or "
        "spec.scheduling.queueName",
        f"{_NO_KUEUE} || !has(self.sparesPriorityClassName)",
        lambda spec: not (spec.kueue_queue and spec.spares_priority_class_name),
    ),
    Rule(
        f"spec.overrides: Kueue admits at most {_MAX_ROLES} kinds of pods; use fewer overrides",
        f"{_NO_KUEUE} || !has(self.overrides) || self.overrides.size() < {_MAX_ROLES}",
        lambda spec: not (spec.kueue_queue and len(spec.overrides or ()) >= _MAX_ROLES),
    ),
    Rule(
        "spec.template.metadata.labels: remove Kueue's queue-name and pod-group-name; "
        "spec.scheduling.queueName gives pods both",
        f"{_NO_KUEUE} || !has(self.template.metadata) || !has({_LABELS})"
        f" || !{list(_MEMBERSHIP)}.exists(label, label in {_LABELS})",
        lambda spec: not (spec.kueue_queue and _says_where(spec)),
    ),
    Rule(
        "spec.template.metadata.annotations: remove Kueue's podset-*-topology, or "
        "spec.scheduling.topology; both set how close to each other pods are placed",
        f"{_NO_KUEUE} || !has(self.scheduling.topology) || !has(self.template.metadata)"
        f" || !has({_ANNOTATIONS})"
        f" || !{list(_NEARNESS)}.exists(key, key in {_ANNOTATIONS})",
        lambda spec: (
            not (
                spec.kueue_queue
                and spec.scheduling
                and spec.scheduling.topology
                and _says_how_near(spec)
            )
        ),
    ),
    Rule(
        "spec.managedBy: MultiKueue runs only jobs in Kueue's queues; set "
        "spec.scheduling.queueName, or remove managedBy",
        f"!has(self.managedBy) || self.managedBy != '{MULTIKUEUE}' || !({_NO_KUEUE})",
        lambda spec: spec.managed_by != MULTIKUEUE or spec.kueue_queue is not None,
    ),
)
