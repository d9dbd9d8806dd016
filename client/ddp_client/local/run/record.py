"""Records a run for reports: its job, its pods and its events."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ddp_operator.api.values.bounded import format_time
from ddp_operator.ports import Event, Key, Manifest

FILE_NAME: Final = "run.json"
_MOST: Final = 1000
"""Number of pods, and of events, to keep: the newest."""


class Record:
    """Grows during the run. It also has pods that are gone at the end."""

    def __init__(self) -> None:
        self._job: Manifest = {}
        self._pods: dict[str, Manifest] = {}
        self._events: list[Manifest] = []

    def job(self, manifest: Manifest) -> None:
        """Record the job's new state."""
        self._job = manifest

    def pods(self, manifests: list[Manifest]) -> None:
        """Record the present pods."""
        for manifest in manifests:
            self._pods[manifest["metadata"]["name"]] = _slim(manifest)
        while len(self._pods) > _MOST:
            del self._pods[next(iter(self._pods))]

    def event(self, job: Key, event: Event) -> None:
        """Record an Event of the operator."""
        about = {"kind": "DDPJob", "namespace": job.namespace, "name": job.name}
        entry = {
            "involvedObject": about,
            "reason": event.reason,
            "message": event.message,
            "type": "Warning" if event.warning else "Normal",
            "lastTimestamp": format_time(datetime.now(UTC)),
        }
        self._events = [*self._events[1 - _MOST :], entry]

    def write(self, directory: Path) -> None:
        """Write the record where reports find it."""
        record = {"job": self._job, "pods": [*self._pods.values()], "events": self._events}
        (directory / FILE_NAME).write_text(json.dumps(record))


def _slim(pod: Manifest) -> dict[str, Any]:
    """Keep what a report needs of a pod. The environment is left out, because it has tokens."""
    containers = [{"name": c.get("name")} for c in pod["spec"].get("containers") or ()]
    spec = {"containers": containers, "nodeName": pod["spec"].get("nodeName", "")}
    # Its own states replace each other: nothing in them changes later.
    return {"metadata": pod["metadata"], "spec": spec, "status": pod.get("status")}
