"""Jobs with a history, as stored by the API server."""

from typing import Any

from ddp_client.views.job.snapshot import JobSnapshot
from ddp_operator.api.values.bounded import format_time

from tests.good_manifests import Json
from tests.unit.job.builders import NAME, later, stored_job

ESCAPES = "\x1b[31mred\x1b]0;title\x07\r\b\u202e\u2028end"


def at(seconds: float) -> str:
    """Return the stored form of a time, in seconds after NOW."""
    return format_time(later(seconds))


def condition(type_: str, reason: str, message: str = "", *, since: float = 0) -> Json:
    """A condition that is true."""
    return {
        "type": type_,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": at(since),
        "observedGeneration": 1,
    }


def failure(**changes: Any) -> Json:
    """A failure of one rank, half a minute after NOW."""
    return {
        "time": at(30),
        "attempt": 0,
        "index": 1,
        "rank": 1,
        "pod": f"{NAME}-0-1",
        "container": "trainer",
        "node": "node-b",
        "exitCode": 1,
        "reason": "Error",
        "message": "Traceback\n  File x\nValueError: bad batch\n",
        "class": "Application",
        "action": "RestartGang",
        "charged": True,
        **changes,
    }


def stored(phase: str, reason: str = "", message: str = "", **more: Any) -> Json:
    """A job in a phase, observed by an operator; `spec` changes its spec."""
    spec = more.pop("spec", {})
    named = phase not in ("Pending", "Starting")
    status = {
        "observedGeneration": 1,
        "phase": phase,
        "reason": reason,
        "message": message,
        "conditions": [condition(phase, reason, message)] if named else [],
        "startTime": at(0),
        "ready": "0/2",
        **more,
    }
    return stored_job(status=status, **spec)


def seen(phase: str, reason: str = "", message: str = "", **more: Any) -> JobSnapshot:
    """The same job as a snapshot for views."""
    return JobSnapshot.read(stored(phase, reason, message, **more))


def training(**more: Any) -> Json:
    """A job in the middle of training."""
    return stored(
        "Running",
        "PodsReady",
        "all 2 pods are ready",
        **{
            "ready": "2/2",
            "readyReplicas": 2,
            "restarts": 1,
            "disruptions": 2,
            "progress": {
                "step": 500,
                "totalSteps": 2000,
                "epoch": 3,
                "loss": 0.123456,
                "samplesPerSecond": 8123.25,
                "updatedAt": at(1197),
                "lastStepTime": at(1197),
            },
            "checkpoint": {"step": 450, "path": "/checkpoints/step-00000450", "time": at(1100)},
            "goodput": {
                "pendingSeconds": 60,
                "startingSeconds": 40,
                "trainingSeconds": 600,
                "lostSeconds": 100,
                "stepsLost": 25,
            },
            "bookkeeping": {"stopwatch": {"accountedUntil": at(800)}},
            "placement": "2 hosts, 1 block",
            "firstPodStartTime": at(60),
            **more,
        },
    )
