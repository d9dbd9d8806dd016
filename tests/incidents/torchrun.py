"""torchrun in the pods of an Indexed Job. The Job replaces pods and ignores disruptions, and
torchrun restarts processes.
"""

from __future__ import annotations

from tests.e2e.kubectl import Manifest
from tests.incidents.others import PORT, OtherScene


class TorchrunScene(OtherScene):
    """An Indexed Job that trains."""

    kind = "job"
    selector = "batch.kubernetes.io/job-name"
    succeeded = "Complete"

    def command(self) -> str:
        """Let the ranks of all pods meet at the first one."""
        name = self.incident.name
        return (
            f"torchrun --nnodes={self.incident.replicas} --nproc-per-node=1 --max-restarts=3 "
            f"--rdzv-id={name} --rdzv-backend=c10d --rdzv-endpoint={name}-0.{name}:{PORT} "
            "/tmp/script.py"
        )

    def manifests(self) -> list[Manifest]:
        """Return the Job, and the Service that gives its pods names."""
        name = self.incident.name
        pod = {**self.template(), "subdomain": name}
        disruption = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": self.indexed_job(pod, podFailurePolicy={"rules": [disruption]}),
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
