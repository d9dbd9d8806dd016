"""Read from an API server's pod what decisions need."""

from datetime import datetime, timedelta
from functools import lru_cache
from sys import intern
from typing import Final

from ddp_operator.api import constants
from ddp_operator.api.rules import trainer_container
from ddp_operator.api.values.bounded import read_time
from ddp_operator.job.pods.address import is_the_nodes, trainer_address
from ddp_operator.job.pods.avoided_nodes import host_of, kept_off
from ddp_operator.job.pods.containers import (
    crash_loop,
    decisive_state,
    exit_of,
    is_ready,
    is_true,
    running_on,
    side_car_failure,
    start_stage,
    text_of,
    waiting_reason,
    word_of,
)
from ddp_operator.job.pods.state import (
    ContainerExit,
    Identity,
    PodState,
    QueueMember,
)
from ddp_operator.ports import Key, MalformedError, Manifest, controller_of

_MAX_DIGITS: Final = 9
_NOWHERE: Final = Identity(index=-1, attempt=-1)
"""Identity of a pod that a job controls but that has no valid name or labels."""

_DISRUPTIONS: Final = ("DisruptionTarget", "TerminationTarget", "TerminatedByKueue")
"""Conditions of pods that lose their places: Kubernetes' own, Kueue's before it deletes a pod, and
Kueue's after it ended one that waited for a failed node."""
_DELETION_CODES: Final = (137, 143)
"""Exit codes after SIGKILL or SIGTERM."""
_UNREACHABLE: Final = "node.kubernetes.io/unreachable"
_member: Final = lru_cache(maxsize=4096)(QueueMember)
"""All pods of a group share one object."""
_MAX_GRACE_SECONDS: Final = 10 * 365 * 24 * 3600
"""Longer than any cluster lives, and safe to add to any time."""


def project(manifest: Manifest) -> PodState:
    """Read a pod. Invalid labels and annotations do not hide a pod that a job controls.

    Raises:
        MalformedError: nothing controls the pod, and it is not identified as a job's.
    """
    metadata: Manifest = manifest["metadata"]
    labels: Manifest = metadata["labels"]
    spec: Manifest = manifest["spec"]
    status: Manifest = manifest.get("status") or {}
    annotations: Manifest = metadata.get("annotations") or {}
    owner = controller_of(manifest)
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    name = word_of(
        annotations.get(constants.ANNOTATION_TRAINER) or trainer_container(manifest).get("name")
    )
    container, state = decisive_state(name, status)
    ended = exit_of(state.get("terminated"))
    ends_by = read_time(metadata.get("deletionTimestamp"))
    deleted_at = _deleted_at(ends_by, metadata.get("deletionGracePeriodSeconds"), ended)
    waiting, waiting_message = waiting_reason(state.get("waiting"), conditions)
    ready = is_ready(spec, status, conditions, name)
    if not (waiting or ready):
        waiting, waiting_message = crash_loop(status)
    announced = (conditions.get(type_, {}) for type_ in _DISRUPTIONS)
    disruption: Manifest = next(filter(is_true, announced), {})
    queue = _queue_member(metadata, labels, annotations)
    scheduled: Manifest = conditions.get("PodScheduled") or {}
    return PodState(
        key=Key.of(manifest),
        # Interned, since thousands of pods share a few of these words.
        owner_uid=intern(owner.get("uid") or ""),
        identity=_identity(manifest, is_controlled=bool(owner)),
        spec_hash=intern(word_of(annotations.get(constants.ANNOTATION_SPEC_HASH))),
        token_key=intern(word_of(labels.get(constants.LABEL_TOKEN_KEY))),
        generation=_number(annotations.get(constants.ANNOTATION_GENERATION)) or 0,
        phase=intern(status.get("phase") or "Pending"),
        ready=ready,
        deleting=ends_by is not None,
        serving=labels.get(constants.LABEL_SERVING) == "true",
        grace_seconds=_grace_seconds(spec.get("terminationGracePeriodSeconds"), 30),
        node=intern(spec.get("nodeName") or ""),
        ends_by=ends_by,
        address=trainer_address(name, spec, status),
        has_nodes_ip=is_the_nodes(spec, status),
        ended_by_deletion=_ended_by_deletion(deleted_at, ended, status),
        disrupted_at=_earliest(deleted_at, read_time(disruption.get("lastTransitionTime"))),
        container=intern(container),
        memory_limited=_has_memory_limit(spec, container),
        started=read_time((state.get("running") or {}).get("startedAt")),
        exit=ended,
        reason=word_of(status.get("reason")),
        message=text_of(status.get("message") or disruption.get("message")),
        disruption=word_of(disruption.get("reason")),
        waiting=word_of(waiting),
        waiting_message=text_of(waiting_message),
        stage=start_stage(spec, status, conditions, state),
        avoids=() if spec.get("nodeName") else kept_off(spec),
        host="" if spec.get("nodeName") else intern(host_of(spec)),
        stays_on_lost_node=any(map(_outlasts_node, spec.get("tolerations") or ())),
        queue=queue,
        placed=read_time(scheduled.get("lastTransitionTime"))
        if queue and spec.get("nodeName")
        else None,
        held_by=running_on(status) if ended else "",
        side_car_failure="" if ends_by else side_car_failure(name, status),
    )


