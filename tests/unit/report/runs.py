"""A run with a failure, as pods, events and metrics.jsonl."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from ddp_client.report import Facts
from ddp_client.report.facts import EventFacts, PodFacts
from ddp_client.report.history import read
from ddp_operator.api.constants import LABEL_ATTEMPT, LABEL_INDEX, LABEL_JOB_NAME

from tests.good_manifests import Json
from tests.unit.cli.jobs import at, failure, stored
from tests.unit.job.builders import NAME, NAMESPACE, NOW, UID, later

SECONDS_A_STEP = 0.5
FAILED_AFTER = 100


def time(seconds: float) -> str:
    """Return a time after NOW in the trainer's format, with milliseconds."""
    moment = NOW + timedelta(seconds=seconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def metrics(steps: int = 400, *, every: int = 10, break_after: int = 190) -> Iterator[str]:
    """Yield the trainer's lines; the group breaks once, for 30 seconds."""
    yield line("start", 1, formedTime=time(9), lastStepTime=time(10))
    for step in range(every, steps + 1, every):
        seconds = 10 + step * SECONDS_A_STEP + (30 if step > break_after else 0)
        if step - every < break_after + 1 <= step:
            yield line(
                "start",
                break_after + 1,
                formedTime=time(FAILED_AFTER + 50 + 6),
                lastStepTime=time(FAILED_AFTER + 50 + 8),
            )
        yield line(
            "training",
            step,
            epoch=1 + step // 100,
            loss=2.0 / (1 + step / 50),
            samplesPerSecond=1000.0 + step,
            lastStepTime=time(seconds),
            dataSeconds=1.0,
            computeSeconds=3.0,
            communicationSeconds=0.75,
            checkpointSeconds=0.25,
            longestStepSeconds=0.9,
            paceRank=1 if step % 40 else 0,
            paceSeconds=0.45,
            othersPaceSeconds=0.3,
            **({"slowestRank": 1} if step > 300 else {}),
        )
        if step % 100 == 0:
            yield line(
                "checkpoint", step + 2, savedStep=step, savedTime=time(seconds + 1), seconds=1.5
            )
            yield line("evaluation", step + 2, accuracy=0.5 + step / 1000)


def line(kind: str, step: int, **values: Any) -> str:
    return json.dumps({"time": at(0), "kind": kind, "step": step, **values})


def job(**more: Any) -> Json:
    """A running job, with one restart of the gang 150 seconds after its creation."""
    found = stored("Running", "PodsReady", "all 2 pods are ready")
    found["status"].update(
        {
            "attempt": 1,
            "restarts": 1,
            "failures": [failure(time=at(150), node="node-b")],
            "progress": {
                "step": 400,
                "totalSteps": 1000,
                "loss": 0.22,
                "updatedAt": at(240),
                "lastStepTime": at(240),
            },
            "goodput": {
                "pendingSeconds": 5,
                "startingSeconds": 5,
                "trainingSeconds": 140,
                "lostSeconds": 10,
                "stepsLost": 7,
            },
            "bookkeeping": {
                "stopwatch": {"accountedUntil": at(160)},
                "nodes": [{"name": "node-b", "failures": 1}],
            },
            "excludedNodes": ["node-b"],
            **more,
        }
    )
    return found


def pod(
    index: int, *, attempt: int = 1, begins: float = 151, node: str = "node-a", name: str = ""
) -> Json:
    """A running pod: created at `begins`, scheduled after 1 second, started after 3."""
    return {
        "metadata": {
            "name": name or f"{NAME}-{attempt}-{index}",
            "namespace": NAMESPACE,
            "creationTimestamp": at(begins),
            "labels": {
                LABEL_JOB_NAME: NAME,
                LABEL_ATTEMPT: str(attempt),
                LABEL_INDEX: str(index),
            },
            "ownerReferences": [{"controller": True, "uid": UID}],
        },
        "spec": {"nodeName": node, "containers": [{"name": "trainer"}]},
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(begins + 1)},
                {"type": "Ready", "status": "True", "lastTransitionTime": at(begins + 3)},
            ],
            "containerStatuses": [
                {
                    "name": "trainer",
                    "ready": True,
                    "state": {"running": {"startedAt": at(begins + 3)}},
                }
            ],
        },
    }


def event(reason: str, message: str, *, seconds: float) -> Json:
    return {"reason": reason, "message": message, "type": "Normal", "lastTimestamp": at(seconds)}


def facts(manifest: Json | None = None, *, after: float = 300, **more: Any) -> Facts:
    """All facts about the job at a time after NOW."""
    lines = more.pop("lines", None)
    given: dict[str, Any] = {
        "pods": [PodFacts.read(pod(0)), PodFacts.read(pod(1, begins=152))],
        "events": [EventFacts.read(event("Restarting", "pod 1 failed", seconds=151))],
        "history": read(one.encode() for one in (metrics() if lines is None else lines)),
        **more,
    }
    return Facts.of(manifest or job(), now=later(after), **given)
