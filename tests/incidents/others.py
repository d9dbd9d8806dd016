"""The same incidents without the operator: a plain script that other controllers run.

This is what a user has who writes the manifests alone. All other settings are the defaults.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from tests.e2e.jobs import script_job
from tests.e2e.kubectl import Manifest
from tests.incidents import training
from tests.incidents.scene import Scene, SpoiledError
from tests.incidents.verdict import Training

DEADLINE_SECONDS: Final = 120.0
"""Without a further step, of each wait for steps, for a pod, or for the end of the job."""
SLOW_SECONDS: Final = 20.0
MISSED_CLAIM_SECONDS: Final = 10.0
PORT: Final = 29400
_POLL_SECONDS: Final = 0.5


class NotFinishedError(Exception):
    """The job has ended, or trained no further before the deadline."""


@dataclass(frozen=True)
class Outcome:
    """What became of a job."""

    verdict: str
    """Empty if it has finished and each rank trained each step."""
    seconds_without_step: float

    def text(self) -> str:
        """Return the cell of the table."""
        seconds = f"{self.seconds_without_step:.0f}"
        return f"{self.verdict}, {seconds}" if self.verdict else seconds


class OtherScene(Scene):
    """A job of another controller that trains."""

    index = "batch.kubernetes.io/job-completion-index"
    plain = True
    succeeded: ClassVar[str]
    """The condition of a job that has succeeded."""

    def pod(self, slot: int) -> Any:
        """Wait for the running pod of an index."""

        def look() -> Any:
            for pod in self.pods():
                metadata = pod["metadata"]
                if metadata["labels"][self.index] == str(slot) and (
                    pod["status"]["phase"] == "Running" and "deletionTimestamp" not in metadata
                ):
                    return pod
            return None

        return self.wait(look)

    def wait_for_steps(self, count: int = 10) -> None:
        """Wait until all ranks have trained so many more steps together."""
        goal = max(self.log.last()) + count
        self.wait(lambda: min(self.log.last()) >= goal)

    def wait_until_running(self) -> None:
        """Do nothing: the first steps say that it runs."""

    def wait_until_rank_is_named_slow(self, rank: int) -> None:  # noqa: ARG002
        """Wait for a while: nothing names it."""
        time.sleep(SLOW_SECONDS)

    def wait_until_claim_is_missed(self) -> None:
        """Wait for a while: nothing says so."""
        time.sleep(MISSED_CLAIM_SECONDS)

    def outcome(self) -> Outcome:
        """Let the incident happen, and return what becomes of the job."""
        spoiled = ""
        with suppress(NotFinishedError):
            try:
                self.incident.inject(self)
            except SpoiledError as error:
                spoiled = str(error)
            self.wait(self._end)
        end, now = self._end(), time.time()
        seen = Training(steps=self.steps(), last_step=self.incident.steps)
        seconds = seen.seconds_without_step(until=now if end is None else 0)
        if end == self.succeeded:
            return Outcome("; ".join(seen.complaints_about_steps()) or spoiled, seconds)
        return Outcome("failed" if end else "not finished", seconds)

    def wait(self, look: Callable[[], Any], *, what: str = "") -> Any:  # noqa: ARG002
        """Wait as long as the job has not ended, and trains further before each deadline."""
        trained, deadline = self.log.last(), time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            if found := look():
                return found
            if self._end():
                break
            if (steps := self.log.last()) != trained:
                trained, deadline = steps, time.monotonic() + DEADLINE_SECONDS
            time.sleep(_POLL_SECONDS)
        raise NotFinishedError

    @abstractmethod
    def command(self) -> str:
        """Return the command of each pod, which runs /tmp/script.py."""

    def template(self) -> Any:
        """Return the spec of each pod."""
        incident = self.incident
        script = Path(training.__file__).read_text()
        job: Any = script_job(incident.name, script, self.command())
        pod = job["spec"]["template"]["spec"]
        pod |= {"restartPolicy": "Never"}
        pod["volumes"] = [
            {"name": "tmp", "emptyDir": {}},
            {"name": "trace", "persistentVolumeClaim": {"claimName": self.trace_claim}},
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": incident.name}},
        ]
        [container] = pod["containers"]
        container["volumeMounts"] = [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "trace", "mountPath": str(training.TRACE)},
            {"name": "checkpoints", "mountPath": "/checkpoints"},
        ]
        container["env"] += [
            {"name": "STEPS", "value": str(incident.steps)},
            {"name": "DDP_CHECKPOINT_DIR", "value": "/checkpoints"},
            {"name": "DDP_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            # Otherwise restarted ranks read the addresses of their predecessors (pytorch#135712).
            {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"},
        ]
        return pod

    def indexed_job(self, pod: Any, **spec: Any) -> Manifest:
        """Return the spec of an Indexed Job."""
        replicas = self.incident.replicas
        return {
            "completionMode": "Indexed",
            "completions": replicas,
            "parallelism": replicas,
            "template": {"spec": pod},
            **spec,
        }

    def _end(self) -> str | None:
        status = self.kubectl.get(self.kind, self.incident.name).get("status", {})
        ends = {
            condition["type"]
            for condition in status.get("conditions", ())
            if condition["status"] == "True"
        }
        return next(iter(ends & {self.succeeded, "Failed"}), None)
