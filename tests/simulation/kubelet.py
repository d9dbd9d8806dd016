"""What becomes of pods: each function makes of a pod's manifest its next state."""

from collections.abc import Mapping
from datetime import datetime
from ipaddress import ip_address
from typing import Any

from ddp_operator.api.constants import ANNOTATION_TRAINER
from ddp_operator.api.values.bounded import format_time
from ddp_operator.ports import Manifest

_STARTED = "Running"


def is_over(pod: Manifest) -> bool:
    """Whether the pod will never run again."""
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def is_running(pod: Manifest) -> bool:
    """Whether its trainer runs."""
    return pod["status"]["phase"] == _STARTED and not trainer_exit(pod)


def is_deleting(pod: Manifest) -> bool:
    """Whether somebody asked for its end."""
    return "deletionTimestamp" in pod["metadata"]


def is_told_to_end(pod: Manifest) -> bool:
    """Whether somebody asked for its end, or the cluster announced it."""
    conditions = pod["status"].get("conditions") or ()
    return is_deleting(pod) or any(c["type"] == "DisruptionTarget" for c in conditions)


def node_of(pod: Manifest) -> str:
    """The node it is on, empty before it is scheduled."""
    node: str = pod["spec"].get("nodeName", "")
    return node


def trainer_exit(pod: Manifest) -> Mapping[str, Any] | None:
    """How its trainer ended, None while it has not."""
    for container in pod["status"].get("containerStatuses") or ():
        terminated: Mapping[str, Any] | None = container["state"].get("terminated")
        return terminated
    return None


def scheduled(pod: Manifest, node: str) -> Manifest:
    """The scheduler has found a node."""
    placed = {**pod, "spec": {**pod["spec"], "nodeName": node}}
    return _with_status(placed, conditions=[_condition("PodScheduled", "True")])


def unschedulable(pod: Manifest) -> Manifest:
    """The scheduler finds no node."""
    waiting = _condition(
        "PodScheduled",
        "False",
        reason="Unschedulable",
        message="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    )
    return _with_status(pod, conditions=[waiting])


def not_starting(pod: Manifest, reason: str) -> Manifest:
    """The kubelet cannot start the trainer's container."""
    state = {"waiting": {"reason": reason, "message": "in words"}}
    return _with_status(pod, containerStatuses=[_container(pod, state)])


def started(pod: Manifest, *, ready: bool, now: datetime) -> Manifest:
    """The trainer runs, at an address of its own."""
    known = [one["state"].get("running") for one in pod["status"].get("containerStatuses") or ()]
    running = next(filter(None, known), {"startedAt": format_time(now)})
    conditions = [_condition("PodScheduled", "True")]
    if ready:
        conditions.append(_condition("Ready", "True"))
    return _with_status(
        pod,
        phase=_STARTED,
        podIP=_ip_of(pod),
        conditions=conditions,
        containerStatuses=[_container(pod, {"running": running})],
    )


def exited(
    pod: Manifest,
    code: int,
    *,
    reason: str,
    message: str,
    finished: datetime,
    side_car_runs: bool = False,
) -> Manifest:
    """The trainer has ended; the pod ends with it unless a side car runs on."""
    terminated = {
        "exitCode": code,
        "reason": reason,
        "message": message,
        "finishedAt": format_time(finished),
    }
    ended = {"phase": "Failed" if code else "Succeeded"} if not side_car_runs else {}
    side_cars = [{"name": "side-car", "state": {"running": {}}}] if side_car_runs else []
    return _with_status(
        pod,
        conditions=[c for c in pod["status"].get("conditions") or () if c["type"] != "Ready"],
        containerStatuses=[_container(pod, {"terminated": terminated}), *side_cars],
        **ended,
    )


def failed(pod: Manifest, reason: str) -> Manifest:
    """The kubelet ended the pod for a reason of its own."""
    return _with_status(pod, phase="Failed", reason=reason, message="in words")


def targeted(pod: Manifest, reason: str, now: datetime) -> Manifest:
    """The cluster announces that it takes the pod away."""
    conditions = [*(pod["status"].get("conditions") or ())]
    since = format_time(now)
    target = _condition("DisruptionTarget", "True", reason=reason, lastTransitionTime=since)
    conditions.append(target)
    return _with_status(pod, conditions=conditions)


def _ip_of(pod: Manifest) -> str:
    number = int(pod["metadata"]["uid"].removeprefix("pod-"))
    return str(ip_address("10.0.0.0") + number)


def _with_status(pod: Manifest, **changes: object) -> Manifest:
    return {**pod, "status": {**pod["status"], **changes}}


def _condition(type_: str, status: str, **texts: str) -> Manifest:
    return {"type": type_, "status": status, **texts}


def _container(pod: Manifest, state: Manifest) -> Manifest:
    return {"name": pod["metadata"]["annotations"][ANNOTATION_TRAINER], "state": state}
