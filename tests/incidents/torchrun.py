"""The same incidents without the operator: torchrun in the pods of an Indexed Job.

This is what a user has who writes the manifests alone. The Job replaces pods and ignores
disruptions, and torchrun restarts processes. All other settings are the defaults.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.e2e.jobs import script_job
from tests.e2e.kubectl import Manifest
from tests.incidents import training
from tests.incidents.scene import Scene
from tests.incidents.verdict import Training

DEADLINE_SECONDS: Final = 120.0
"""Of each wait for steps, for a pod, or for the end of the job."""
SLOW_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.5
_PORT: Final = 29400
_INDEX: Final = "batch.kubernetes.io/job-completion-index"


class NotFinishedError(Exception):
    """The job has ended, or did not get as far as the incident needs before the deadline."""


class TorchrunScene(Scene):
    """An Indexed Job that trains."""

    kind = "job"
    selector = "batch.kubernetes.io/job-name"

    def pod(self, slot: int) -> Any:
        """Wait for the running pod of an index."""

        def look() -> Any:
            for pod in self.pods():
                metadata = pod["metadata"]
                if metadata["labels"][_INDEX] == str(slot) and (
                    pod["status"]["phase"] == "Running" and "deletionTimestamp" not in metadata
                ):
                    return pod
            return None

        return self._wait(look)

    def wait_for_steps(self, count: int = 10) -> None:
        """Wait until all ranks have trained so many more steps together."""
        goal = max(self.log.last()) + count
        self._wait(lambda: min(self.log.last()) >= goal)

    def wait_until_rank_is_named_slow(self, rank: int) -> None:  # noqa: ARG002
        """Wait for a while: nothing names it."""
        time.sleep(SLOW_SECONDS)

    def outcome(self) -> str:
        """Let the incident happen; return the verdict in a few words."""
        with suppress(NotFinishedError):
            self.incident.inject(self)
            self._wait(self._end)
        end, now = self._end(), time.time()
        seen = Training(steps=self.steps(), last_step=self.incident.steps)
        seconds = seen.seconds_without_step(until=now if end is None else 0)
        verdict = {
            "Complete": "; ".join(seen.complaints_about_steps()) or "finished",
            "Failed": "failed",
            None: f"not finished after {DEADLINE_SECONDS:.0f} s",
        }[end]
        return f"{verdict}; {seconds:.0f} s without a step"

    def manifests(self) -> list[Manifest]:
        """Return the Job, and the Service that gives its pods names."""
        incident = self.incident
        name, replicas = incident.name, incident.replicas
        command = (
            f"torchrun --nnodes={replicas} --nproc-per-node=1 --max-restarts=3 --rdzv-id={name} "
            f"--rdzv-backend=c10d --rdzv-endpoint={name}-0.{name}:{_PORT} /tmp/script.py"
        )
        script = Path(training.__file__).read_text()
        pod: Any = script_job(name, script, command)["spec"]["template"]["spec"]
        pod |= {"restartPolicy": "Never", "subdomain": name}
        pod["volumes"] = [
            {"name": "tmp", "emptyDir": {}},
            {"name": "trace", "persistentVolumeClaim": {"claimName": self.trace_claim}},
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": name}},
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
        disruption = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {
                "completionMode": "Indexed",
                "completions": replicas,
                "parallelism": replicas,
                "podFailurePolicy": {"rules": [disruption]},
                "template": {"spec": pod},
            },
        }
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {self.selector: name},
            },
        }
        return [service, job]

    def wait_until_running(self) -> None:
        """Do nothing: the first steps say that it runs."""

    def _end(self) -> str | None:
        status = self.kubectl.get("job", self.incident.name).get("status", {})
        ends = {
            condition["type"]
            for condition in status.get("conditions", ())
            if condition["status"] == "True"
        }
        return next(iter(ends & {"Complete", "Failed"}), None)

    def _wait(self, look: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            if found := look():
                return found
            if self._end():
                break
            time.sleep(_POLL_SECONDS)
        raise NotFinishedError
