"""All pods that ever were, seen by a watch of its own that outlives the API server."""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Self

from ddp_operator.api.constants import (
    API_VERSION,
    LABEL_ATTEMPT,
    LABEL_INDEX,
    LABEL_JOB_NAME,
    LABEL_SERVING,
)
from ddp_operator.api.status import DDPJobStatus, MemoryCheckpointRecord
from ddp_operator.job.planning.decisions import RESCHEDULED

from tests.cluster.client import ApiClient

_WATCH_SECONDS = 60
_RETRY_SECONDS = 0.2


@dataclass(frozen=True)
class Seen:
    """A pod, as far as it matters who it is and whether it is alive."""

    uid: str
    name: str
    job: str
    attempt: int
    index: int
    serving: bool
    """DNS names it, and it has not ended: its peers would take it for the rank that it bears."""

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> Self:
        """Take it from a pod as the API server has it."""
        metadata = manifest["metadata"]
        labels = metadata["labels"]
        ended = manifest["status"].get("phase") in ("Succeeded", "Failed")
        return cls(
            uid=metadata["uid"],
            name=metadata["name"],
            job=labels[LABEL_JOB_NAME],
            attempt=int(labels[LABEL_ATTEMPT]),
            index=int(labels[LABEL_INDEX]),
            serving=labels.get(LABEL_SERVING) == "true" and not ended,
        )


@dataclass(frozen=True)
class Sighting:
    """A status of memory checkpoints."""

    seconds: float
    """When it was seen, since 1970."""
    record: MemoryCheckpointRecord


class Record:
    """All that `recording` has seen so far."""

    def __init__(self) -> None:
        self.uids: dict[str, set[str]] = defaultdict(set)
        """Of each name, all pods that ever bore it."""
        self.doubles: set[str] = set()
        """Must stay empty: pairs of pods that serve as the same rank at the same time."""
        self.attempts: dict[str, set[int]] = defaultdict(set)
        """Of each job, the attempts that pods belonged to."""
        self.rescheduled: dict[str, set[int]] = defaultdict(set)
        """Of each job, the attempts that no failure led to: pods had kept off a node that could be
        used again."""
        self.generations: dict[str, dict[int, int]] = defaultdict(dict)
        """Of each job, the newest generation of the group of each attempt."""
        self._alive: dict[str, Seen] = {}

    def names_of(self, job: str) -> set[str]:
        """All names that pods of a job ever had."""
        prefix = f"{job}-"
        return {name for name in self.uids if name.startswith(prefix)}

    def begin(self) -> None:
        """Forget which pods were alive: all that are follow."""
        self._alive.clear()

    def gone(self, manifest: dict[str, Any]) -> None:
        """Record that a pod was deleted."""
        self._alive.pop(manifest["metadata"]["uid"], None)

    def see(self, manifest: dict[str, Any]) -> None:
        """Record a pod as the API server has it."""
        pod = Seen.of(manifest)
        self.uids[pod.name].add(pod.uid)
        self.attempts[pod.job].add(pod.attempt)
        self._alive[pod.uid] = pod
        same = [
            other.name
            for other in self._alive.values()
            if other.serving
            and (other.job, other.attempt, other.index) == (pod.job, pod.attempt, pod.index)
        ]
        if len(same) > 1:
            self.doubles.add(" and ".join(sorted(same)))

    def see_job(self, manifest: dict[str, Any]) -> None:
        """Record the status of a job."""
        name = manifest["metadata"]["name"]
        status = DDPJobStatus.model_validate(manifest.get("status", {}))
        restarting = status.condition("Restarting")
        generations = self.generations[name]
        is_new = status.attempt > max(generations, default=0)
        if is_new and restarting and restarting.reason == RESCHEDULED:
            self.rescheduled[name].add(status.attempt)
        generations[status.attempt] = status.world.generation if status.world else 0


class MemoryRecord:
    """The statuses of memory checkpoints that jobs had, as soon as a watch saw them."""

    def __init__(self) -> None:
        self.sightings: dict[str, list[Sighting]] = defaultdict(list)
        """By job, in order."""

    def see(self, manifest: dict[str, Any]) -> None:
        """Add the status of a job if it is another one than before."""
        status = DDPJobStatus.model_validate(manifest.get("status", {}))
        sightings = self.sightings[manifest["metadata"]["name"]]
        record = status.memory_checkpoint
        if record and (not sightings or sightings[-1].record != record):
            sightings.append(Sighting(time.time(), record))


@contextmanager
def _followed(
    client: ApiClient,
    path: str,
    *,
    see: Callable[[dict[str, Any]], None],
    begin: Callable[[], None] = lambda: None,
    gone: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Iterator[None]:
    """List and watch in the background; a broken watch begins again with a list.

    `path` has a query. `begin`: called before each list.
    """
    stop = threading.Event()

    def follow() -> None:
        while not stop.is_set():
            try:
                listed = client.get(path)
                begin()
                for manifest in listed["items"]:
                    see(manifest)
                version = listed["metadata"]["resourceVersion"]
                query = f"watch=1&resourceVersion={version}&timeoutSeconds={_WATCH_SECONDS}"
                for line in client.lines(f"{path}&{query}", timeout_s=_WATCH_SECONDS + 10):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break
                    (gone if event["type"] == "DELETED" else see)(event["object"])
            except (OSError, HTTPException, json.JSONDecodeError):
                time.sleep(_RETRY_SECONDS)

    threading.Thread(target=follow, daemon=True).start()
    try:
        yield
    finally:
        stop.set()  # the thread ends with its watch, or with the process


@contextmanager
def recording_memory(client: ApiClient, namespace: str) -> Iterator[MemoryRecord]:
    """Record the status of memory checkpoints of a namespace's jobs, in the background."""
    record = MemoryRecord()
    with _followed(client, _jobs(namespace), see=record.see):
        yield record


@contextmanager
def recording(client: ApiClient, namespace: str) -> Iterator[Record]:
    """Record a namespace's jobs and their pods, in the background."""
    record = Record()
    pods = f"/api/v1/namespaces/{namespace}/pods?labelSelector={LABEL_JOB_NAME}"
    with (
        _followed(client, pods, see=record.see, begin=record.begin, gone=record.gone),
        _followed(client, _jobs(namespace), see=record.see_job),
    ):
        yield record


def _jobs(namespace: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/ddpjobs?limit=500"
