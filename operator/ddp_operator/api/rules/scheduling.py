"""What goes together with queues."""

from typing import Final

from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.spec import DDPJobSpec

_MEMBERSHIP: Final = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/pod-group-name")
"""Labels by which a pod says where it belongs."""
_LABELS: Final = "self.template.metadata.labels"


def _says_where(spec: DDPJobSpec) -> bool:
    labels = (spec.template.get("metadata") or {}).get("labels") or {}
    return any(label in labels for label in _MEMBERSHIP)


def _replaces_pods(spec: DDPJobSpec) -> bool:
    rules = spec.restart.rules
    return spec.restart.scope == "Pod" or any(rule.action == "RestartPod" for rule in rules)


def _kueue(spec: DDPJobSpec) -> bool:
    return bool(spec.scheduling and spec.scheduling.kueue_queue)


_NO_KUEUE: Final = (
    "!has(self.scheduling) || !has(self.scheduling.queueName) || self.scheduling.gang == 'volcano'"
)


SCHEDULING_RULES = (
    Rule(
        "spec.scheduling.queueName: Kueue admits pods all together and takes a single new one for "
        "one too many while the old one ends; leave the queue out, or set spec.restart.scope to "
        "Gang and let no rule RestartPod",
        f"{_NO_KUEUE} || self.restart.scope == 'Gang'"
        " && (!has(self.restart.rules) || self.restart.rules.all(r, r.action != 'RestartPod'))",
        lambda spec: not (_kueue(spec) and _replaces_pods(spec)),
    ),
    Rule(
        "spec.template.metadata.labels: leave out Kueue's queue-name and pod-group-name; "
        "spec.scheduling.queueName gives pods both",
        f"{_NO_KUEUE} || !has(self.template.metadata) || !has({_LABELS})"
        f" || !{list(_MEMBERSHIP)}.exists(label, label in {_LABELS})",
        lambda spec: not (_kueue(spec) and _says_where(spec)),
    ),
)