def _queue_member(
    metadata: Manifest, labels: Manifest, annotations: Manifest
) -> QueueMember | None:
    if labels.get(constants.KUEUE_MANAGED) != "true":
        return None
    return _member(
        labels.get(constants.KUEUE_GROUP) or "",
        annotations.get(constants.KUEUE_RETRIABLE) == "false",
        constants.KUEUE_MANAGED in (metadata.get("finalizers") or ()),
    )


def job_of(manifest: Manifest) -> Key | None:
    """Return the job that controls a pod, else the one of its label; None if there is none."""
    metadata = manifest["metadata"]
    owner = controller_of(manifest)
    label = (metadata.get("labels") or {}).get(constants.LABEL_JOB_NAME)
    name = owner["name"] if owner.get("kind") == constants.KIND else label
    return Key(metadata["namespace"], name) if name else None


def _identity(manifest: Manifest, *, is_controlled: bool) -> Identity:
    """Return which pod of the job it is: by its name, which cannot change, else by its labels."""
    key, labels = job_of(manifest), manifest["metadata"]["labels"]
    job = key.name if key else ""
    if identity := _identity_in(manifest["metadata"]["name"], job):
        return identity
    slot, start = (
        _number(labels.get(constants.LABEL_INDEX)),
        _number(labels.get(constants.LABEL_ATTEMPT)),
    )
    if slot is not None and start is not None:
        return Identity(slot, start, _number(labels.get(constants.LABEL_REPLACEMENT)) or 0)
    if is_controlled:
        return _NOWHERE
    raise MalformedError(f"it has no controller, and neither name nor labels fit job {job}")


def _identity_in(name: str, job: str) -> Identity | None:
    """Return the identity in a pod's name; None if no pod of the job has this name.

    Each event of a pod needs it, so it takes no regular expression.
    """
    attempt, index, replacement, *_ = *name[len(job) + 1 :].split("-"), "", "r0", ""
    numbers = _number(index), _number(attempt), _number(replacement.removeprefix("r"))
    identity = Identity(*(number or 0 for number in numbers))
    return identity if identity.pod_name(job) == name else None


def _number(text: str | None) -> int | None:
    """Parse a count as the operator writes it; None if it is no such."""
    is_count = text and len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit()
    return int(text) if text and is_count else None


def _grace_seconds(value: int | None, default: int) -> int:
    return default if value is None else min(value, _MAX_GRACE_SECONDS)


def _has_memory_limit(spec: Manifest, container: str) -> bool:
    containers = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    holders = [spec, *(c for c in containers if c.get("name") == container)]
    limits = ((holder.get("resources") or {}).get("limits") or {} for holder in holders)
    return any("memory" in limit for limit in limits)


def _deleted_at(
    ends_by: datetime | None, grace_seconds: int | None, ended: ContainerExit | None
) -> datetime | None:
    """Return when the pod's deletion was requested; None if it was not.

    The API server sets `deletionTimestamp` to the request plus the grace period. The kubelet's own
    last request, with a grace period of 0, sets it again, which is visible if a finalizer such as
    Kueue's keeps the pod. The signals of the deletion came before that.
    """
    if ends_by is None:
        return None
    if grace_seconds == 0 and ended and ended.code in _DELETION_CODES:
        return _earliest(ends_by, None if ended.reason == "OOMKilled" else ended.finished)
    return ends_by - timedelta(seconds=_grace_seconds(grace_seconds, 0))


def _ended_by_deletion(
    deleted_at: datetime | None, ended: ContainerExit | None, status: Manifest
) -> bool:
    """Return whether the trainer ended only after the pod's deletion was requested.

    If the deletion kept a container from starting, the kubelet reports no exit, only a failed pod.
    With a reason, the pod failed first: kubelets do not refuse pods that are being deleted.
    """
    if deleted_at is None:
        return False
    if ended is None:
        return not (status.get("phase") == "Failed" and status.get("reason"))
    return ended.finished is not None and ended.finished >= deleted_at


def _outlasts_node(toleration: Manifest) -> bool:
    """Return whether a pod with this toleration stays on an unreachable node without a limit."""
    bounded = toleration.get("tolerationSeconds") is not None
    key = toleration.get("key") or _UNREACHABLE
    evicts = (toleration.get("effect") or "NoExecute") == "NoExecute"
    return not bounded and evicts and key == _UNREACHABLE


def _earliest(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment), default=None)
