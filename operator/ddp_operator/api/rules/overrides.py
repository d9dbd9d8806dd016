"""Rules on the pods that overrides name."""

from collections.abc import Iterator

from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.rules.trainer import pod_spec
from ddp_operator.api.spec import DDPJobSpec, overrides

_SAME_IN_GANG = ("priorityClassName", "preemptionPolicy", "schedulerName")
"""What Kubernetes' scheduler requires of the pods of a PodGroup (`validatePodGroup` in
pkg/scheduler/schedule_one_podgroup.go of 1.37): otherwise it places none of them."""


def _first(pods: str) -> str:
    return f"int({pods}.split('-')[0])"


def _last(pods: str) -> str:
    return f"int({pods}.substring({pods}.indexOf('-') + 1))"  # for one index: the whole text


_BEGINS_IN = f"({_first('q')} <= {_first('r')} && {_first('r')} <= {_last('q')})"


def different_in_gang(spec: DDPJobSpec) -> Iterator[str]:
    """Yield a message for each field by which an override makes a native gang unschedulable.

    CEL does not see these fields of an override.
    """
    if spec.scheduling is None or spec.scheduling.gang != "native":
        return
    for number, override in enumerate(spec.overrides or ()):
        own = pod_spec(overrides.applied(spec, override))
        for name in _SAME_IN_GANG:
            if own.get(name) != pod_spec(spec).get(name):
                yield (
                    f"spec.overrides[{number}].template.spec.{name}: Kubernetes' scheduler places "
                    "a gang only if all its pods have the same; set it in spec.template"
                )


OVERRIDE_RULES = (
    Rule(
        "spec.overrides: indexes without pods; they go from 0 to spec.replicas - 1, "
        "and a range from its lower end to its higher one, such as 2-5",
        "!has(self.overrides) || self.overrides.all(o, o.indexes.all(r,"
        f" {_first('r')} <= {_last('r')} && {_last('r')} < self.replicas))",
        lambda spec: not overrides.unknown(spec),
        overrides.unknown,
    ),
    Rule(
        "spec.overrides: an index appears twice; name each pod in one override, once",
        "self.all(o, o.indexes.all(r,"
        f" {_first('r')} > {_last('r')} || o.indexes.exists_one(q, {_BEGINS_IN})"
        f" && self.exists_one(p, p.indexes.exists(q, {_BEGINS_IN}))))",
        lambda spec: not overrides.twice(spec),
        overrides.twice,
        on="overrides",
    ),
    Rule(
        "spec.overrides: an override changes nothing; set nprocPerNode, accelerator or "
        "template, or remove it",
        "self.all(o, has(o.nprocPerNode) || has(o.accelerator) || has(o.template))",
        lambda spec: (
            not any(
                one.nproc_per_node is None and one.accelerator is None and one.template is None
                for one in spec.overrides or ()
            )
        ),
        on="overrides",
    ),
)
