"""Pod affinity, which lets Kubernetes' own scheduler place the pods of an attempt near each other.

https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/, "Inter-pod affinity": the
first pod matches its own affinity and goes to any node with the label; the others follow it. Nobody
checks first that the others fit there: that needs a scheduler that sees all of them, such as Kueue.
Gang schedulers ensure that a part of them keeps no node, but choose the first node no better.
"""

from typing import Any, Final

from ddp_operator.api.constants import LABEL_ATTEMPT, LABEL_JOB_NAME
from ddp_operator.api.spec.scheduling import Topology
from ddp_operator.job.pods.avoided_nodes import HOSTNAME
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_WEIGHT: Final = 100
"""The largest weight of a preference."""


def near_each_other(job: str, identity: Identity, asked: Topology, pod: Manifest) -> dict[str, Any]:
    """Return the pod with an affinity to the other pods of its attempt, added to its template's."""
    # Not pods of old attempts, which may still be ending elsewhere.
    siblings = {LABEL_JOB_NAME: job, LABEL_ATTEMPT: str(identity.attempt)}
    term: dict[str, Any] = {"labelSelector": {"matchLabels": siblings}, "topologyKey": asked.label}
    if asked.required:
        return _wanting(pod, "podAffinity", _REQUIRED, term)
    return _wanting(pod, "podAffinity", _PREFERRED, {"weight": _WEIGHT, "podAffinityTerm": term})


def apart_from_others(job: str, pod: Manifest) -> dict[str, Any]:
    """Return a spare with a preference for a node without other pods of its job, so that it is not
    lost together with the pod it replaces.
    """
    siblings = {LABEL_JOB_NAME: job}
    term = {"labelSelector": {"matchLabels": siblings}, "topologyKey": HOSTNAME}
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
