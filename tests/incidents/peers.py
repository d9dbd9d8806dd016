"""JobSets and TrainJobs. Both restart all Jobs of a set when one fails, up to three times, and
torchrun starts the process of each pod.
"""

from __future__ import annotations

from typing import Any, Final

from tests.e2e.kubectl import Manifest
from tests.incidents.others import PORT, OtherScene

_JOBSET_API: Final = "jobset.x-k8s.io/v1alpha2"
_TRAINER_API: Final = "trainer.kubeflow.org/v1alpha1"
_REPLICATED: Final = "node"
"""The replicated job, and in a runtime the container too: Trainer changes what has this name."""
_MAX_RESTARTS: Final = 3


class JobSetScene(OtherScene):
    """A JobSet that trains."""

    kind = "jobset"
    selector = "jobset.sigs.k8s.io/jobset-name"
    succeeded = "Completed"

    def command(self) -> str:
        """Read all of torchrun's options from the environment."""
        return "torchrun /tmp/script.py"

    def manifests(self) -> list[Manifest]:
        """Return the JobSet."""
        name = self.incident.name
        pod = self.template()
        [container] = pod["containers"]
        index = {"fieldRef": {"fieldPath": f"metadata.labels['{self.index}']"}}
        container["env"] += [
            {"name": "PET_NNODES", "value": str(self.incident.replicas)},
            {"name": "PET_NPROC_PER_NODE", "value": "1"},
            {"name": "PET_NODE_RANK", "valueFrom": index},
            {"name": "PET_MASTER_ADDR", "value": f"{name}-{_REPLICATED}-0-0.{name}"},
            {"name": "PET_MASTER_PORT", "value": str(PORT)},
        ]
        return [_object(_JOBSET_API, "JobSet", name, self._job_set(pod))]

    def _job_set(self, pod: Any, **metadata: Any) -> Manifest:
        job = {"metadata": metadata, "spec": self.indexed_job(pod, backoffLimit=0)}
        return {
            "failurePolicy": {"maxRestarts": _MAX_RESTARTS},
            "network": {"publishNotReadyAddresses": True},
            "replicatedJobs": [{"name": _REPLICATED, "template": job}],
        }


class TrainJobScene(JobSetScene):
    """A TrainJob of torch's that trains; its runtime has the pod."""

    kind = "trainjob"
    succeeded = "Complete"

    def manifests(self) -> list[Manifest]:
        """Return the runtime and the TrainJob."""
        name, replicas = self.incident.name, self.incident.replicas
        pod = self.template()
        pod["containers"][0]["name"] = _REPLICATED
        labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
        runtime = _object(
            _TRAINER_API,
            "TrainingRuntime",
            name,
            {
                "mlPolicy": {"numNodes": replicas, "torch": {}},
                "template": {"spec": self._job_set(pod, labels=labels)},
            },
        )
        runtime["metadata"]["labels"] = {"trainer.kubeflow.org/framework": "torch"}
        reference = {"name": name, "kind": "TrainingRuntime"}
        spec = {"runtimeRef": reference, "trainer": {"numNodes": replicas}}
        return [runtime, _object(_TRAINER_API, "TrainJob", name, spec)]


def _object(api: str, kind: str, name: str, spec: Any) -> Manifest:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}
