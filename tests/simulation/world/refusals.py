"""Refusals and delays of requests to the API server: one mechanism for all of them.

The words are those of the API server and its admission (k8s.io/apiserver, plugin/pkg/admission), of
aiohttp where the operator's own machine fails.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from ddp_operator.ports import ClusterError, ConflictError, ForbiddenError, InvalidError
from ddp_operator.ports import UnavailableError as Unavailable

LATENCY_SECONDS: Final = 0.01
"""One way of a request."""

CREATIONS: Final = (
    *("create_pod", "create_service", "create_secret"),
    *("apply PodGroup", "apply NetworkPolicy"),
)
WRITES: Final = (
    *CREATIONS,
    *("delete_pod", "delete_pods"),
    "patch_pod",
    "delete NetworkPolicy",
    "patch_status",
    "delete_job",
)

Error = Callable[[str], ClusterError]
"""Returns the answer to a request about an object of this name."""


@dataclass
class Refusal:
    """Some kinds of requests fail, or take long: until a time, or so many times."""

    error: Error | None
    requests: Collection[str] = WRITES
    until: float = math.inf
    skip: int = 0
    """Requests that are let through first."""
    times: float = math.inf
    seconds: float = LATENCY_SECONDS
    """Until the answer comes, or nobody waits for it any longer."""
    done: bool = False
    """The effect takes place all the same."""
    applies: Callable[[], bool] = lambda: True


@dataclass
class Refusals:
    """All refusals at present, and the last answer."""

    active: list[Refusal] = field(default_factory=list)
    last_message: str = ""

    def add(self, refusal: Refusal) -> None:
        """Let it hold from now on."""
        self.active.append(refusal)

    def clear(self) -> None:
        """Let everything go well from now on."""
        self.active.clear()
        self.last_message = ""

    def refused(self, error: ClusterError) -> ClusterError:
        """Take note of an answer that is about to be given."""
        self.last_message = error.message
        return error

    def meet(self, request: str, now: float) -> Refusal | None:
        """The refusal that a request meets; None: it is let through."""
        self.active = [one for one in self.active if now < one.until and one.times > 0]
        for one in self.active:
            if request not in one.requests or not one.applies():
                continue
            if one.skip > 0:
                one.skip -= 1
                continue
            one.times -= 1
            return one
        return None


def network(text: str) -> Error:
    """The request does not come through, or its answer does not."""
    return lambda _: Unavailable(text)


def conflict(name: str) -> ClusterError:
    """Quota is counted with optimistic locks; the API server passes the lost race on."""
    del name
    text = (
        'Operation cannot be fulfilled on resourcequotas "compute": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    return ConflictError(text, status=409)


def too_many(name: str) -> ClusterError:
    """API priority and fairness."""
    del name
    text = "too many requests, please try again later"
    return Unavailable(text, status=429, retry_after_seconds=7)


def over_time(name: str) -> ClusterError:
    """The API server gives a request up, as when a webhook takes its time."""
    del name
    text = "Timeout: request did not complete within requested timeout - context deadline exceeded"
    return Unavailable(text, status=504)


def webhook_down(name: str) -> ClusterError:
    """A webhook of failurePolicy Fail that nobody serves."""
    del name
    text = (
        'Internal error occurred: failed calling webhook "policy.example.com": failed to call '
        'webhook: Post "https://policy.example.svc:443/pods?timeout=10s": dial tcp 10.96.0.7:443: '
        "connect: connection refused"
    )
    return Unavailable(text, status=500)


def webhook_denies(status: int) -> Error:
    """A webhook or an admission policy that says no, with the code that it likes."""
    kind = ForbiddenError if status == 403 else InvalidError
    text = 'admission webhook "policy.example.com" denied the request: no owner label'
    return lambda _: kind(text, status=status)


def forbidden(why: str) -> Error:
    """Admission plugins of the API server itself."""
    return lambda name: ForbiddenError(f'pods "{name}" is forbidden: {why}', status=403)


def over_quota(limit: int) -> Error:
    """Of `ResourceQuota`."""
    counts = f"used: pods={limit}, limited: pods={limit}"
    return forbidden(f"exceeded quota: compute, requested: pods=1, {counts}")


over_limit_range = forbidden("maximum memory usage per Container is 512Mi, but limit is 1Gi")
"""Of `LimitRanger`."""

going_away = forbidden(
    "unable to create new content in namespace research because it is being terminated"
)
"""Of `NamespaceLifecycle`."""

out_of_descriptors = network(
    "Cannot connect to host 10.96.0.1:443 ssl:default [Too many open files]"
)
