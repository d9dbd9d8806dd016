"""Failure classes: only failures of the training itself are charged to the job."""

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
"""Kubelet's reasons for a container that was created but not started: the runtime or the command is
at fault."""

_NODE_REASONS: Final = frozenset(
    {"UnexpectedAdmissionError", "TopologyAffinityError", "SMTAlignmentError", "InvalidNodeInfo",
     "UnexpectedPredicateFailureType"}
)  # fmt: skip
"""Kubelet's reasons for refusing a pod because of the node: a device plugin fails, free devices do
not fit the topology policy (which no scheduler knows), or the node's own data is missing."""

_PASSING: Final = re2.compile(
    r"(?i)(?:^|[\s(])(?:5\d\d|429|408)\b"  # as HTTP says it; in an image's name it follows : or /
    r"|tim(?:e|ed)[ -]?out|deadline exceeded|request canceled|QPS exceeded|rate limit"
    r"|too ?many ?requests|service unavailable|bad gateway|internal server error"
    r"|connection (?:refused|reset)|no route to host|(?:network|host) is (?:unreachable|down)"
    r"|broken pipe|\bEOF\b|server misbehaving|temporary failure|certificate has expired"
)
"""Errors of registries, and of the network to them, rather than of an image."""
_BARE: Final = re2.compile(r'Back-off pulling image "[^"]*"')
"""All that kubelets before 1.32 say between two pulls."""

_NEVER_RAN: Final = _START_FAILED | {CONTAINER_LOST}
"""Reasons after which a process need not have run. The kubelet also reports a container as lost if
it was still pulling the image when the pod was deleted."""

_CERTAIN: Final = frozenset({"OOMKilled", "DeadlineExceeded"})
"""Kubelet's reasons for exits that no other rank can cause."""


def of_pod(pod: PodState, *, has_run: bool = False) -> FailureClass:
    """Return the class of a pod that failed, was disrupted, or cannot start.

    `has_run`: pods of this spec have run, so it is no wrong configuration. Nor is any spec while
    its registry cannot answer.
    """
    if pod.disrupted:
        return "Disruption"
    if is_hopeless(pod, has_run=has_run):
        return "Configuration"
    if pod.exit is None and pod.waiting:
        if pod.waiting in _START_FAILED:
            return "Infrastructure"
        # It waits for a registry or network, or for a Secret of the operator.
        waits = pod.waiting == "RegistryUnavailable" or lacks_token(pod)
        passing = has_run or waits or _PASSING.search(pod.waiting_message)
        return "Disruption" if passing else "Configuration"
    return "Infrastructure" if _is_of_node(pod) else "Application"


def has_run(job: DDPJob) -> bool:
    """Return whether pods of this exact spec have started before."""
    return job.status.bookkeeping.ran_spec_hash == job.spec_hash


def is_hopeless(pod: PodState, *, has_run: bool = False) -> bool:
    """Return whether a restart cannot help: the trainer says so, or the pod can never start."""
    ended = pod.exit
    if ended is None:
        return pod.waiting == "InvalidImageName" and not has_run
    return ended.code == EXIT_CONFIGURATION or (lacks_command(pod) and not has_run)


def tells_nothing(pod: PodState) -> bool:
    """Return whether the kubelet only says that it retries."""
    return bool(_BARE.fullmatch(pod.waiting_message))


def has_begun(pod: PodState) -> bool:
    """Return whether the pod's trainer runs or has run."""
    ended = pod.exit
    return pod.started is not None or (ended is not None and ended.reason not in _NEVER_RAN)


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
    if ended.reason in _CERTAIN or ended.code == EXIT_SIGKILL or _is_of_node(pod):
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


def _is_of_node(pod: PodState) -> bool:
    ended = pod.exit
    if ended is None:
        return pod.reason in _NODE_REASONS
    if ended.reason == "OOMKilled":
        # Without a limit of its own, the node ran out of memory.
        return not pod.memory_limited
    said = symptoms.last_words(ended.message)
    return ended.reason in _START_FAILED or symptoms.is_of_node(said.text)
