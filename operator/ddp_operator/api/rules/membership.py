"""What goes together with pods that take each other's places."""

from typing import Final

from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.spec import DDPJobSpec

_NONE: Final = "self.spares == 0"
_SCHEDULING: Final = "self.scheduling"


def _counts_pods(spec: DDPJobSpec) -> bool:
    asked = spec.scheduling
    return bool(asked and (asked.gang != "none" or asked.queue_name is not None))


MEMBERSHIP_RULES = (
    Rule(
        f"spec.spares: with the replicas they are more than {MAX_REPLICAS} pods; ask for fewer",
        f"self.replicas + self.spares <= {MAX_REPLICAS}",
        lambda spec: spec.replicas + spec.spares <= MAX_REPLICAS,
    ),
    Rule(
        "spec.spares: any pod may take another one's place, so that all are alike; leave "
        "spec.overrides out, or spares",
        f"{_NONE} || !has(self.overrides) || self.overrides.size() == 0",
        lambda spec: not (spec.spares and spec.overrides),
    ),
    Rule(
        "spec.spares: queues and gangs count a fixed number of pods; leave "
        "spec.scheduling.queueName and gang out, or spares",
        f"{_NONE} || !has({_SCHEDULING})"
        f" || !has({_SCHEDULING}.queueName) && {_SCHEDULING}.gang == 'none'",
        lambda spec: not (spec.spares and _counts_pods(spec)),
    ),
    Rule(
        "spec.spares: restart.scope Gang starts all pods anew and leaves spares nothing to do; set "
        "it to Pod for trainers that form their group anew, to InPlace for others, or leave spares "
        "out",
        f"{_NONE} || self.restart.scope != 'Gang'",
        lambda spec: not (spec.spares and spec.restart.scope == "Gang"),
    ),
    Rule(
        "spec.sparesPriorityClassName: there are no spares that could have it; set spec.spares, or "
        "leave it out",
        f"!has(self.sparesPriorityClassName) || !({_NONE})",
        lambda spec: spec.spares_priority_class_name is None or spec.spares > 0,
    ),
)
