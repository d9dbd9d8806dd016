"""States of pods: each function returns a pod's manifest in its next state."""

from collections.abc import Mapping
from datetime import datetime
from ipaddress import ip_address
from typing import Any

from ddp_operator.api.constants import ANNOTATION_TRAINER
from ddp_operator.api.values.bounded import format_time
from ddp_operator.ports import Manifest

from tests.simulation.world.start_faults import Stage

_STARTED = "Running"


def is_over(pod: Manifest) -> bool:
    """Return whether the pod will never run again."""
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def is_running(pod: Manifest) -> bool:
    """Return whether its trainer runs."""
    return pod["status"]["phase"] == _STARTED and not trainer_exit(pod)


def is_deleting(pod: Manifest) -> bool:
    """Return whether somebody asked for its end."""
    return "deletionTimestamp" in pod["metadata"]


def is_told_to_end(pod: Manifest) -> bool:
    """Return whether somebody asked for its end, or the cluster announced it."""
    conditions = pod["status"].get("conditions") or ()
    return is_deleting(pod) or any(c["type"] == "DisruptionTarget" for c in conditions)


def node_of(pod: Manifest) -> str:
    """The node it is on, empty before it is scheduled."""
    node: str = pod["spec"].get("nodeName", "")
    return node


def secrets_of(pod: Manifest) -> list[str]:
    """The Secrets that the trainer's environment is made of, by their names."""
    sources = [variable.get("valueFrom") or {} for variable in trainer_of(pod).get("env") or ()]
    return [source["secretKeyRef"]["name"] for source in sources if "secretKeyRef" in source]


def name_of_trainer(pod: Manifest) -> str:
    """Return the name of the container that trains. A webhook may have added others before it."""
    name: str = pod["metadata"]["annotations"][ANNOTATION_TRAINER]
    return name


def trainer_of(pod: Manifest) -> Manifest:
    """The container that trains, as it is in the pod's spec."""
    containers: list[Manifest] = pod["spec"]["containers"]
    return next(one for one in containers if one["name"] == name_of_trainer(pod))


def side_cars_of(pod: Manifest) -> list[str]:
    """Ordinary containers beside it, which keep the pod from ending."""
    names: list[str] = [one["name"] for one in pod["spec"]["containers"]]
    return [name for name in names if name != name_of_trainer(pod)]


def trainer_exit(pod: Manifest) -> Mapping[str, Any] | None:
    """How its trainer ended, None while it has not."""
    terminated: Mapping[str, Any] | None = _state_of_trainer(pod).get("terminated")
    return terminated


def stage_of(pod: Manifest) -> Stage:
    """Return the stage of a pod that has not ended."""
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions") or ()}
    if not node_of(pod):
        return Stage.CREATED
    if is_running(pod):
        return Stage.READY if conditions.get("Ready") == "True" else Stage.STARTED
    if not _state_of_trainer(pod):
        return Stage.SCHEDULED
    has_network = conditions.get("PodReadyToStartContainers") == "True"
    return Stage.CONTAINER if has_network else Stage.SANDBOX


def scheduled(pod: Manifest, node: str) -> Manifest:
    """The scheduler has found a node."""
    placed = {**pod, "spec": {**pod["spec"], "nodeName": node}}
    return _with(placed, {"PodScheduled": {"status": "True"}})


def unschedulable(pod: Manifest, message: str) -> Manifest:
    """The scheduler finds no node."""
    waiting = {"status": "False", "reason": "Unschedulable", "message": message}
    return _with(pod, {"PodScheduled": waiting})


def is_unschedulable(pod: Manifest) -> bool:
    """Return whether the scheduler has said that it finds no node for a pod."""
    conditions = pod["status"].get("conditions", ())
    return any(each.get("reason") == "Unschedulable" for each in conditions)


def gated(pod: Manifest) -> Manifest:
    """The scheduler does not look at a pod that has scheduling gates."""
    message = "Scheduling is blocked due to non-empty scheduling gates"
    waiting = {"status": "False", "reason": "SchedulingGated", "message": message}
    return _with(pod, {"PodScheduled": waiting})


def is_gated(pod: Manifest) -> bool:
    """Return whether a pod has scheduling gates."""
    return bool(pod["spec"].get("schedulingGates"))


def ungated(pod: Manifest) -> Manifest:
    """Return a pod without scheduling gates; its condition is the scheduler's to change."""
    return {**pod, "spec": {k: v for k, v in pod["spec"].items() if k != "schedulingGates"}}


def waiting(pod: Manifest, why: tuple[str, str], *, sandbox: bool) -> Manifest:
    """The kubelet has the pod and no container of it runs. `why`: its reason and message,
    where the kubelet says; `sandbox`: whether its network is set up.
    """
    reason, message = why
    waits = {"reason": reason, "message": message} if reason else {"reason": "ContainerCreating"}
    conditions = {
        "PodReadyToStartContainers": {"status": str(sandbox)},
        "Initialized": {"status": "True"},
        **_not_ready("ContainersNotReady"),
    }
    containers = _containers(pod, {"waiting": waits})
    since = pod["metadata"]["creationTimestamp"]
    return _with(pod, conditions, containerStatuses=containers, startTime=since)


