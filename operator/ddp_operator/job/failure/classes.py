"""Whose fault a failure was: only what the training did itself is charged to the job."""

from typing import Final

import re2

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
from ddp_operator.job.pods.state import CONTAINER_LOST, PodState

_START_FAILED: Final = frozenset({"StartError", "ContainerCannotRun", "RunContainerError"})
"""Kubelet's reasons for a container that was made but could not be started: its runtime's fault or
its command's."""

_NODE_REASONS: Final = frozenset(
    {"UnexpectedAdmissionError", "TopologyAffinityError", "SMTAlignmentError", "InvalidNodeInfo",
     "UnexpectedPredicateFailureType"}
)  # fmt: skip
"""Kubelet's reasons for pods that it refuses since a device plugin fails on its node, since what is
free there lies too far apart for its topology policy (of which no scheduler knows), or since it
does not know its own node."""

_PASSING: Final = re2.compile(
    r"(?i)(?:^|[\s(])(?:5\d\d|429|408)\b"  # as HTTP says it; in an image's name it follows : or /
    r"|tim(?:e|ed)[ -]?out|deadline exceeded|request canceled|QPS exceeded|rate limit"
    r"|too ?many ?requests|service unavailable|bad gateway|internal server error"
    r"|connection (?:refused|reset)|no route to host|(?:network|host) is (?:unreachable|down)"
    r"|broken pipe|\bEOF\b|server misbehaving|temporary failure|certificate has expired"
)
"""What registries, and the network on the way to them, say of themselves and not of an image."""
_BARE: Final = re2.compile(r'Back-off pulling image "[^"]*"')
"""All that kubelets before 1.32 say between two tries."""

_NEVER_RAN: Final = _START_FAILED | {CONTAINER_LOST}
"""Reasons of ends that do not say that a process ran: the kubelet also calls a container lost whose
image it was still pulling when the pod was deleted."""

_CERTAIN: Final = frozenset({"OOMKilled", "DeadlineExceeded"})
"""Kubelet's reasons for ends that no other rank brings about."""


def of_pod(pod: PodState, *, has_run: bool = False) -> FailureClass:
    """Class of a pod that failed, was taken away, or cannot start; `has_run`: others like it did.

    A spec that has run is no wrong configuration, nor is any whose registry cannot answer now.
    """
    if pod.disrupted:
        return "Disruption"
    if is_hopeless(pod, has_run=has_run):
        return "Configuration"
    if pod.exit is None and pod.waiting:
        if pod.waiting in _START_FAILED:
            return "Infrastructure"
        return "Disruption" if has_run or is_passing(pod) else "Configuration"
    return "Infrastructure" if _is_of_node(pod) else "Application"


def has_run(job: DDPJob) -> bool:
    """Whether pods of this very spec have started before."""
    return job.status.bookkeeping.ran_spec_hash == job.spec_hash


def is_hopeless(pod: PodState, *, has_run: bool = False) -> bool:
    """Whether starting it again cannot help: its trainer says so, or it cannot ever start."""
    ended = pod.exit
    if ended is None:
        return pod.waiting == "InvalidImageName" and not has_run
    return ended.code == EXIT_CONFIGURATION or (lacks_command(pod) and not has_run)


def is_passing(pod: PodState) -> bool:
    """Whether it waits for a registry, or a network, that cannot answer now, or for a Secret that
    the operator itself creates.
    """
    if pod.waiting == "RegistryUnavailable" or lacks_token(pod):
        return True
    return bool(_PASSING.search(pod.waiting_message))


def tells_nothing(pod: PodState) -> bool:
    """Whether the kubelet only says that it will try again."""
    return bool(_BARE.fullmatch(pod.waiting_message))


def has_begun(pod: PodState) -> bool:
    """Whether its trainer runs, or has run."""
    ended = pod.exit
    return pod.started is not None or (ended is not None and ended.reason not in _NEVER_RAN)


def lacks_command(pod: PodState) -> bool:
    """Whether it could not be started because its image does not have the command."""
    ended = pod.exit
    return (
        ended is not None
        and ended.reason in _START_FAILED
        and symptoms.is_of_command(ended.message)
    )


def is_secondary(pod: PodState) -> bool:
    """Whether it failed because of another rank's failure."""
    ended = pod.exit
    if ended is None or pod.reason:  # the latter: kubelet ended it, and says why
        return False
    if ended.code in (EXIT_PEER_LOST, EXIT_SIGTERM):
        return True
    if ended.reason in _CERTAIN or ended.code == EXIT_SIGKILL or _is_of_node(pod):
        return False
    said = symptoms.last_words(ended.message)
    return not said.judged and symptoms.is_of_another_rank(said.text)


def is_consequence(failure: Failure) -> bool:
    """Whether what is on record can only be another rank's failure seen from here."""
    if failure.class_ != "Application" or failure.reason in _CERTAIN:
        return False
    if failure.exit_code in (EXIT_PEER_LOST, EXIT_SIGTERM):
        return True
    return failure.exit_code != EXIT_SIGKILL and symptoms.is_of_another_rank(failure.message)


def _is_of_node(pod: PodState) -> bool:
    ended = pod.exit
    if ended is None:
        return pod.reason in _NODE_REASONS
    if ended.reason == "OOMKilled":
        # Below no limit of its own it can only have been the node's memory that ran out.
        return not pod.memory_limited
    said = symptoms.last_words(ended.message)
    return ended.reason in _START_FAILED or symptoms.is_of_node(said.text)
