"""A model of MultiKueue: it copies Workloads and jobs to another cluster, and their status back.

It follows `reconcileGroup` in pkg/controller/admissionchecks/multikueue/workload.go and
externalframeworks/adapter.go of https://github.com/kubernetes-sigs/kueue (0.17).
"""

from collections.abc import Callable, MutableMapping
from copy import deepcopy
from datetime import timedelta
from typing import Any, Final

from ddp_operator.ports import Key, Manifest

from tests.simulation.kueue import Json, Kueue, condition, holds

CHECK: Final = "elsewhere"
_PREBUILT: Final = "kueue.x-k8s.io/prebuilt-workload-name"
"""An annotation; before 0.18 it was a label."""
_ORIGIN: Final = {"kueue.x-k8s.io/multikueue-origin": "multikueue"}
_ON_MANAGER: Final = "EvictedOnManagerCluster"
_WORKER_LOST: Final = timedelta(minutes=5)
"""How long a Workload without its copy stays admitted: the connection may be lost."""
_MOST_STEPS: Final = 50


class Cluster:
    """A cluster with Kueue and jobs."""

    def __init__(self, kueue: Kueue, jobs: MutableMapping[Key, Json]) -> None:
        self.kueue = kueue
        self.jobs = jobs
        self.store_job: Callable[[Manifest], Any] = self._store

    def _store(self, job: Manifest) -> None:
        self.jobs[_key(job)] = deepcopy(dict(job))

    def remove(self, workload: Key, job: Key) -> None:
        """Delete a job's copy and its Workload."""
        self.jobs.pop(job, None)
        self.kueue.workloads.pop(workload, None)
        for key, pod in self.kueue.pods.items():
            owners = pod["metadata"].get("ownerReferences") or ()
            if any((owner["kind"], owner["name"]) == ("DDPJob", job.name) for owner in owners):
                self.kueue.delete_pod(key)


class MultiKueue:
    """MultiKueue with one other cluster, the worker."""

    def __init__(self, manager: Cluster, worker: Cluster) -> None:
        self._manager, self._worker = manager, worker
        self._jobs: dict[Key, Key] = {}
        """The job of each Workload, also after the Workload is gone."""

    def settle(self) -> None:
        """Let both clusters and MultiKueue work until nothing changes any more."""
        for _ in range(_MOST_STEPS):
            before = self._state()
            for key, workload in self._manager.kueue.workloads.items():
                owners = workload["metadata"].get("ownerReferences") or ()
                for owner in owners:
                    if owner["kind"] == "DDPJob":
                        self._jobs[key] = Key(key.namespace, owner["name"])
            for key, job in self._jobs.items():
                self._reconcile(key, job)
            self._manager.kueue.settle()
            self._worker.kueue.settle()
            if before == self._state():
                return
        raise AssertionError("MultiKueue's model does not come to rest")

    def _state(self) -> str:
        clusters = (self._manager, self._worker)
        return repr([(one.kueue.workloads, one.kueue.pods, one.jobs) for one in clusters])

    def _reconcile(self, key: Key, job: Key) -> None:
        local = self._manager.kueue.workloads.get(key)
        remote = self._worker.kueue.workloads.get(key)
        if local is None or holds(local, "Finished") or not holds(local, "QuotaReserved"):
            self._worker.remove(key, job)
            return
        [check] = local["status"]["admissionChecks"]
        if remote is None:
            now = self._manager.kueue.clock()
            if check["state"] == "Pending":
                self._copy_workload(local)
            elif check["state"] == "Ready" and now >= check["since"] + _WORKER_LOST:
                check["state"] = "Retry"
            return
        if holds(remote, "Finished"):
            self._sync_job(key, job)
            finished = condition(remote, "Finished")
            self._manager.kueue.finish(local, finished["reason"], finished["message"])
            return
        evicted = condition(remote, "Evicted")
        if evicted["status"] == "True":
            if evicted["reason"] == f"DeactivatedDueTo{_ON_MANAGER}":
                self._sync_job(key, job)
                return
            if check["state"] == "Ready":
                check["state"] = "Retry"
                return
        if not self._is_in_sync(local, remote):
            self._worker.remove(key, job)
        elif holds(remote, "Admitted"):
            if holds(local, "Evicted"):
                self._worker.kueue.deactivate(remote, _ON_MANAGER)
                return
            self._sync_job(key, job)
            if check["state"] == "Pending":
                check |= {"state": "Ready", "since": self._manager.kueue.clock()}
                local["status"]["clusterName"] = "worker"

    def _copy_workload(self, local: Json) -> None:
        metadata = local["metadata"]
        copied = {name: metadata[name] for name in ("namespace", "name", "annotations")}
        self._worker.kueue.create_workload(
            {"metadata": {**copied, "labels": _ORIGIN}, "spec": local["spec"]}
        )

    def _is_in_sync(self, local: Json, remote: Json) -> bool:
        if local["spec"] == remote["spec"]:
            return True
        if local["spec"]["priority"] == remote["spec"]["priority"]:
            return False
        remote["spec"]["priority"] = local["spec"]["priority"]
        return True

    def _sync_job(self, workload: Key, job: Key) -> None:
        """Create the job's copy, or replace the job's whole status by that of its copy."""
        local, remote = self._manager.jobs.get(job), self._worker.jobs.get(job)
        if local is None:
            return
        if remote is None:
            annotations = local["metadata"].get("annotations") or {}
            labels = local["metadata"].get("labels") or {}
            metadata = {
                **local["metadata"],
                "uid": f"{local['metadata']['uid']}-copy",
                "annotations": {**annotations, _PREBUILT: workload.name},
                "labels": {**labels, **_ORIGIN},
            }
            spec = {name: value for name, value in local["spec"].items() if name != "managedBy"}
            self._worker.store_job({**local, "metadata": metadata, "spec": spec, "status": {}})
        elif "status" in remote and remote["status"] != local.get("status"):
            self._manager.store_job({**local, "status": deepcopy(remote["status"])})


def _key(stored: Manifest) -> Key:
    return Key(stored["metadata"]["namespace"], stored["metadata"]["name"])
