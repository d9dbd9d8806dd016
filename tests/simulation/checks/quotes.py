"""Words of API servers, kubelets and trainers that the operator may quote."""

from typing import Final

from tests.message_style import without_testimony

_OPENINGS: Final = (
    "Operation cannot be fulfilled",
    "too many requests",
    "Timeout: request did not",
    "Internal error occurred",
    'admission webhook "',
    'pods "',
    "Cannot connect to host",
    "failed to pull and unpack",
    "Back-off pulling image",
    "Failed to apply default image tag",
    'secret "',
    "failed to create containerd",
    "The node was low on",
    "Pod was terminated in response",
    "Pod was rejected",
    "Usage of EmptyDir",
    "Container trainer exceeded",
    "Pod ephemeral local storage",
    "Preempted by pod",
    "Eviction API: evicting",
    "Taint manager: deleting",
    "PodGC: node no longer",
    "The container could not be located",
    "timeout",
)


def own_text(message: str) -> str:
    """Return the operator's own words, up to the first quoted ones."""
    own = without_testimony(message)
    cuts = [at for opening in _OPENINGS if (at := own.find(opening)) >= 0]
    return own[: min(cuts, default=len(own))].rstrip(": ")
