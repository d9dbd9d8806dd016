"""Pod statuses as a kubelet reports them. Pure."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddp_operator.local.machine.loopback import ADDRESS

NODE = "localhost"
MAX_MESSAGE_BYTES = 4096
"""Kubelet's limit for a termination message."""
LOG_TAIL_BYTES = 2048
LOG_TAIL_LINES = 80
"""What kubelet takes of the log for `terminationMessagePolicy: FallbackToLogsOnError`."""

Status = dict[str, Any]


def timestamp(moment: datetime) -> str:
    """RFC 3339 with microseconds: finer than kubelet's, so that first and second are told apart."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def pending() -> Status:
    """No machine has been found for it yet."""
    return {"phase": "Pending", "conditions": []}


def unschedulable(message: str, now: datetime) -> Status:
    """No machine can ever take it."""
    return {
        "phase": "Pending",
        "conditions": [_condition("PodScheduled", False, now, "Unschedulable", message)],
    }


def waiting(container: str, *, reason: str, message: str, now: datetime) -> Status:
    """It has its machine, but the container cannot be made."""
    return {
        "phase": "Pending",
        "conditions": [_condition("PodScheduled", True, now), _condition("Ready", False, now)],
        "containerStatuses": [
            _container(container, {"waiting": {"reason": reason, "message": message}})
        ],
    }


def running(container: str, started: datetime) -> Status:
    """Its process runs; without a readiness probe, running is ready."""
    return {
        "phase": "Running",
        "podIP": ADDRESS,
        "startTime": timestamp(started),
        "conditions": [
            _condition("PodScheduled", True, started),
            _condition("Ready", True, started),
        ],
        "containerStatuses": [
            _container(container, {"running": {"startedAt": timestamp(started)}}, ready=True)
        ],
    }


def terminated(
    container: str,
    *,
    exit_code: int,
    message: str,
    started: datetime,
    finished: datetime,
    reason: str | None = None,
) -> Status:
    """Its process has ended. `reason`: where it is neither `Completed` nor `Error`."""
    done = exit_code == 0
    state = {
        "exitCode": exit_code,
        "reason": reason or ("Completed" if done else "Error"),
        "message": message,
        "startedAt": timestamp(started),
        "finishedAt": timestamp(finished),
    }
    return {
        "phase": "Succeeded" if done else "Failed",
        "startTime": timestamp(started),
        "conditions": [
            _condition("PodScheduled", True, started),
            _condition("Ready", False, finished, "PodCompleted" if done else "PodFailed"),
        ],
        "containerStatuses": [_container(container, {"terminated": state})],
    }


def termination_message(file: Path, *, log: Path, log_start: int, fall_back_to_log: bool) -> str:
    """What the container left as its last word; `log_start`: where its part of the log begins."""
    message = _tail(file, start=0, limit=MAX_MESSAGE_BYTES)
    if message or not fall_back_to_log:
        return message
    lines = _tail(log, start=log_start, limit=LOG_TAIL_BYTES).splitlines(keepends=True)
    return "".join(lines[-LOG_TAIL_LINES:])


def _tail(file: Path, *, start: int, limit: int) -> str:
    try:
        with file.open("rb") as stream:
            stream.seek(max(start, file.stat().st_size - limit))
            return stream.read(limit).decode(errors="replace")
    except OSError:
        return ""


def _condition(
    type_: str, value: bool, now: datetime, reason: str = "", message: str = ""
) -> dict[str, str]:
    condition = {
        "type": type_,
        "status": "True" if value else "False",
        "lastTransitionTime": timestamp(now),
    }
    optional = {"reason": reason, "message": message}
    return condition | {name: text for name, text in optional.items() if text}


def _container(name: str, state: dict[str, Any], *, ready: bool = False) -> dict[str, Any]:
    return {"name": name, "ready": ready, "restartCount": 0, "state": state}
