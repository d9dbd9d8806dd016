"""The API server: what is stored about one job name, with versions, watches and Kubernetes' rules.

Stored manifests are never changed in place, so that events may share them.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from ddp_operator.api.constants import LABEL_JOB_NAME
from ddp_operator.api.node_signals import DEFAULT_RULES, read_node
from ddp_operator.api.values.bounded import format_time
from ddp_operator.ports import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    Key,
    Manifest,
    Node,
    NotFoundError,
)

from tests.good_manifests import job as job_manifest
from tests.mergepatch import merged
from tests.simulation.clock import Clock
from tests.simulation.world.admission import tolerating_gpus
from tests.simulation.world.fleet import ROOMY, Fleet
from tests.simulation.world.kubelet import is_over, trainer_of
from tests.simulation.world.nodes import boot_id_of, is_leaving

JOB = Key("research", "digits")

POD_GRACE_SECONDS = 30

REFUSED_IMAGE = " "
"""Of pods that the API server will never accept."""


class Judge(Protocol):
    """Told of each write of an operator once it has taken effect."""

    def pod_created(self, pod: Manifest) -> None: ...
    def pod_changed(self) -> None: ...
    def pod_deleted(self, pod: Manifest) -> None: ...
    def pod_removed(self, pod: Manifest) -> None: ...
    def status_written(self, before: Manifest, after: Manifest) -> None: ...
    def job_deleted(self, job: Manifest) -> None: ...


class ApiServer:
    """Objects and their events; refuses requests that Kubernetes refuses."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._version = 100
        self.judge: Judge
        self.job: Manifest | None = None
        self.pods: dict[Key, Manifest] = {}
        self.node_manifests: dict[str, Manifest] = {}
        self.nodes: dict[str, Node] = {}
        """The same as the operator keeps them."""
        self.changed_at: dict[str, float] = {}
        """When each node last changed."""
        self.pod_changed_at: dict[Key, float] = {}
        self.leaving: dict[str, set[str]] = defaultdict(set)
        """By node: the boot IDs with which it reported that it is about to go."""
        self.service: Manifest | None = None
        self.secrets: dict[str, Manifest] = {}
        self.policy: Manifest | None = None
        self.gang: Manifest | None = None
        self.delivered: set[tuple[str, int]] = set()
        """UIDs and generations of jobs that an operator has received."""
        self.on_job: Callable[[str, Manifest], None] = _nobody
        self.on_pod: Callable[[str, Manifest], None] = _nobody
        self.on_nodes: Callable[[], object] = lambda: None
        self.mutate: Callable[[Manifest], Manifest] = lambda pod: pod
        """Mutating webhooks and LimitRanges."""
        self.fleet: Fleet
        self.use(ROOMY)

    @property
    def version(self) -> int:
        """The latest resourceVersion."""
        return self._version

    def found_job(self) -> Manifest:
        """The job; raises `NotFoundError` when there is none."""
        if self.job is None:
            raise NotFoundError(f"ddpjobs {JOB.name} not found", status=404)
        return self.job

    def use(self, fleet: Fleet) -> None:
        """Have the nodes of this cluster."""
        self.fleet = fleet
        for name in self.node_manifests.keys() - fleet.nodes.keys():
            del self.node_manifests[name], self.nodes[name]
        for node in fleet.nodes.values():
            self.put_node(node)

    # The operator's requests

    def put_node(self, manifest: Manifest) -> None:
        """Store what a node reports."""
        name = manifest["metadata"]["name"]
        if is_leaving(manifest):
            self.leaving[name].add(boot_id_of(manifest))
        if manifest != self.node_manifests.get(name):
            self.changed_at[name] = self._clock.seconds
        self.node_manifests[name] = manifest
        self.nodes[name] = read_node(manifest, DEFAULT_RULES)
        self.on_nodes()

    def create_pod(self, manifest: Manifest) -> Manifest:
        key = _key(manifest)
        if key in self.pods:
            raise AlreadyExistsError(f"pods {key.name} already exists", status=409)
        if trainer_of(manifest)["image"] == REFUSED_IMAGE:
            text = "spec.containers[0].image: Required value"
            raise InvalidError(text, status=422, permanent=True)
        admitted = tolerating_gpus(self.mutate({**manifest, "status": {"phase": "Pending"}}))
        created = self.store_pod(admitted)
        self.judge.pod_created(created)
        return created

    def store_pod(self, manifest: Manifest) -> Manifest:
        """Add a pod."""
        version = self._next_version()
        metadata = {
            **manifest["metadata"],
            "uid": f"pod-{version}",
            "creationTimestamp": format_time(self._clock.now()),
        }
        created = {**manifest, "metadata": metadata}
        return self._put_pod("ADDED", _key(manifest), created, version)

    def delete_pod(self, key: Key, *, grace_seconds: int | None) -> Manifest:
        self.found_pod(key)
        deleted = self.end_pod(key, grace_seconds=grace_seconds)
        self.judge.pod_deleted(deleted)
        return deleted

    def delete_pods(
        self, labels: Mapping[str, Sequence[str]], *, grace_seconds: int | None, most: int | None
    ) -> list[Manifest]:
        """Delete the pods with these labels one after the other, of which a broken request reaches
        only `most`. Return them as they were before.
        """
        listed = [
            pod
            for pod in self.pods.values()
            if all(pod["metadata"]["labels"].get(name) in labels[name] for name in labels)
        ]
        for pod in listed[:most]:
            self.delete_pod(_key(pod), grace_seconds=grace_seconds)
        return listed

    def end_pod(self, key: Key, *, grace_seconds: int | None = None) -> Manifest:
        """Request a pod's end. One that has no node, or that has ended, is gone at once."""
        pod = self.found_pod(key)
        if "deletionTimestamp" not in pod["metadata"]:
            grace = POD_GRACE_SECONDS if grace_seconds is None else grace_seconds
            due = self._clock.now() + timedelta(seconds=grace)
            metadata = {
                **pod["metadata"],
                "deletionTimestamp": format_time(due),
                "deletionGracePeriodSeconds": grace,
            }
            pod = self.change_pod(key, {**pod, "metadata": metadata})
        if is_over(pod) or not pod["spec"].get("nodeName"):
            self.remove_pod(key)
        return pod

    def patch_pod_labels(self, key: Key, labels: Mapping[str, str | None]) -> Manifest:
        pod = self.found_pod(key)
        metadata = {**pod["metadata"], "labels": merged(pod["metadata"]["labels"], labels)}
        changed = self.change_pod(key, {**pod, "metadata": metadata})
        self.judge.pod_changed()
        return changed

    def create_service(self, manifest: Manifest) -> Manifest:
        if self.service is not None:
            raise AlreadyExistsError(f"services {JOB.name} already exists", status=409)
        self.service = manifest
        return manifest

    def create_secret(self, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        if name in self.secrets:
            raise AlreadyExistsError(f'secrets "{name}" already exists', status=409)
        self.secrets[name] = manifest

    def apply(self, manifest: Manifest) -> None:
        kind = manifest["kind"]
        stored = {"NetworkPolicy": self.policy, "PodGroup": self.gang}[kind]
        if stored is not None and owner_of(stored) != owner_of(manifest):
            raise AlreadyExistsError(f"{kind} {JOB.name} already exists", status=409)
        if kind == "PodGroup":
            self.gang = manifest
        else:
            self.policy = manifest

    def delete_network_policy(self, owner_uid: str) -> None:
        if self.policy is not None and owner_of(self.policy) == owner_uid:
            self.policy = None

    def patch_status(self, patch: Manifest, *, resource_version: str | None) -> Manifest:
        job = self.found_job()
        if resource_version not in (None, job["metadata"]["resourceVersion"]):
            raise ConflictError("the job has changed", status=409)
        status = merged(job.get("status") or {}, patch)
        if status == (job.get("status") or {}):
            return job
        written = self._put_job("MODIFIED", {**job, "status": status})
        self.judge.status_written(job, written)
        return written

    def delete_job_of(self, uid: str) -> None:
        job = self.found_job()
        if job["metadata"]["uid"] != uid:
            raise ConflictError("the UID in the precondition does not match", status=409)
        self.judge.job_deleted(job)
        self.remove_job()

    # Users, kubelets and controllers

    def create_job(self, spec: Mapping[str, Any]) -> None:
        """A user applies a job."""
        version = self._version + 1
        manifest = job_manifest(JOB.name, **spec)
        manifest["metadata"] |= {
            "namespace": JOB.namespace,
            "uid": f"job-{version}",
            "generation": 1,
            "creationTimestamp": format_time(self._clock.now()),
        }
        self._put_job("ADDED", manifest)

    def edit_job(self, changes: Mapping[str, Any]) -> None:
        """A user changes a job's spec."""
        job = self.found_job()
        spec = {**job["spec"], **changes}
        if spec != job["spec"]:
            metadata = {**job["metadata"], "generation": job["metadata"]["generation"] + 1}
            self._put_job("MODIFIED", {**job, "metadata": metadata, "spec": spec})

    def remove_job(self) -> None:
        """A job goes; what it owns is left to the garbage collector."""
        job, self.job = self.found_job(), None
        self.on_job("DELETED", self._versioned(job, self._next_version()))

    def collect_garbage(self) -> None:
        """End what belongs to a job that is gone."""
        alive = {self.job["metadata"]["uid"]} if self.job else set()
        if self.service and owner_of(self.service) not in alive:
            self.service = None
        if self.policy and owner_of(self.policy) not in alive:
            self.policy = None
        if self.gang and owner_of(self.gang) not in alive:
            self.gang = None
        for key, pod in list(self.pods.items()):
            if owner_of(pod).startswith("job-") and owner_of(pod) not in alive:
                self.end_pod(key)

    def remove_foreign_pods(self) -> None:
        """Remove the pods of nobody."""
        for key, pod in list(self.pods.items()):
            if not owner_of(pod):
                self.remove_pod(key)

    def found_pod(self, key: Key) -> Manifest:
        """A pod; raises `NotFoundError` when there is none of that name."""
        if key not in self.pods:
            raise NotFoundError(f"pods {key.name} not found", status=404)
        return self.pods[key]

    def change_pod(self, key: Key, manifest: Manifest) -> Manifest:
        """Store a pod's new state."""
        return self._put_pod("MODIFIED", key, manifest, self._next_version())

    def remove_pod(self, key: Key) -> None:
        """A pod's object goes."""
        gone = self._versioned(self.pods.pop(key), self._next_version())
        self._tell_pod("DELETED", gone)
        self.judge.pod_removed(gone)

    def _put_job(self, kind: str, manifest: Manifest) -> Manifest:
        self.job = self._versioned(manifest, self._next_version())
        self.on_job(kind, self.job)
        return self.job

    def _put_pod(self, kind: str, key: Key, manifest: Manifest, version: int) -> Manifest:
        stored = self.pods[key] = self._versioned(manifest, version)
        self.pod_changed_at[key] = self._clock.seconds
        self._tell_pod(kind, stored)
        return stored

    def _tell_pod(self, kind: str, pod: Manifest) -> None:
        if LABEL_JOB_NAME in pod["metadata"]["labels"]:  # what the operator's watch selects
            self.on_pod(kind, pod)

    def _versioned(self, manifest: Manifest, version: int) -> Manifest:
        metadata = {**manifest["metadata"], "resourceVersion": str(version)}
        return {**manifest, "metadata": metadata}

    def _next_version(self) -> int:
        self._version += 1
        return self._version


def _nobody(kind: str, manifest: Manifest) -> None:
    """No operator watches."""


def _key(manifest: Manifest) -> Key:
    return Key(manifest["metadata"]["namespace"], manifest["metadata"]["name"])


def owner_of(manifest: Manifest) -> str:
    """UID of the object's controller, empty for an object of nobody."""
    references = manifest["metadata"].get("ownerReferences") or [{"uid": ""}]
    uid: str = references[0]["uid"]
    return uid


def shape_of(job: Manifest) -> str:
    """Return the parts of a spec that shape its pods. An elastic group's size does not."""
    spec = job["spec"]
    replicas = None if spec.get("elastic") else spec["replicas"]
    return repr((spec["template"], replicas, spec.get("overrides")))
