"""A model of Kueue: Workloads, pod groups and the quota of one queue, in virtual time.

It follows pkg/webhooks/workload_webhook.go, pkg/controller/core, pkg/controller/jobframework and
pkg/controller/jobs/pod of https://github.com/kubernetes-sigs/kueue (0.17). Each pod costs one unit
of quota. `kueue_contract` has the scenarios that both this model and the real Kueue pass.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from datetime import datetime, timedelta
from typing import Any, Final

from ddp_operator.api.constants import (
    KUEUE_GROUP,
    KUEUE_MANAGED,
    KUEUE_QUEUE,
    KUEUE_RETRIABLE,
)
from ddp_operator.api.values.bounded import format_time
from ddp_operator.ports import ForbiddenError, InvalidError, Key, Manifest

from tests.mergepatch import merged

_GATES: Final = ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology")
_TOTAL: Final = "kueue.x-k8s.io/pod-group-total-count"
_ROLE: Final = "kueue.x-k8s.io/role-hash"
_REQUEUED: Final = ("Preempted", "NodeFailures")
"""Evictions after which a Workload queues again at once."""
_MOST_STEPS: Final = 50
_ADDRESS: Final = "10.0.0.1"

Json = dict[str, Any]


class Kueue:
    """The Kueue of one cluster, with the pods and the kubelet of that cluster."""

    def __init__(
        self, clock: Callable[[], datetime], *, quota: int = 2, check: str | None = None
    ) -> None:
        """`check` is the name of the queue's admission check."""
        self.pods: dict[Key, Json] = {}
        self.workloads: dict[Key, Json] = {}
        self.quota = quota
        self.check = check
        self.runs_pods = True
        """False if no kubelet starts or ends pods."""
        self.exit_code_on_sigterm = 143
        self.clock = clock
        self._numbers = itertools.count(1)

    def create_workload(self, manifest: Manifest) -> None:
        """Create a Workload."""
        workload = deepcopy(dict(manifest))
        workload["metadata"] = {**workload["metadata"], **self._identity()}
        workload["spec"] = {"active": True, "priority": 0, **workload["spec"]}
        workload["status"] = {}
        if self.check:
            workload["status"]["admissionChecks"] = [{"name": self.check, "state": "Pending"}]
        self.workloads[key_of(workload)] = workload

    def update_workload(self, key: Key, spec: Manifest) -> None:
        """Replace fields of a Workload's spec, as far as Kueue's webhook and CRD admit it."""
        stored = self.workloads[key]
        if holds(stored, "QuotaReserved"):
            before, after = (
                stored["spec"]["podSets"],
                spec.get("podSets", stored["spec"]["podSets"]),
            )
            for number, (old, new) in enumerate(zip(before, after, strict=False)):
                if old != new:
                    raise _immutable(f"spec.podSets.{number}")
            if len(before) != len(after):
                raise _immutable("spec.podSets")
            if spec.get("queueName", stored["spec"]["queueName"]) != stored["spec"]["queueName"]:
                message = "queueName is immutable while workload quota reserved"
                raise InvalidError(message, status=422)
        stored["spec"] = {**stored["spec"], **deepcopy(dict(spec))}

    def patch_status(self, key: Key, status: Manifest) -> None:
        """Merge a patch into a Workload's status."""
        self.workloads[key]["status"] = merged(self.workloads[key]["status"], deepcopy(status))

    def delete_workload(self, key: Key) -> None:
        """Delete a Workload. Those of pod groups have a finalizer."""
        workload = self.workloads[key]
        if workload["metadata"].get("ownerReferences", [{}])[0].get("kind") == "Pod":
            workload["metadata"]["deletionTimestamp"] = self._now()
        else:
            del self.workloads[key]

    def create_pod(self, manifest: Manifest) -> None:
        """Create a pod, which waits for Kueue if it names a queue."""
        pod = deepcopy(dict(manifest))
        metadata = pod["metadata"] = {**pod["metadata"], **self._identity()}
        pod["status"] = {"phase": "Pending"}
        if KUEUE_QUEUE in metadata.get("labels", {}):
            metadata["labels"][KUEUE_MANAGED] = "true"
            metadata["finalizers"] = [KUEUE_MANAGED]
            pod["spec"]["schedulingGates"] = [{"name": name} for name in _GATES]
            self._set(pod, "PodScheduled", False, "SchedulingGated")
        self.pods[key_of(pod)] = pod

    def delete_pod(self, key: Key) -> None:
        """Delete a pod. It stays until its kubelet has ended it and no finalizer is left."""
        if pod := self.pods.get(key):
            grace = 30 if _runs(pod) else 0
            ends = format_time(self.clock() + timedelta(seconds=grace))
            deletion = {"deletionTimestamp": ends, "deletionGracePeriodSeconds": grace}
            pod["metadata"] |= {**deletion, **pod["metadata"]}

    def end_pod(self, key: Key, *, exit_code: int, **status: Any) -> None:
        """Report the end of a pod's container, as the kubelet does."""
        ended = {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed"}
        container = {
            "name": self.pods[key]["spec"]["containers"][0]["name"],
            "state": {"terminated": {**ended, "finishedAt": self._now(), **status}},
        }
        phase = "Failed" if exit_code else "Succeeded"
        self.pods[key]["status"] |= {"phase": phase, "containerStatuses": [container]}
        self._set(self.pods[key], "Ready", False, "PodCompleted")

    def settle(self) -> None:
        """Let Kueue and the kubelet work until nothing changes any more."""
        for _ in range(_MOST_STEPS):
            before = repr((self.pods, self.workloads))
            self.step()
            if before == repr((self.pods, self.workloads)):
                return
        raise AssertionError("Kueue's model does not come to rest")

    def step(self) -> None:
        """Let each controller work once."""
        if self.runs_pods:
            self._run_pods()
        self._release_ended_pods()
        for group in sorted(set(filter(None, map(_group_of, self.pods.values())))):
            self._keep_group(group)
        self._collect_workloads()
        for workload in self.workloads.values():
            self._keep_workload(workload)
        self._schedule()

    def evict(self, workload: Json, reason: str, message: str) -> None:
        """Evict a Workload. It keeps its quota until the job's controller gives it back."""
        self._set(workload, "Evicted", True, reason, message)
        workload["status"].pop("clusterName", None)
        for check in workload["status"].get("admissionChecks", ()):
            check["state"] = "Pending"

    def finish(self, workload: Json, reason: str, message: str) -> None:
        """Finish a Workload."""
        self._set(workload, "Finished", True, reason, message)

    def deactivate(self, workload: Json, cause: str) -> None:
        """Have the Workload deactivated because of a cause."""
        self._set(workload, "DeactivationTarget", True, cause)

    @property
    def used(self) -> int:
        """The reserved quota."""
        return sum(map(_size, filter(_uses_quota, self.workloads.values())))

    # Core controllers: Workloads and quota.

    def _keep_workload(self, workload: Json) -> None:
        if holds(workload, "Finished"):
            return
        if workload["spec"]["active"]:
            if holds(workload, "DeactivationTarget"):
                workload["spec"]["active"] = False
                return
            if (requeued := condition(workload, "Requeued"))["status"] == "False":
                reasons = {"Deactivated": "Reactivated", "AdmissionCheck": "BackoffFinished"}
                if reason := reasons.get(requeued["reason"]):
                    self._set(workload, "Requeued", True, reason)
        elif not holds(workload, "Evicted"):
            target = condition(workload, "DeactivationTarget")
            cause = f"DueTo{target['reason']}" if target["status"] == "True" else ""
            self._remove(workload, "DeactivationTarget")
            self.evict(workload, f"Deactivated{cause}", "The workload is deactivated")
            return
        if not holds(workload, "QuotaReserved"):
            return
        checks = [check["state"] for check in workload["status"].get("admissionChecks", ())]
        if not holds(workload, "Admitted") and all(state == "Ready" for state in checks):
            self._set(workload, "Admitted", True, "Admitted")
        if "Retry" in checks and not holds(workload, "Evicted"):
            self.evict(workload, "AdmissionCheck", "At least one admission check is false")

    def _schedule(self) -> None:
        waiting = sorted(filter(_waits, self.workloads.values()), key=_order)
        for workload in waiting:
            lacking = _size(workload) - (self.quota - self.used)
            if lacking > 0:
                unused = f"insufficient unused quota, {lacking} more needed"
                self._set(workload, "QuotaReserved", False, "Pending", unused)
                self._preempt(workload, lacking)
                return
            workload["status"]["admission"] = {"clusterQueue": "queue"}
            self._set(workload, "QuotaReserved", True, "QuotaReserved")
            if holds(workload, "Evicted"):
                self._set(workload, "Evicted", False, "QuotaReserved")

    def _preempt(self, workload: Json, lacking: int) -> None:
        lower = [
            other
            for other in self.workloads.values()
            if _uses_quota(other) and other["spec"]["priority"] < workload["spec"]["priority"]
        ]
        victims: list[Json] = []
        for other in sorted(lower, key=_victims_order):
            if sum(map(_size, victims)) < lacking:
                victims.append(other)
        spare = sum(map(_size, victims)) - lacking
        if spare < 0:
            return
        for victim in victims[-2::-1]:  # the last one is needed
            if (size := _size(victim)) <= spare:
                victims.remove(victim)
                spare -= size
        for victim in victims:
            if not holds(victim, "Evicted"):
                self.evict(victim, "Preempted", "Preempted to accommodate a workload")

    # The controller of pod groups.

    def _keep_group(self, group: Key) -> None:
        pods = sorted(
            (pod for pod in self.pods.values() if _group_of(pod) == group), key=_number_of
        )
        workload = self.workloads.get(group)
        if workload is None:
            self._start_group(group, pods)
            return
        self._own(workload, pods)
        kept = self._without_excess(workload, pods)
        if "deletionTimestamp" in workload["metadata"]:
            self._stop(pods, "WorkloadDeleted", also_suspended=True)
            self._release(pods)
            del self.workloads[group]
        elif holds(workload, "Finished"):
            self._release(pods)
        elif message := _end_of(pods):
            self.finish(workload, "Succeeded", message)
            self._release(pods)
        elif holds(workload, "Evicted"):
            reason = condition(workload, "Evicted")["reason"]
            self._stop(kept, f"WorkloadEvictedDueTo{reason}")
            if holds(workload, "QuotaReserved") and not any(map(_runs, kept)):
                self.give_back(workload)
        elif any(map(_is_suspended, kept)):
            if holds(workload, "Admitted"):
                self._ungate(kept)
        elif not holds(workload, "Admitted"):
            self._stop(kept, "NotAdmitted")

    def _start_group(self, group: Key, pods: list[Json]) -> None:
        if _end_of(pods):
            self._release(pods)
            return
        if not any(map(_is_suspended, pods)):
            self._stop(pods, "NoMatchingWorkload")
        active = [pod for pod in pods if _is_active(pod)]
        self._release(pod for pod in pods if not _is_active(pod))
        total = _total_of(pods)
        if len(active) < total:
            return
        for pod in active[total:]:
            self._remove_pod(pod)
        counts: dict[str, Json] = {}
        for pod in active[:total]:
            role = _role_of(pod)
            pod_set = {"name": role, "count": 0, "template": {"spec": deepcopy(pod["spec"])}}
            counts.setdefault(role, pod_set)["count"] += 1
        pod_sets = [counts[role] for role in sorted(counts)]
        queue = active[0]["metadata"]["labels"][KUEUE_QUEUE]
        metadata = {"namespace": group.namespace, "name": group.name}
        self.create_workload(
            {"metadata": metadata, "spec": {"queueName": queue, "podSets": pod_sets}}
        )
        self._own(self.workloads[group], active)

    def _without_excess(self, workload: Json, pods: list[Json]) -> list[Json]:
        """Delete pods that are too many and release those that are replaced; return the others."""
        kept: list[Json] = []
        for pod_set in workload["spec"]["podSets"]:
            of_role = [pod for pod in pods if _role_of(pod) == pod_set["name"]]
            active = sorted((pod for pod in of_role if _is_active(pod)), key=_is_gated)
            inactive = [pod for pod in of_role if not _is_active(pod)]
            for pod in active[pod_set["count"] :]:
                self._remove_pod(pod)
            replaced = max(len(of_role) - pod_set["count"], 0)
            self._release(inactive[:replaced])
            kept += active[: pod_set["count"]] + inactive[replaced:]
        return kept

    def _stop(self, pods: Iterable[Json], reason: str, *, also_suspended: bool = False) -> None:
        for pod in pods:
            is_suspended = _is_suspended(pod) and not also_suspended
            if not is_suspended and "deletionTimestamp" not in pod["metadata"]:
                self._set(pod, "TerminationTarget", True, reason, "Stopped by Kueue")
                self.delete_pod(key_of(pod))

    def give_back(self, workload: Json) -> None:
        """Give an evicted Workload's quota back, as the job's controller does."""
        evicted = condition(workload, "Evicted")
        requeued = evicted["reason"] in _REQUEUED
        workload["status"].pop("admission", None)
        self._set(workload, "QuotaReserved", False, "Pending", evicted["message"])
        self._set(workload, "Admitted", False, "NoReservation")
        self._set(workload, "Requeued", requeued, evicted["reason"], evicted["message"])

    def _own(self, workload: Json, pods: Iterable[Json]) -> None:
        owners = workload["metadata"].setdefault("ownerReferences", [])
        known = {owner["uid"] for owner in owners}
        for pod in pods:
            if (uid := pod["metadata"]["uid"]) not in known:
                owners.append({"kind": "Pod", "uid": uid})

    def _collect_workloads(self) -> None:
        """Remove the Workloads of groups without pods, as the garbage collector does."""
        present = {pod["metadata"]["uid"] for pod in self.pods.values()}
        for key, workload in [*self.workloads.items()]:
            owners = workload["metadata"].get("ownerReferences", ())
            if owners and all(one["kind"] == "Pod" and one["uid"] not in present for one in owners):
                del self.workloads[key]

    def _ungate(self, pods: Iterable[Json]) -> None:
        for pod in pods:
            if pod["spec"].pop("schedulingGates", None):
                self._remove(pod, "PodScheduled")

    def _release(self, pods: Iterable[Json]) -> None:
        for pod in pods:
            pod["metadata"].pop("finalizers", None)

    def _remove_pod(self, pod: Json) -> None:
        self._release([pod])
        self.delete_pod(key_of(pod))

    # The kubelet and the API server.

    def _run_pods(self) -> None:
        for key, pod in self.pods.items():
            is_deleted = "deletionTimestamp" in pod["metadata"]
            if is_deleted and _runs(pod):
                self.end_pod(key, exit_code=self.exit_code_on_sigterm)
            elif not (is_deleted or _is_gated(pod) or _has_ended(pod) or _runs(pod)):
                self.run_pod(key)

    def run_pod(self, key: Key) -> None:
        """Run a pod, on a node that no other pod had."""
        pod = self.pods[key]
        pod["spec"].setdefault("nodeName", f"node-{_number_of(pod)}")
        container = {
            "name": pod["spec"]["containers"][0]["name"],
            "state": {"running": {"startedAt": self._now()}},
        }
        running = {"phase": "Running", "podIP": _ADDRESS, "containerStatuses": [container]}
        pod["status"] |= running
        self._set(pod, "Ready", True, "")

    def _release_ended_pods(self) -> None:
        for key, pod in [*self.pods.items()]:
            metadata = pod["metadata"]
            is_over = "deletionTimestamp" in metadata and not _runs(pod)
            if is_over and not metadata.get("finalizers"):
                del self.pods[key]

    def _identity(self) -> Json:
        number = next(self._numbers)
        return {"uid": f"{number:04}", "creationTimestamp": self._now(), "generation": 1}

    def _set(self, stored: Json, type_: str, value: bool, reason: str, message: str = "") -> None:
        known = condition(stored, type_)
        status = "True" if value else "False"
        since = known["lastTransitionTime"] if known["status"] == status else self._now()
        changed = {"type": type_, "status": status, "reason": reason, "message": message}
        self._remove(stored, type_)
        stored["status"]["conditions"].append({**changed, "lastTransitionTime": since})

    def _remove(self, stored: Json, type_: str) -> None:
        conditions = stored["status"].get("conditions") or ()
        stored["status"]["conditions"] = [one for one in conditions if one["type"] != type_]

    def _now(self) -> str:
        return format_time(self.clock())


def key_of(stored: Manifest) -> Key:
    """Return an object's namespace and name."""
    return Key(stored["metadata"]["namespace"], stored["metadata"]["name"])


def condition(stored: Manifest, type_: str) -> Mapping[str, str]:
    """Return a condition of an object; its status is empty if the object does not have it."""
    conditions = (stored.get("status") or {}).get("conditions") or ()
    missing = {"status": "", "reason": "", "message": "", "lastTransitionTime": ""}
    return next((one for one in conditions if one["type"] == type_), missing)


def holds(stored: Manifest, type_: str) -> bool:
    """Return whether a condition of an object is true."""
    return condition(stored, type_)["status"] == "True"


def _immutable(field: str) -> ForbiddenError:
    webhook = 'admission webhook "vworkload.kb.io" denied the request'
    return ForbiddenError(f"{webhook}: {field}: Invalid value: field is immutable", status=403)


def _size(workload: Json) -> int:
    return sum(pod_set["count"] for pod_set in workload["spec"]["podSets"])


def _uses_quota(workload: Json) -> bool:
    is_over = holds(workload, "Finished") or not workload["spec"]["active"]
    return holds(workload, "QuotaReserved") and not is_over


def _waits(workload: Json) -> bool:
    is_over = holds(workload, "Finished") or not workload["spec"]["active"]
    is_held = condition(workload, "Requeued")["status"] == "False"
    return not (is_over or is_held or holds(workload, "QuotaReserved"))


def _order(workload: Json) -> tuple[int, str]:
    return -workload["spec"]["priority"], workload["metadata"]["uid"]


def _victims_order(workload: Json) -> tuple[bool, int, float]:
    since = condition(workload, "QuotaReserved")["lastTransitionTime"]
    reserved = datetime.fromisoformat(since).timestamp()
    return not holds(workload, "Evicted"), workload["spec"]["priority"], -reserved


def _group_of(pod: Json) -> Key | None:
    name = pod["metadata"].get("labels", {}).get(KUEUE_GROUP)
    return Key(pod["metadata"]["namespace"], name) if name else None


def _total_of(pods: list[Json]) -> int:
    return int(pods[0]["metadata"]["annotations"][_TOTAL])


def _role_of(pod: Json) -> str:
    return str(pod["metadata"]["annotations"][_ROLE])


def _number_of(pod: Json) -> str:
    return str(pod["metadata"]["uid"])


def _is_gated(pod: Json) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def _runs(pod: Json) -> bool:
    return bool(pod["status"]["phase"] == "Running")


def _has_ended(pod: Json) -> bool:
    return pod["status"]["phase"] in ("Failed", "Succeeded")


def _is_suspended(pod: Json) -> bool:
    return _is_gated(pod) or _has_ended(pod)


def _is_active(pod: Json) -> bool:
    """Return whether Kueue counts a pod as one of its group."""
    is_deleted = "deletionTimestamp" in pod["metadata"]
    return pod["status"]["phase"] != "Failed" and not (is_deleted and "nodeName" not in pod["spec"])


def _end_of(pods: list[Json]) -> str:
    """Return the message with which a group ends, or nothing if it has not ended."""
    succeeded = sum(pod["status"]["phase"] == "Succeeded" for pod in pods)
    is_marked = any(
        pod["metadata"].get("annotations", {}).get(KUEUE_RETRIABLE) == "false" for pod in pods
    )
    is_over = succeeded == _total_of(pods) or (is_marked and all(map(_has_ended, pods)))
    return f"Pods succeeded: {succeeded}/{_total_of(pods)}." if is_over else ""
