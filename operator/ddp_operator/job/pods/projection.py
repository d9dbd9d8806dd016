"""Read from an API server's pod what decisions need."""

from datetime import datetime, timedelta
from functools import lru_cache
from sys import intern
from typing import Final, Literal

from ddp_operator.api import constants
from ddp_operator.api.rules import trainer_container
from ddp_operator.api.values.bounded import read_time
from ddp_operator.api.values.limits import linear
from ddp_operator.api.values.printable import printable
from ddp_operator.job.pods.address import is_the_nodes, trainer_address
from ddp_operator.job.pods.avoided_nodes import host_of, kept_off
from ddp_operator.job.pods.state import (
    CONTAINER_LOST,
    CRASH_LOOP,
    UNSTARTABLE_REASONS,
    ContainerExit,
    Identity,
    PodState,
    QueueMember,
)
from ddp_operator.ports import Key, MalformedError, Manifest

_PLACE: Final = linear(r"-(\d{1,9})-(\d{1,9})(?:-r(\d{1,9}))?")
"""The part of a pod's name after the job's name: attempt, index and replacement."""
_MAX_DIGITS: Final = 9
_NOWHERE: Final = Identity(index=-1, attempt=-1)
"""Identity of a pod that a job controls but that has no valid name or labels."""

_MAX_TEXT: Final = 4096
"""Characters of a message; no kubelet accepts more bytes from a container."""
_MAX_WORD: Final = 256
_DISRUPTIONS: Final = ("DisruptionTarget", "TerminationTarget", "TerminatedByKueue")
"""Conditions of pods that lose their places: Kubernetes' own, Kueue's before it deletes a pod, and
Kueue's after it ended one that waited for a failed node."""
_DELETION_CODES: Final = (137, 143)
"""Exit codes after SIGKILL or SIGTERM."""
_LOST_BY_RUNTIME: Final = (255, "Unknown")
"""containerd's words for a container that ran when its machine rebooted."""

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
    owner = _controller(metadata)
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    name = _word(
        annotations.get(constants.ANNOTATION_TRAINER) or trainer_container(manifest).get("name")
    )
    container, state = _decisive_state(name, status)
    ended = _exit(state.get("terminated"))
    ends_by = read_time(metadata.get("deletionTimestamp"))
    deleted_at = _deleted_at(ends_by, metadata.get("deletionGracePeriodSeconds"), ended)
    waiting, waiting_message = _waiting(state.get("waiting"), conditions)
    ready = _is_ready(spec, status, conditions, name)
    if not (waiting or ready):
        waiting, waiting_message = _crash_loop(status)
    announced = (conditions.get(type_, {}) for type_ in _DISRUPTIONS)
    disruption: Manifest = next(filter(_is_true, announced), {})
    return PodState(
        key=Key(metadata["namespace"], metadata["name"]),
        # Interned, since thousands of pods share a few of these words.
        owner_uid=intern(owner.get("uid") or ""),
        identity=_identity(manifest, is_controlled=bool(owner)),
        spec_hash=intern(_word(annotations.get(constants.ANNOTATION_SPEC_HASH))),
        token_key=intern(_word(labels.get(constants.LABEL_TOKEN_KEY))),
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
        reason=_word(status.get("reason")),
        message=_text(status.get("message") or disruption.get("message")),
        disruption=_word(disruption.get("reason")),
        waiting=_word(waiting),
        waiting_message=_text(waiting_message),
        stage=_stage(spec, status, conditions, state),
        avoids=() if spec.get("nodeName") else kept_off(spec),
        host="" if spec.get("nodeName") else intern(host_of(spec)),
        stays_on_lost_node=any(map(_outlasts_node, spec.get("tolerations") or ())),
        queue=_queue_member(metadata, labels, annotations),
        held_by=_running_on(status) if ended else "",
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
    owner = _controller(metadata)
    label = (metadata.get("labels") or {}).get(constants.LABEL_JOB_NAME)
    name = owner["name"] if owner.get("kind") == constants.KIND else label
    return Key(metadata["namespace"], name) if name else None


def _controller(metadata: Manifest) -> Manifest:
    """Return the reference to an object's controller; empty if there is none."""
    owners = metadata.get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def _identity(manifest: Manifest, *, is_controlled: bool) -> Identity:
    """Return which pod of the job it is: by its name, which cannot change, else by its labels."""
    key, labels = job_of(manifest), manifest["metadata"]["labels"]
    name, job = manifest["metadata"]["name"], key.name if key else ""
    if name.startswith(job) and (found := _PLACE.fullmatch(name, len(job))):
        attempt, index, replacement = (int(number) for number in found.groups("0"))
        identity = Identity(index, attempt, replacement)
        if identity.pod_name(job) == name:
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


def _number(text: str | None) -> int | None:
    """Parse a count as the operator writes it; None if it is no such."""
    is_count = text and len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit()
    return int(text) if text and is_count else None


def _word(value: str | None) -> str:
    return (value or "")[:_MAX_WORD]


def _text(value: str | None) -> str:
    # The end of a log matters. `kubectl describe` prints it unescaped.
    return printable((value or "")[-_MAX_TEXT:], kept="\n\t")


def _grace_seconds(value: int | None, default: int) -> int:
    return default if value is None else min(value, _MAX_GRACE_SECONDS)


def _is_true(condition: Manifest) -> bool:
    return bool(condition.get("status") == "True")


def _decisive_state(name: str, status: Manifest) -> tuple[str, Manifest]:
    """Return name and state of the trainer container, or of the init container that blocks it."""
    statuses = status.get("containerStatuses") or ()
    trainer: Manifest = next((s for s in statuses if s.get("name") == name), {})
    state: Manifest = trainer.get("state") or {}
    if not ("running" in state or "terminated" in state):
        for init in status.get("initContainerStatuses") or ():
            before: Manifest = init.get("state") or {}
            ended: Manifest = before.get("terminated") or {}
            failed = ended.get("exitCode", 0) != 0 and status.get("phase") == "Failed"
            waiting: Manifest = before.get("waiting") or {}
            if failed or waiting.get("reason") in UNSTARTABLE_REASONS:
                return init["name"], before
    return name, state


def _is_ready(
    spec: Manifest, status: Manifest, conditions: dict[str, Manifest], trainer: str
) -> bool:
    """Return whether the trainer is ready and all side cars are ready or have ended.

    Kubelets report a pod as not ready once any container has ended.
    """
    if _is_true(conditions.get("Ready", {})):
        return True
    if spec.get("readinessGates") or status.get("phase") != "Running":
        return False

    def is_at_work(each: Manifest) -> bool:
        has_ended = each["name"] != trainer and "terminated" in (each.get("state") or {})
        return has_ended or bool(each.get("ready"))

    containers = status.get("containerStatuses") or ()
    init_containers = status.get("initContainerStatuses") or ()
    return (
        any(each["name"] == trainer for each in containers)
        and all(map(is_at_work, containers))
        and all(each.get("ready") for each in init_containers)
    )


def _running_on(status: Manifest) -> str:
    """Return the name of a running ordinary container; empty if there is none."""
    statuses = status.get("containerStatuses") or ()
    return next((s["name"] for s in statuses if "running" in (s.get("state") or {})), "")


def _crash_loop(status: Manifest) -> tuple[str, str]:
    """Return reason and message of a side car that keeps ending; empty if there is none."""
    for each in status.get("initContainerStatuses") or ():
        waiting: Manifest = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") == CRASH_LOOP and status.get("phase") in ("Pending", "Running"):
            last: Manifest = (each.get("lastState") or {}).get("terminated") or {}
            code = f", last with code {last['exitCode']}" if "exitCode" in last else ""
            said = f": {last['message']}" if last.get("message") else ""
            return CRASH_LOOP, f"side car {each['name']} keeps ending{code}{said}"
    return "", ""


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


def _stage(
    spec: Manifest, status: Manifest, conditions: dict[str, Manifest], state: Manifest
) -> Literal["", "sandbox", "image"]:
    """Return what a pod with a node waits for before its first process."""
    if not spec.get("nodeName") or "running" in state or "terminated" in state:
        return ""
    side_cars = {c["name"] for c in spec.get("initContainers") or () if "restartPolicy" in c}
    before = (s for s in status.get("initContainerStatuses") or () if s["name"] not in side_cars)
    if any("running" in (each.get("state") or {}) for each in before):
        return ""
    sandbox = conditions.get("PodReadyToStartContainers")
    if sandbox is None and not status.get("startTime"):
        return "sandbox"  # the kubelet has not seen it yet
    return "image" if sandbox is None or _is_true(sandbox) else "sandbox"


def _outlasts_node(toleration: Manifest) -> bool:
    """Return whether a pod with this toleration stays on an unreachable node without a limit."""
    bounded = toleration.get("tolerationSeconds") is not None
    key = toleration.get("key") or _UNREACHABLE
    evicts = (toleration.get("effect") or "NoExecute") == "NoExecute"
    return not bounded and evicts and key == _UNREACHABLE


def _earliest(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment), default=None)


def _exit(terminated: Manifest | None) -> ContainerExit | None:
    if not terminated:
        return None
    code, reason = int(terminated.get("exitCode", 0)), _word(terminated.get("reason"))
    return ContainerExit(
        code=code,
        signal=int(terminated.get("signal") or 0),
        reason=CONTAINER_LOST if (code, reason) == _LOST_BY_RUNTIME else reason,
        message=_text(terminated.get("message")),
        finished=read_time(terminated.get("finishedAt")),
    )


def _waiting(waiting: Manifest | None, conditions: dict[str, Manifest]) -> tuple[str, str]:
    if waiting and waiting.get("reason") in UNSTARTABLE_REASONS:
        return waiting["reason"], waiting.get("message", "")
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return scheduled.get("reason", ""), scheduled.get("message", "")
    return "", ""
