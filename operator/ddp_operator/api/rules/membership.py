"""Rules on pods that take each other's places: spares and elastic jobs."""

from typing import Final

from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.api.rules.rule import Rule

_NONE: Final = "self.spares == 0"
_FIXED: Final = "!has(self.elastic)"
_MOST: Final = "(has(self.elastic.maxReplicas) ? self.elastic.maxReplicas : self.replicas)"
_SCHEDULING: Final = "self.scheduling"


MEMBERSHIP_RULES = (
    Rule(
        f"spec.spares: with replicas this is more than {MAX_REPLICAS} pods; ask for fewer",
        f"self.replicas + self.spares <= {MAX_REPLICAS}",
        lambda spec: spec.replicas + spec.spares <= MAX_REPLICAS,
    ),
    Rule(
        "spec.spares: any pod may take another one's place, so all must be alike; remove "
        "spec.overrides, or spares",
        f"{_NONE} || !has(self.overrides) || self.overrides.size() == 0",
        lambda spec: not (spec.spares and spec.overrides),
    ),
    Rule(
        "spec.spares: a gang scheduler may place a spare before a pod that trains; remove "
        "spec.scheduling.gang, or spares",
        f"{_NONE} || !has({_SCHEDULING}) || {_SCHEDULING}.gang == 'none'",
        lambda spec: not (spec.spares and spec.scheduling and spec.scheduling.gang != "none"),
    ),
    Rule(
        "spec.spares: with restart.scope Gang all pods restart, so spares are useless; set it to "
        "Pod for trainers that form their process group again, to InPlace for others, or remove "
        "spares",
        f"{_NONE} || self.restart.scope != 'Gang'",
        lambda spec: not (spec.spares and spec.restart.scope == "Gang"),
    ),
    Rule(
        "spec.elastic.minReplicas: more than spec.replicas; lower it, or raise replicas",
        f"{_FIXED} || !has(self.elastic.minReplicas) || self.elastic.minReplicas <= self.replicas",
        lambda spec: (
            spec.elastic is None
            or spec.elastic.min_replicas is None
            or spec.elastic.min_replicas <= spec.replicas
        ),
    ),
    Rule(
        "spec.elastic.maxReplicas: fewer than spec.replicas; raise it, or lower replicas",
        f"{_FIXED} || {_MOST} >= self.replicas",
        lambda spec: spec.elastic is None or spec.max_size >= spec.replicas,
    ),
    Rule(
        f"spec.elastic.maxReplicas: with spares this is more than {MAX_REPLICAS} pods; ask "
        "for fewer",
        f"{_FIXED} || {_MOST} + self.spares <= {MAX_REPLICAS}",
        lambda spec: spec.elastic is None or spec.max_size + spec.spares <= MAX_REPLICAS,
    ),
    Rule(
        "spec.elastic: pods move to other pods' places, so all must be alike; remove "
        "spec.overrides, or elastic",
        f"{_FIXED} || !has(self.overrides) || self.overrides.size() == 0",
        lambda spec: not (spec.elastic and spec.overrides),
    ),
    Rule(
        "spec.elastic: with restart.scope Gang all pods restart whenever one is lost; set it to "
        "Auto, or remove elastic",
        f"{_FIXED} || self.restart.scope != 'Gang'",
        lambda spec: not (spec.elastic and spec.restart.scope == "Gang"),
    ),
    Rule(
        "spec.sparesPriorityClassName: the job has no spares; set spec.spares, or remove it",
        f"!has(self.sparesPriorityClassName) || !({_NONE})",
        lambda spec: spec.spares_priority_class_name is None or spec.spares > 0,
    ),
)
