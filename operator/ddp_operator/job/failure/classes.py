"""Failure classes: only failures of the training itself are charged to the job."""

from typing import Final

import re2
from ddp_protocol.error_texts import PULLS, Class, any_of

from ddp_operator.api.constants import (
    EXIT_CONFIGURATION,
    EXIT_PEER_LOST,
    EXIT_SIGKILL,
    EXIT_SIGTERM,
)
from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec import FailureClass
from ddp_operator.api.status import Failure
from ddp_operator.job.failure import symptoms
from ddp_operator.job.pods.access import lacks_token
from ddp_operator.job.pods.state import CONFIG_ERROR, CONTAINER_LOST, PodState

_START_FAILED: Final = frozenset({"StartError", "ContainerCannotRun", "RunContainerError"})
"""Kubelet's reasons for a container that was created but not started: the runtime or the command is
at fault."""

NODE_REASONS: Final = frozenset(
    {"UnexpectedAdmissionError", "TopologyAffinityError", "SMTAlignmentError", "InvalidNodeInfo",
     "UnexpectedPredicateFailureType"}
)  # fmt: skip
"""Kubelet's reasons for refusing a pod because of the node: a device plugin fails, free devices do
not fit the topology policy (which no scheduler knows), or the node's own data is missing."""

_NO_IMAGE: Final = re2.compile(any_of(Class.NO_IMAGE))
"""A registry's answers that it has no such image, or not for this job. Any other error of a pull
may be the registry's, the network's or the node's, and pass."""
_NO_OBJECT: Final = re2.compile(any_of(Class.NO_OBJECT))
"""The kubelet's words for a Secret or ConfigMap that the API server does not have."""

_NEVER_RAN: Final = _START_FAILED | {CONTAINER_LOST}
"""Reasons after which a process need not have run. The kubelet also reports a container as lost if
it was still pulling the image when the pod was deleted."""

_CERTAIN: Final = frozenset({"OOMKilled", "DeadlineExceeded"})
"""Kubelet's reasons for exits that no other rank can cause."""

_HIGHEST_EXIT_CODE: Final = 128
"""Shells and container runtimes report signal n as 128 + n."""


def of_pod(pod: PodState, *, has_run: bool = False) -> FailureClass:
    """Return the class of a pod that failed, was disrupted, or cannot start.

    `has_run`: pods of this spec have run, so it is no wrong configuration. Whether a new one is
    wrong, a pod that cannot start shows only with a second node (`starts.of_gap`).
    """
    if pod.disrupted:
        return "Disruption"
    if is_hopeless(pod, has_run=has_run):
        return "Configuration"
    if pod.exit is None and pod.waiting:
        return _of_start(pod, has_run=has_run)
    return "Infrastructure" if has_bad_node(pod) or _is_of_service(pod) else "Application"


def _of_start(pod: PodState, *, has_run: bool) -> FailureClass:
    """Return the class of a pod that cannot start, as far as its own kubelet can know."""
    if pod.waiting in _START_FAILED:
        return "Infrastructure"
    if has_run or lacks_token(pod):
        return "Disruption"
    if pod.waiting == CONFIG_ERROR and _NO_OBJECT.search(pod.waiting_message):
        return "Configuration"
    if pod.waiting in PULLS and not _NO_IMAGE.search(pod.waiting_message):
        return "Disruption"
    return "Infrastructure"


def has_run(job: DDPJob) -> bool:
    """Return whether pods of this exact spec have started before."""
    return job.status.bookkeeping.ran_spec_hash == job.spec_hash


def is_hopeless(pod: PodState, *, has_run: bool = False) -> bool:
    """Return whether a restart cannot help: the trainer says so, or the pod can never start."""
    ended = pod.exit
    if ended is None:
        return pod.waiting == "InvalidImageName" and not has_run
    return ended.code == EXIT_CONFIGURATION or (lacks_command(pod) and not has_run)


def has_begun(pod: PodState) -> bool:
    """Return whether the pod's trainer runs or has run."""
    ended = pod.exit
    return pod.started is not None or (ended is not None and ended.reason not in _NEVER_RAN)


def was_made(failure: Failure) -> bool:
    """Return whether a failed container was created, but could not start."""
    return failure.reason in _START_FAILED


def lacks_command(pod: PodState) -> bool:
    """Return whether the pod's image lacks the command."""
    failed = pod.exit if pod.exit and pod.exit.reason in _START_FAILED else None
    return failed is not None and symptoms.is_of_command(failed.message)


def is_secondary(pod: PodState) -> bool:
    """Return whether another rank's failure caused the pod's."""
    ended = pod.exit
    if ended is None or pod.reason:  # with a reason, the kubelet ended it
        return False
    if ended.code in (EXIT_PEER_LOST, EXIT_SIGTERM):
        return True
    if ended.reason in _CERTAIN or ended.code == EXIT_SIGKILL or has_bad_node(pod):
        return False
    said = symptoms.last_words(ended.message)
    return not said.judged and symptoms.is_of_another_rank(said.text)


def is_consequence(failure: Failure) -> bool:
    """Return whether a recorded failure can only be a consequence of another rank's."""
    if failure.class_ != "Application" or failure.reason in _CERTAIN:
        return False
    if failure.exit_code in (EXIT_PEER_LOST, EXIT_SIGTERM):
        return True
    return failure.exit_code != EXIT_SIGKILL and symptoms.is_of_another_rank(failure.message)


def is_of_node(failure: Failure) -> bool:
    """Return whether a recorded failure is the node's, not one of a server outside of the job."""
    return failure.class_ == "Infrastructure" and not symptoms.is_of_service(failure.message)


def has_bad_node(pod: PodState) -> bool:
    """Return whether a pod failed because of its node."""
    ended = pod.exit
    if ended is None:
        return pod.reason in NODE_REASONS
    if ended.reason == "OOMKilled":
        # Without a limit of its own, the node ran out of memory.
        return not pod.memory_limited
    said = symptoms.last_words(ended.message)
    return ended.reason in _START_FAILED or symptoms.is_of_node(said.text)


def _is_of_service(pod: PodState) -> bool:
    """Return whether a pod's program ended by itself because of a server outside of the job."""
    ended = pod.exit
    if ended is None or pod.reason or ended.reason in _CERTAIN or ended.code > _HIGHEST_EXIT_CODE:
        return False
    return symptoms.is_of_service(symptoms.last_words(ended.message).text)
