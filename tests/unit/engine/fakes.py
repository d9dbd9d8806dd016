"""A cluster in memory that fails on demand, and trainers without reports."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from ddp_operator.api.constants import LABEL_JOB_UID
from ddp_operator.api.values.merge_patch import merge_patch
from ddp_operator.engine.pod_settings import PodSettings
from ddp_operator.engine.tokens.access import Access
from ddp_operator.job.pods.projection import job_of, project
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    Event,
    InvalidError,
    Key,
    Manifest,
    Node,
    Nodes,
    NotFoundError,
    UnavailableError,
)
from ddp_protocol.world import GroupAssignment, WorldAnswer

from tests.mergepatch import merged

_IMMUTABLE = ("priorityClassName", "priority", "disruptionMode", "schedulingConstraints")
"""Immutable fields of Kubernetes 1.37's PodGroups (pkg/apis/scheduling/validation)."""

ACCESS = Access(keys={"1": b"operator"})
SETTINGS = PodSettings(access=ACCESS)
TOKEN = ACCESS.token_of("u1", "1")
"""Token of the job in the engine's tests."""


ENDING: Mapping[str, Any] = {
    "deletionTimestamp": "2026-01-01T00:00:30Z",
    "deletionGracePeriodSeconds": 30,
}
"""Metadata of a pod that was deleted when the engine's tests begin."""


