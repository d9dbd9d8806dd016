"""Read from the statuses of a pod's containers what decisions need."""

from typing import Final, Literal

from ddp_operator.api.values.bounded import read_time
from ddp_operator.api.values.text import printable
from ddp_operator.job.pods.state import (
    CONTAINER_LOST,
    CRASH_LOOP,
    UNSTARTABLE_REASONS,
    ContainerExit,
)
from ddp_operator.ports import Manifest

_MAX_TEXT: Final = 4096
"""Characters of a message; no kubelet accepts more bytes from a container."""
_MAX_WORD: Final = 256
_LOST_BY_RUNTIME: Final = (255, "Unknown")
"""containerd's words for a container that ran when its machine rebooted."""


def decisive_state(name: str, status: Manifest) -> tuple[str, Manifest]:
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


def is_ready(
    spec: Manifest, status: Manifest, conditions: dict[str, Manifest], trainer: str
) -> bool:
    """Return whether the trainer is ready and all side cars are ready or have ended.

    Kubelets report a pod as not ready once any container has ended.
    """
    if is_true(conditions.get("Ready", {})):
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


def waiting_reason(waiting: Manifest | None, conditions: dict[str, Manifest]) -> tuple[str, str]:
    """Return reason and message of what keeps a pod from starting; empty if nothing does."""
    if waiting and waiting.get("reason") in UNSTARTABLE_REASONS:
        return waiting["reason"], waiting.get("message", "")
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return scheduled.get("reason", ""), scheduled.get("message", "")
    return "", ""


def start_stage(
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
    return "image" if sandbox is None or is_true(sandbox) else "sandbox"


def exit_of(terminated: Manifest | None) -> ContainerExit | None:
    """Return how a container ended; None if it has not."""
    if not terminated:
        return None
    code, reason = int(terminated.get("exitCode", 0)), word_of(terminated.get("reason"))
    return ContainerExit(
        code=code,
        signal=int(terminated.get("signal") or 0),
        reason=CONTAINER_LOST if (code, reason) == _LOST_BY_RUNTIME else reason,
        message=text_of(terminated.get("message")),
        finished=read_time(terminated.get("finishedAt")),
    )


def running_on(status: Manifest) -> str:
    """Return the name of a running ordinary container; empty if there is none."""
    statuses = status.get("containerStatuses") or ()
    return next((s["name"] for s in statuses if "running" in (s.get("state") or {})), "")


def side_car_failure(trainer: str, status: Manifest) -> str:
    """Describe the first ordinary container besides the trainer that failed; empty if none has."""
    for each in status.get("containerStatuses") or ():
        ended = exit_of((each.get("state") or {}).get("terminated"))
        if each["name"] != trainer and ended and ended.code:
            words = ended.message.strip().rpartition("\n")[2][:_MAX_WORD]
            said = f"container {each['name']} ended with code {ended.code}"
            return f"{said}: {words}" if words else said
    return ""


def crash_loop(status: Manifest) -> tuple[str, str]:
    """Return reason and message of a side car that keeps ending; empty if there is none."""
    for each in status.get("initContainerStatuses") or ():
        waiting: Manifest = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") == CRASH_LOOP and status.get("phase") in ("Pending", "Running"):
            last: Manifest = (each.get("lastState") or {}).get("terminated") or {}
            code = f", last with code {last['exitCode']}" if "exitCode" in last else ""
            said = f": {last['message']}" if last.get("message") else ""
            return CRASH_LOOP, f"side car {each['name']} keeps ending{code}{said}"
    return "", ""


def word_of(value: str | None) -> str:
    """Return a word of limited length."""
    return (value or "")[:_MAX_WORD]


def text_of(value: str | None) -> str:
    """Return a message of limited length, without control characters."""
    # The end of a log matters. `kubectl describe` prints it unescaped.
    return printable((value or "")[-_MAX_TEXT:], kept="\n\t")


def is_true(condition: Manifest) -> bool:
    """Return whether a condition is true."""
    return bool(condition.get("status") == "True")
