"""Pod statuses as a kubelet reports them. Pure."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

NODE = "localhost"
MAX_MESSAGE_BYTES = 4096
"""The kubelet's limit for a termination message."""
LOG_TAIL_BYTES = 2048
LOG_TAIL_LINES = 80
"""Lines that the kubelet takes from the log for
`terminationMessagePolicy: FallbackToLogsOnError`."""

Status = dict[str, Any]


def timestamp(moment: datetime) -> str:
    """Return RFC 3339 with microseconds. That is finer than the kubelet's, to tell first from
    second.
    """
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def pending() -> Status:
    """Return the status of a pod that waits for a machine."""
    return {"phase": "Pending", "conditions": []}


def unschedulable(message: str, now: datetime) -> Status:
    """Return the status of a pod that no machine can ever run."""
    return {
        "phase": "Pending",
        "conditions": [_condition("PodScheduled", False, now, "Unschedulable", message)],
    }


def waiting(container: str, *, reason: str, message: str, now: datetime) -> Status:
    """Return the status of a pod that has a machine but no container yet."""
    state = {"waiting": {"reason": reason, "message": message}}
    return _scheduled("Pending", container, state, now, _condition("Ready", False, now))


def running(container: str, started: datetime, *, address: str) -> Status:
    """Return the status of a running process. Without a readiness probe, running is ready."""
    state = {"running": {"startedAt": timestamp(started)}}
    ready = _condition("Ready", True, started)
    status = _scheduled("Running", container, state, started, ready)
    return {**status, "podIP": address, "startTime": timestamp(started)}


def terminated(
    container: str,
    *,
    exit_code: int,
    message: str,
    started: datetime,
    finished: datetime,
    reason: str | None = None,
) -> Status:
    """Return the status of an ended process; `reason` is for ends other than `Completed` and
    `Error`.
    """
    done = exit_code == 0
    state = {
        "exitCode": exit_code,
        "reason": reason or ("Completed" if done else "Error"),
        "message": message,
        "startedAt": timestamp(started),
        "finishedAt": timestamp(finished),
    }
    ready = _condition("Ready", False, finished, "PodCompleted" if done else "PodFailed")
    phase = "Succeeded" if done else "Failed"
    status = _scheduled(phase, container, {"terminated": state}, started, ready)
    return {**status, "startTime": timestamp(started)}


def termination_message(file: Path, *, log: Path, log_start: int, fall_back_to_log: bool) -> str:
    """Return the container's termination message; `log_start` is where its part of the
    log begins.
    """
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


def _scheduled(
    phase: str, container: str, state: Status, since: datetime, ready: dict[str, str]
) -> Status:
    """Return the status of a pod with a machine; `ready`: its condition Ready."""
    is_ready = ready["status"] == "True"
    return {
        "phase": phase,
        "conditions": [_condition("PodScheduled", True, since), ready],
        "containerStatuses": [
            {"name": container, "ready": is_ready, "restartCount": 0, "state": state}
        ],
    }