def started(pod: Manifest, *, ready: bool, now: datetime) -> Manifest:
    """The trainer runs, at an address of its own."""
    running = _state_of_trainer(pod).get("running") or {"startedAt": format_time(now)}
    conditions: dict[str, Mapping[str, str]] = {
        "PodReadyToStartContainers": {"status": "True"},
        "Initialized": {"status": "True"},
        **_not_ready("ContainersNotReady"),
    }
    if ready:
        conditions |= {"ContainersReady": {"status": "True"}, "Ready": {"status": "True"}}
    return _with(
        pod,
        conditions,
        phase=_STARTED,
        podIP=_ip_of(pod),
        containerStatuses=_containers(pod, {"running": running}, runs=True),
        **_init_containers(pod, {"running": {}}),
    )


def exited(
    pod: Manifest,
    code: int,
    *,
    reason: str,
    message: str,
    finished: datetime | None,
    side_car_runs: bool = False,
) -> Manifest:
    """The trainer has ended; the pod ends with it unless a side car runs on.

    `finished`: None where the kubelet does not know.
    """
    terminated = {
        "exitCode": code,
        "reason": reason,
        "message": message,
        "finishedAt": format_time(finished) if finished else None,
    }
    phase = "Failed" if code else "Succeeded"
    ended = {} if side_car_runs else {"phase": phase} | _init_containers(pod, {"terminated": {}})
    return _with(
        pod,
        _not_ready("ContainersNotReady" if side_car_runs else f"Pod{phase}"),
        containerStatuses=_containers(pod, {"terminated": terminated}, runs=side_car_runs),
        **ended,
    )


def failed(pod: Manifest, reason: str, message: str = "") -> Manifest:
    """The kubelet, or a controller, ended the pod for a reason of its own."""
    texts = {"reason": reason} if reason else {}
    if message:
        texts["message"] = message
    return _with(pod, _not_ready("PodFailed"), phase="Failed", **texts)


def not_ready(pod: Manifest) -> Manifest:
    """The node lifecycle controller has not heard of the pod's kubelet."""
    conditions = pod["status"].get("conditions") or ()
    known = next((one for one in conditions if one["type"] == "Ready"), None)
    return _with(pod, {"Ready": {**known, "status": "False"}}) if known else pod


def targeted(pod: Manifest, reason: str, message: str, now: datetime) -> Manifest:
    """The cluster announces that it takes the pod away."""
    target = {"status": "True", "reason": reason, "message": message}
    return _with(pod, {"DisruptionTarget": target | {"lastTransitionTime": format_time(now)}})


def _ip_of(pod: Manifest) -> str:
    number = int(pod["metadata"]["uid"].removeprefix("pod-"))
    return str(ip_address("10.0.0.0") + number)


def _with(
    pod: Manifest, conditions: Mapping[str, Mapping[str, str]], **changes: object
) -> Manifest:
    known = {one["type"]: one for one in pod["status"].get("conditions") or ()}
    known |= {type_: {"type": type_, **texts} for type_, texts in conditions.items()}
    return {**pod, "status": {**pod["status"], "conditions": [*known.values()], **changes}}


def _not_ready(reason: str) -> dict[str, Mapping[str, str]]:
    condition = {"status": "False", "reason": reason}
    return {"ContainersReady": condition, "Ready": condition}


def _state_of_trainer(pod: Manifest) -> Manifest:
    name = name_of_trainer(pod)
    statuses = pod["status"].get("containerStatuses") or ()
    return next((one["state"] for one in statuses if one["name"] == name), {})


def _containers(pod: Manifest, state: Manifest, *, runs: bool = False) -> list[Manifest]:
    others: Manifest = {"running": {}} if runs else {"terminated": {"exitCode": 0}}
    if "waiting" in state:
        others = {"waiting": {"reason": "ContainerCreating"}}
    beside = side_cars_of(pod) or (["side-car"] if runs and "terminated" in state else [])
    statuses = [{"name": name, "state": others} for name in beside]
    return [*statuses, {"name": name_of_trainer(pod), "state": state}]


def _init_containers(pod: Manifest, state: Manifest) -> dict[str, object]:
    """Return the states of init containers: side cars, which the kubelet ends itself, are in this
    one; others have ended.
    """
    runs = "running" in state
    statuses = [
        {"name": one["name"], "state": state, "started": runs, "ready": runs}
        if one.get("restartPolicy") == "Always"
        else {"name": one["name"], "state": {"terminated": {"exitCode": 0}}, "ready": True}
        for one in pod["spec"].get("initContainers") or ()
    ]
    return {"initContainerStatuses": statuses} if statuses else {}
