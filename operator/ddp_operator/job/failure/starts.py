"""Pods without any started process, and the class of that failure."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from ddp_protocol.error_texts import PULLS

from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec import FailureClass
from ddp_operator.api.spec.overrides import kinds, spec_of
from ddp_operator.api.status import Failure
from ddp_operator.job.failure import classes, records
from ddp_operator.job.membership.launchers import PODS_UNREACHABLE
from ddp_operator.job.pods.observed import Gap, Observed
from ddp_operator.job.pods.state import START_TIMEOUT, PodState


def seen(job: DDPJob, pods: Observed) -> str:
    """Return the spec's hash if a pod of each kind has run, else the recorded hash."""
    began = {
        pod.identity.index
        # Old pods count too: a restart may come before the first observation.
        for pod in (*pods.current.values(), *pods.spares, *pods.old)
        if classes.has_begun(pod) and pod.spec_hash == job.spec_hash
    }
    ran = began and (
        not job.spec.overrides
        or all(any(i in some for i in began for some in where) for _, where in kinds(job.spec))
    )
    return job.spec_hash if ran else job.status.bookkeeping.ran_spec_hash


def of_gap(job: DDPJob, pods: Observed, late: Sequence[Gap], now: datetime) -> Failure:
    """Record why the pod in the first of these overdue gaps does not train."""
    gap = late[0]
    pod, *others = (pods.current[each.node_rank] for each in late if each.reason == gap.reason)
    if gap.reason == "CannotStart":
        failure = records.of_pod(job, pod, now)
        return failure.updated(class_=_class_by_nodes(job, failure, others))
    seconds = int((now - gap.since).total_seconds())
    class_: FailureClass = "Infrastructure"
    if gap.reason == "NotStarted":
        reason, class_ = START_TIMEOUT, _class_of_late(job, pod, others)
        message = f"no process started within {seconds} s (spec.startTimeoutSeconds): "
        message += _lacking(job, pod)
    elif pod.silent:
        reason, class_ = "NodeLost", "Disruption"
        message = f"node {pod.node} has not answered for {seconds} s"
    else:
        reason = records.LAUNCHER_UNREACHABLE
        message = (
            f"its launcher did not join the group's present generation within {seconds} s; the "
            f"operator must reach port {job.spec.status_port} of the job's pods"
        )
    return records.of_lost(job, pod, reason, message, class_, now)


def of_unreached(job: DDPJob, pod: PodState, gap: Gap, now: datetime) -> Failure:
    """Record that no launcher of the group was reached, which is not this pod's fault."""
    seconds = int((now - gap.since).total_seconds())
    message = (
        f"no launcher answered within {seconds} s: let the operator reach port "
        f"{job.spec.status_port} of the pods, or set launcher: inject"
    )
    failure = records.of_lost(job, pod, PODS_UNREACHABLE, message, "Disruption", now)
    return failure.updated(node="")


def _class_by_nodes(job: DDPJob, failure: Failure, others: Iterable[PodState]) -> FailureClass:
    """Return the class of a pod that cannot start: if a second node says the same of a new spec,
    the spec is at fault, not the node. `others`: pods that are late, too.
    """
    if failure.class_ != "Infrastructure" or classes.has_run(job):
        return failure.class_
    said = [(pod.node, pod.waiting, classes.of_pod(pod)) for pod in others]
    said += [(known.node, known.reason, known.class_) for known in job.status.failures]
    alike = PULLS if failure.reason in PULLS else {failure.reason}
    # Once two nodes have said so, later ones are on record as what it is.
    of_class = {failure.class_, "Configuration"}
    nodes = {node for node, reason, class_ in said if reason in alike and class_ in of_class}
    return "Configuration" if nodes - {failure.node} else failure.class_


def _class_of_late(job: DDPJob, pod: PodState, others: Iterable[PodState]) -> FailureClass:
    """Return the class: a second node that cannot mount a new spec's volumes is no accident."""
    if classes.has_run(job) or pod.disruption:  # it is to go, so nobody starts it any more
        return "Disruption"
    before = {known.node for known in job.status.failures if known.reason == START_TIMEOUT}
    again = before and before.union(one.node for one in others) - {pod.node}
    wants = pod.stage == "sandbox" and any(_wanted(job, pod))
    return "Configuration" if again and wants else "Infrastructure"


def _lacking(job: DDPJob, pod: PodState) -> str:
    if pod.stage == "image":
        return "its image is not pulled yet"
    wanted = ", ".join(list(_wanted(job, pod))[:3])
    exist = f"; check that these exist: {wanted}" if wanted else ""
    return f"its volumes or its network are not ready{exist} (see kubectl describe pod)"


def _wanted(job: DDPJob, pod: PodState) -> Iterator[str]:
    """Yield the objects that a pod's volumes require."""
    template = spec_of(job.spec, pod.identity.index).template.get("spec") or {}
    for volume in template.get("volumes") or ():
        sources: list[dict[str, Any]] = [volume]
        sources += (volume.get("projected") or {}).get("sources") or ()
        for source in sources:
            for kind, field in _OBJECTS.items():
                found = source.get(kind) or {}
                name = found.get(field) or found.get("name")
                if name and not found.get("optional"):
                    yield f"{kind} {name}"


_OBJECTS: Final = {
    "secret": "secretName",
    "configMap": "name",
    "persistentVolumeClaim": "claimName",
}
