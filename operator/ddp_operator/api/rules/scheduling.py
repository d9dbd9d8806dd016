"""Rules on jobs in queues."""

from typing import Final

from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.spec import DDPJobSpec

_MEMBERSHIP: Final = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/pod-group-name")
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


def _replaces_pods(spec: DDPJobSpec) -> bool:
    rules = spec.restart.rules
    return spec.restart.scope in ("InPlace", "Pod") or any(
        rule.action == "RestartPod" for rule in rules
    )


_NO_KUEUE: Final = (
    "!has(self.scheduling) || !has(self.scheduling.queueName) || self.scheduling.gang == 'volcano'"
)


SCHEDULING_RULES = (
    Rule(
        "spec.scheduling.queueName: Kueue admits all pods together, and rejects a single new pod; "
        "remove the queue, or set spec.restart.scope to Auto or Gang and use no rule with "
        "RestartPod",
        f"{_NO_KUEUE} || self.restart.scope in ['Auto', 'Gang']"
        " && (!has(self.restart.rules) || self.restart.rules.all(r, r.action != 'RestartPod'))",
        lambda spec: not (spec.kueue_queue and _replaces_pods(spec)),
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
)
