"""The cluster's own scheduler, told to place the pods of an attempt near each other.

https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/, "Inter-pod affinity": a
pod that is itself one of those it wants to be near goes, as the first of them, to any node that has
the label, and the others follow it there. Nobody looks first whether there is room for them: that
takes somebody who sees all of them at once, such as Kueue. Volcano and the coscheduling plugin see
to it that a part of them keeps no node; where the first one goes they choose no better (Volcano's
own network topology knows tiers by the numbers that its administrator gave them, and no labels).
"""

from typing import Any, Final

from ddp_operator.api.constants import LABEL_ATTEMPT, LABEL_JOB_NAME
from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_WEIGHT: Final = 100
"""The most that one preference can weigh."""
_HOST: Final = "kubernetes.io/hostname"
"""The label by which Kubernetes tells nodes apart."""


def near_each_other(job: DDPJob, identity: Identity, pod: Manifest) -> dict[str, Any]:
    """Return the pod that wants to be where its attempt's others are, on top of what its template
    wants.
    """
    asked = job.spec.scheduling.topology if job.spec.scheduling else None
    if asked is None:
        return dict(pod)
    # Pods of old attempts may still be ending: a new one is not bound to where they were.
    siblings = {LABEL_JOB_NAME: job.name, LABEL_ATTEMPT: str(identity.attempt)}
    term: dict[str, Any] = {"labelSelector": {"matchLabels": siblings}, "topologyKey": asked.label}
    kind, wanted = _REQUIRED, term
    if not asked.required:
        kind, wanted = _PREFERRED, {"weight": _WEIGHT, "podAffinityTerm": term}
    return _wanting(pod, "podAffinity", kind, wanted)


def apart_from_others(job: DDPJob, pod: Manifest) -> dict[str, Any]:
    """Return the pod that rather goes where no other pod of its job is: one that is to take a lost
    one's place had better not go with the same node.
    """
    siblings = {LABEL_JOB_NAME: job.name}
    term = {"labelSelector": {"matchLabels": siblings}, "topologyKey": _HOST}
    wanted = {"weight": _WEIGHT, "podAffinityTerm": term}
    return _wanting(pod, "podAntiAffinity", _PREFERRED, wanted)


def _wanting(pod: Manifest, what: str, kind: str, wanted: Any) -> dict[str, Any]:
    affinity = pod["spec"].get("affinity") or {}
    to_pods = affinity.get(what) or {}
    terms = to_pods.get(kind) or []
    if wanted not in terms:
        terms = [*terms, wanted]
    affinity = {**affinity, what: {**to_pods, kind: terms}}
    return {**pod, "spec": {**pod["spec"], "affinity": affinity}}