class FakeCluster:
    """Implements `ports.Cluster`; `refuse` maps a call's name to the error that it raises."""

    def __init__(self) -> None:
        self.jobs: dict[Key, dict[str, Any]] = {}
        self.pods: dict[Key, dict[str, Any]] = {}
        self.services: dict[Key, dict[str, Any]] = {}
        self.secrets: dict[Key, dict[str, Any]] = {}
        self.applied: dict[str, dict[Key, dict[str, Any]]] = {}
        """Other objects, by kind."""
        self.boosts: dict[Key, int | None] = {}
        """Priority boosts of the Workloads; None: not set."""
        self.node_list: list[Node] = []
        self.events: list[Event] = []
        self.graces: dict[Key, int | None] = {}
        self.calls: list[str] = []
        self.tell: Callable[[Key], None] = lambda _: None
        """Called with the job of a deleted pod, like a watch."""
        self.refuse: dict[str, ClusterError] = {}
        self.lose_answers: set[str] = set()
        self.lost_fields: set[str] = set()
        """Fields of the status that the CRD lacks, such as `world.lost`."""
        self.log: bytes | ClusterError = b""
        """The output of every pod."""
        self.logs_read: list[tuple[str, str]] = []
        self._version = 0

    def store_job(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        job = deepcopy(dict(manifest))
        job["metadata"] = {**job["metadata"], "resourceVersion": self._next_version()}
        self.jobs[_key(job)] = job
        return deepcopy(job)

    def set_pod_status(self, name: str, status: Mapping[str, Any]) -> None:
        """Report a pod's status, as the kubelet of its node does."""
        pod = self.pods[Key("default", name)]
        pod["spec"].setdefault("nodeName", "node-a")
        pod["status"] = dict(status)

    def pods_of(self, job: Key) -> list[PodState]:
        return [project(pod) for pod in self.pods.values() if job_of(pod) == job]

    def nodes(self) -> Nodes:
        return Nodes(self.node_list)

    async def create_pod(self, manifest: Manifest) -> None:
        self._called("create_pod", manifest["metadata"]["name"])
        self._create(self.pods, manifest)

    async def create_service(self, manifest: Manifest) -> None:
        self._called("create_service", manifest["metadata"]["name"])
        self._create(self.services, manifest)

    async def create_secret(self, manifest: Manifest) -> None:
        self._called("create_secret", manifest["metadata"]["namespace"])
        self.secrets.setdefault(_key(manifest), deepcopy(dict(manifest)))

    async def apply(self, manifest: Manifest) -> None:
        self._called(f"apply {manifest['kind']}", manifest["metadata"]["name"])
        applied = self.applied.setdefault(manifest["kind"], {})
        self._create(applied, manifest)
        before = applied[_key(manifest)]
        if manifest["apiVersion"] == "scheduling.k8s.io/v1beta1" and any(
            before["spec"].get(name) != manifest["spec"].get(name) for name in _IMMUTABLE
        ):
            raise InvalidError("spec: field is immutable", status=422, permanent=True)
        if manifest["kind"] != "ComputeDomain":  # immutable
            applied[_key(manifest)] = deepcopy(dict(manifest))

    async def read(self, named: Manifest) -> Manifest:
        kind, name = named["kind"], named["metadata"]["name"]
        self._called(f"read {kind}", name)
        key = Key(named["metadata"].get("namespace", ""), name)
        if key not in self.applied.get(kind, {}):
            raise NotFoundError(f"no {kind} {name}", status=404)
        return self.applied[kind][key]

    async def find(self, like: Manifest, *, labels: Mapping[str, str]) -> Sequence[Manifest]:
        kind, namespace = like["kind"], (like.get("metadata") or {}).get("namespace")
        if (name := f"find {kind}") in self.refuse:
            raise self.refuse[name]
        stored = self.pods if kind == "Pod" else self.applied.get(kind, {})
        return [
            deepcopy({"apiVersion": like["apiVersion"], "kind": kind, "metadata": one["metadata"]})
            for key, one in stored.items()
            if namespace in (None, key.namespace)
            and all(
                value in ("", one["metadata"]["labels"].get(label))
                and label in one["metadata"]["labels"]
                for label, value in labels.items()
            )
        ]

    async def update(self, changed: Manifest) -> Manifest:
        kind, key = changed["kind"], _key(changed)
        self._called(f"update {kind}", key.name)
        stored = self.applied[kind][key] = deepcopy(dict(changed))
        return stored

    async def patch_status_of(self, stored: Manifest, status: Manifest) -> None:
        kind, key = stored["kind"], _key(stored)
        self._called(f"patch_status_of {kind}", key.name)
        known = self.applied[kind][key]
        known["status"] = merged(known.get("status") or {}, status)

    async def delete(self, stored: Manifest) -> None:
        self._called(f"delete {stored['kind']}", stored["metadata"]["name"])
        self.applied[stored["kind"]].pop(_key(stored), None)

    async def set_priority_boost(self, workload: Key, boost: int) -> None:
        self._called("set_priority_boost", f"{workload.name} {boost}")
        if workload not in self.boosts:
            raise NotFoundError("no such Workload", status=404)
        self.boosts[workload] = boost

    async def delete_network_policy(self, policy: Key, *, owner_uid: str) -> None:
        self._called("delete_network_policy", policy.name)
        policies = self.applied.get("NetworkPolicy", {})
        if policy in policies:
            assert policies.pop(policy)["metadata"]["ownerReferences"][0]["uid"] == owner_uid

    def uid_of(self, pod: Key) -> str | None:
        stored = self.pods.get(pod)
        return stored["metadata"].get("uid") if stored else None

    async def delete_pod(
        self, pod: Key, *, grace_seconds: int | None, uid: str | None = None
    ) -> None:
        assert uid == self.uid_of(pod)
        self.graces[pod] = grace_seconds
        self._called("delete_pod", pod.name)
        self._end(pod)

    async def delete_pods(
        self,
        pods: Mapping[Key, str | None],
        *,
        labels: Mapping[str, Sequence[str]],
        grace_seconds: int | None,
    ) -> Sequence[Key]:
        if "delete_pod" in self.refuse:
            return tuple(pods)
        self._called("delete_pods", " ".join(pod.name for pod in pods))
        selected = [pod for pod in self.pods if self._has_labels(pod, labels)]
        for pod in selected:
            assert pods[pod] == self.uid_of(pod), "others have these labels"
            self.graces[pod] = grace_seconds
            self._end(pod)
        return [pod for pod in pods if pod not in selected]

    def _has_labels(self, pod: Key, labels: Mapping[str, Sequence[str]]) -> bool:
        own = self.pods[pod]["metadata"]["labels"]
        return all(own.get(name) in values for name, values in labels.items())

    def _end(self, pod: Key) -> None:
        """Request a pod's end; without a finalizer it is gone at once."""
        stored = self.pods.get(pod)
        if stored is not None and stored["metadata"].get("finalizers"):
            stored["metadata"] |= {**ENDING, **stored["metadata"]}
            return
        self.pods.pop(pod, None)
        if stored is not None and (job := job_of(stored)) is not None:
            self.tell(job)

    async def patch_pod(
        self, pod: Key, metadata: Mapping[str, Any], *, uid: str | None = None
    ) -> None:
        assert uid == self.uid_of(pod)
        self._called("patch_pod", pod.name)
        stored = self.pods[pod]["metadata"]
        for field in ("labels", "annotations"):
            stored[field] = merged(stored.get(field) or {}, metadata.get(field) or {})
        removed = metadata.get("$deleteFromPrimitiveList/finalizers") or ()
        kept = [name for name in stored.get("finalizers") or () if name not in removed]
        stored["finalizers"] = kept
        if removed and not kept and "deletionTimestamp" in stored:
            del self.pods[pod]

    async def patch_status(
        self, job: Key, status: Manifest, *, resource_version: str | None
    ) -> Manifest:
        self._called("patch_status", job.name)
        stored = self.jobs.get(job)
        if stored is None:
            raise NotFoundError("no such job", status=404)
        if resource_version not in (None, stored["metadata"]["resourceVersion"]):
            raise ConflictError("the job has changed", status=409)
        status = merged(stored.get("status") or {}, status)
        for path in self.lost_fields:
            *outer, field = path.split(".")
            holder = status
            for name in outer:
                holder = holder.get(name) or {}
            holder.pop(field, None)
        if merge_patch(stored.get("status") or {}, status):
            stored["status"] = status
            stored["metadata"]["resourceVersion"] = self._next_version()
        self._answer("patch_status")
        return deepcopy(stored)

    async def delete_job(self, job: Key, *, uid: str) -> None:
        self._called("delete_job", job.name)
        if self.jobs[job]["metadata"]["uid"] == uid:
            del self.jobs[job]

    async def log_end(self, pod: Key, container: str) -> bytes:
        self.logs_read.append((pod.name, container))
        if isinstance(self.log, ClusterError):
            raise self.log
        return self.log

    async def emit_event(self, job: Manifest, event: Event) -> None:
        del job
        self.events.append(event)

    def _create(self, store: dict[Key, dict[str, Any]], manifest: Manifest) -> None:
        key = _key(manifest)
        if key in store:
            if _owner(store[key]) != _owner(manifest):
                raise AlreadyExistsError(f"{key} has no owner", status=409)
            return
        store[key] = deepcopy(dict(manifest))

    def _called(self, name: str, what: str) -> None:
        self.calls.append(f"{name} {what}")
        if name in self.refuse:
            raise self.refuse[name]

    def _answer(self, name: str) -> None:
        """Answer a call after it took effect, or raise an error."""
        if name in self.lose_answers:
            raise UnavailableError("no answer")

    def _next_version(self) -> str:
        self._version += 1
        return str(self._version)


class FakeTrainers:
    """Implements `ports.Trainers`: no pod reports progress, and other requests are unexpected."""

    async def status(self, address: str) -> bytes | str:
        return f"{address}: nothing to report yet"

    async def dump_stacks(self, address: str, *, token: str) -> bool:
        raise AssertionError((address, token))

    async def traces(self, address: str, *, token: str) -> bytes | str:
        raise AssertionError((address, token))

    async def checkpoint(self, address: str, *, token: str) -> bool:
        raise AssertionError((address, token))

    async def put_world(
        self, address: str, group: GroupAssignment, *, wait_seconds: int, token: str
    ) -> WorldAnswer | None:
        raise AssertionError((address, group, wait_seconds, token))

    async def poll_world(
        self, address: str, *, after: int, wait_seconds: int, lead_seconds: int, token: str
    ) -> bytes | str:
        raise AssertionError((address, after, wait_seconds, lead_seconds, token))

    async def close(self) -> None:
        """Do nothing; nothing is open."""


def _key(manifest: Manifest) -> Key:
    return Key(manifest["metadata"]["namespace"], manifest["metadata"]["name"])


def _owner(manifest: Manifest) -> str | None:
    """Return the UID of an object's controller; of one without, that of its job."""
    metadata = manifest["metadata"]
    if owners := metadata.get("ownerReferences"):
        return str(owners[0]["uid"])
    return (metadata.get("labels") or {}).get(LABEL_JOB_UID)
