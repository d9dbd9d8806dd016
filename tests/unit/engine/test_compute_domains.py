"""Domains of jobs on A4X, in random histories: none goes while a pod holds a claim of it.

Pods end slowly here, as in a cluster, and Kubernetes' garbage collector deletes what a deleted job
owns at once.
"""

import asyncio
import random
from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest
from ddp_operator.api.constants import ANNOTATION_RESTART_REQUESTED, LABEL_JOB_UID
from ddp_operator.engine.background.compute_domains import ComputeDomains
from ddp_operator.engine.engine import Engine
from ddp_operator.engine.job_cache import JobCache
from ddp_operator.engine.reconciler import Reconciler
from ddp_operator.job.pods import prerequisites
from ddp_operator.ports import (
    ClusterError,
    ForbiddenError,
    Key,
    Manifest,
    NamespaceEndsError,
    NotServedError,
    UnavailableError,
)

from tests.unit.engine.fakes import ENDING, SETTINGS, FakeCluster
from tests.unit.engine.test_reconciler import CRASHED, KEY, NOW, READY, job
from tests.waiting import eventually

SPEC: dict[str, Any] = {
    "accelerator": {"type": "nvidia-gb200", "count": 4, "network": "auto"},
    "spares": 1,
    "restart": {"scope": "Pod", "maxRestarts": 50},
}
ENDS = NamespaceEndsError("the namespace is being terminated", status=403)


class LostDomainError(Exception):
    """A domain was deleted while pods held claims of it."""


class SlowCluster(FakeCluster):
    """Pods stay until their kubelet has ended them, and domains are watched."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, dict[str, Any]] = {}
        """Each domain as it was created, by the UID of its job."""
        self.ends = False
        """The namespace is being deleted."""

    @property
    def domains(self) -> dict[Key, dict[str, Any]]:
        return self.applied.get("ComputeDomain", {})

    def holders(self, domain: Manifest) -> list[str]:
        """Return the pods that claim a domain's channels."""
        template = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
        uid = domain["metadata"]["labels"][LABEL_JOB_UID]
        return [
            pod["metadata"]["name"]
            for pod in self.pods.values()
            if any(
                c["resourceClaimTemplateName"] == template for c in pod["spec"]["resourceClaims"]
            )
            and pod["metadata"]["labels"][LABEL_JOB_UID] == uid
        ]

    async def create_pod(self, manifest: Manifest) -> None:
        domain = self.domains[KEY]
        assert (
            domain["metadata"]["labels"][LABEL_JOB_UID]
            == manifest["metadata"]["labels"][LABEL_JOB_UID]
        )
        await super().create_pod(manifest)

    async def apply(self, manifest: Manifest) -> None:
        await super().apply(manifest)
        if manifest["kind"] == "ComputeDomain":
            self.first.setdefault(
                manifest["metadata"]["labels"][LABEL_JOB_UID], deepcopy(dict(manifest))
            )

    async def delete(self, stored: Manifest) -> None:
        self.remove(
            stored["kind"], Key(stored["metadata"]["namespace"], stored["metadata"]["name"])
        )

    def remove(self, kind: str, key: Key) -> None:
        """Delete an object on behalf of anybody."""
        gone = self.applied[kind].pop(key)
        if kind == "ComputeDomain" and (pods := self.holders(gone)):
            raise LostDomainError(pods)

    def _end(self, pod: Key) -> None:
        if stored := self.pods.get(pod):
            stored["metadata"] = {**ENDING, **stored["metadata"]}

    def end_pods(self, chosen: Callable[[], bool] = lambda: True) -> None:
        """Let kubelets remove terminating pods."""
        for key, pod in list(self.pods.items()):
            if "deletionTimestamp" in pod["metadata"] and chosen():
                del self.pods[key]

    def collect_garbage(self) -> None:
        """Delete what belongs to jobs that are gone, all at once."""
        uids = {job["metadata"]["uid"] for job in self.jobs.values()}

        def is_garbage(manifest: Manifest) -> bool:
            owners = manifest["metadata"].get("ownerReferences") or ()
            return bool(owners) and all(owner["uid"] not in uids for owner in owners)

        for key in [key for key, pod in self.pods.items() if is_garbage(pod)]:
            self._end(key)
        for kind, stored in self.applied.items():
            for key in [key for key, one in stored.items() if is_garbage(one)]:
                self.remove(kind, key)
        for key in [key for key, one in self.services.items() if is_garbage(one)]:
            del self.services[key]

    def end_namespace(self) -> None:
        """Go on with the namespace's deletion: first its pods (Kubernetes 1.34)."""
        for key in list(self.pods):
            self._end(key)
        if not self.pods:
            self.jobs.clear()
            self.services.clear()
            for kind, stored in self.applied.items():
                for key in list(stored):
                    self.remove(kind, key)

    def _called(self, name: str, what: str) -> None:
        super()._called(name, what)
        if self.ends and name.startswith(("create", "apply")):
            raise ENDS


class World:
    """A job, an operator that may be away, and a cluster."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = SlowCluster()
        self.now = NOW
        self.jobs_made = 0
        self.present = True
        self.start_operator()
        self.create_job()

    def start_operator(self) -> None:
        """Start an operator that has not heard of any job yet."""
        self.cache = JobCache()
        self.reconciler = Reconciler(
            self.cluster, self.cache, settings=SETTINGS, clock=lambda: self.now
        )
        self.domains = ComputeDomains(self.cluster, self.cache)

    def create_job(self) -> None:
        if KEY not in self.cluster.jobs and not self.cluster.ends:
            self.jobs_made += 1
            manifest = job(**SPEC)
            manifest["metadata"]["uid"] = f"u{self.jobs_made}"
            self.cluster.store_job(manifest)

    def change_job(self, **spec: Any) -> None:
        if stored := self.cluster.jobs.get(KEY):
            stored["spec"] |= spec
            stored["metadata"]["generation"] += 1
            self.cluster.store_job(stored)

    def request_restart(self) -> None:
        if stored := self.cluster.jobs.get(KEY):
            stored["metadata"]["annotations"] = {
                ANNOTATION_RESTART_REQUESTED: str(self.random.random())
            }
            self.cluster.store_job(stored)

    def delete_job(self) -> None:
        self.cluster.jobs.pop(KEY, None)

    def set_a_pod(self, status: dict[str, Any]) -> None:
        if keys := list(self.cluster.pods):
            self.cluster.set_pod_status(self.random.choice(keys).name, status)

    def make_ready(self) -> None:
        for key in self.cluster.pods:
            self.cluster.set_pod_status(key.name, READY)

    def lose_a_pod(self) -> None:
        """Let a node vanish, and Kubernetes remove its pod."""
        if keys := list(self.cluster.pods):
            del self.cluster.pods[self.random.choice(keys)]

    def end_namespace(self) -> None:
        self.cluster.ends = True

    def toggle_operator(self) -> None:
        self.present = not self.present
        if self.present:
            self.start_operator()

    def hear_of_jobs(self) -> None:
        if stored := self.cluster.jobs.get(KEY):
            self.cache.put(deepcopy(stored))
        else:
            self.cache.remove(KEY)

    async def reconcile(self) -> None:
        self.now += timedelta(seconds=self.random.choice((1, 30, 600)))
        self.hear_of_jobs()
        for _ in range(3):
            try:
                await self.reconciler.reconcile(KEY)
            except ClusterError:
                break

    async def step(self) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self.make_ready, 4),
            (self.lose_a_pod, 3),
            (lambda: self.set_a_pod(CRASHED), 3),
            (lambda: self.change_job(suspend=True), 2),
            (lambda: self.change_job(suspend=False), 3),
            (self.request_restart, 2),
            (self.delete_job, 2),
            (self.create_job, 3),
            (self.toggle_operator, 2),
            (self.hear_of_jobs, 2),
            (lambda: self.cluster.end_pods(lambda: self.random.random() < 0.5), 4),
            (self.end_namespace, 0 if self.random.random() < 0.9 else 1),
        ]
        [act] = self.random.choices([a for a, _ in actions], [weight for _, weight in actions])
        act()
        self.cluster.collect_garbage()
        if self.cluster.ends:
            self.cluster.end_namespace()
        if self.present and self.random.random() < 0.6:
            await self.reconcile()
        if self.present and self.random.random() < 0.5:
            await self.domains.delete()
        for domain in self.cluster.domains.values():
            uid = domain["metadata"]["labels"][LABEL_JOB_UID]
            assert domain == self.cluster.first[uid], "the domain was changed"

    async def settle(self) -> None:
        """Let the operator return, and everything that is deleted end."""
        self.present = True
        self.start_operator()
        for _ in range(4):
            await self.reconcile()
            self.cluster.collect_garbage()
            if self.cluster.ends:
                self.cluster.end_namespace()
            self.cluster.end_pods()
            await self.domains.delete()


async def history(seed: int) -> World:
    world = World(seed)
    await world.reconcile()
    for _ in range(20):
        await world.step()
    await world.settle()
    return world


@pytest.mark.parametrize("tenth", range(10))
async def test_no_domain_goes_while_a_claim_is_held(tenth: int) -> None:
    for seed in range(tenth * 20, tenth * 20 + 20):
        world = await history(seed)
        jobs = {one["metadata"]["uid"] for one in world.cluster.jobs.values()}
        domains = {
            one["metadata"]["labels"][LABEL_JOB_UID] for one in world.cluster.domains.values()
        }
        assert domains <= jobs, f"history {seed} leaves a domain behind"
        for pod in world.cluster.pods.values():
            assert pod["metadata"]["labels"][LABEL_JOB_UID] in domains, seed


async def test_domain_that_the_job_owned_would_go_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = prerequisites.compute_domain

    def owned(job: Any) -> dict[str, Any] | None:
        domain = made(job)
        if domain:
            owner = {"uid": job.uid, "controller": True}
            domain["metadata"] = {**domain["metadata"], "ownerReferences": [owner]}
        return domain

    monkeypatch.setattr(prerequisites, "compute_domain", owned)
    lost = 0
    for seed in range(20):
        try:
            await history(seed)
        except LostDomainError:
            lost += 1
    assert lost > 5


async def deleted_job() -> World:
    """Return a job that was deleted while its pods ran; they are ending now."""
    world = World(0)
    await world.reconcile()
    world.make_ready()
    assert len(world.cluster.holders(world.cluster.domains[KEY])) >= 2
    world.delete_job()
    world.cluster.collect_garbage()
    world.hear_of_jobs()
    return world


async def test_domain_goes_after_the_last_pod_of_a_deleted_job() -> None:
    world = await deleted_job()
    assert await world.domains.delete() == 10
    assert KEY in world.cluster.domains
    world.cluster.end_pods()
    await world.domains.delete()
    assert KEY not in world.cluster.domains
    assert await world.domains.delete() == 60


async def test_next_job_of_the_name_waits_for_the_earlier_ones_domain() -> None:
    world = await deleted_job()
    world.create_job()
    await world.reconcile()
    status = world.cluster.jobs[KEY]["status"]
    assert (status["phase"], status["reason"]) == ("Pending", "NameTaken")
    assert world.cluster.domains[KEY]["metadata"]["labels"][LABEL_JOB_UID] == "u1"
    world.cluster.end_pods()
    await world.domains.delete()
    await world.reconcile()
    assert world.cluster.domains[KEY]["metadata"]["labels"][LABEL_JOB_UID] == "u2"
    assert len(world.cluster.pods) >= 2


async def test_operator_that_knows_no_job_yet_deletes_no_domain() -> None:
    world = World(0)
    await world.reconcile()
    world.cluster.pods.clear()
    world.start_operator()
    assert await world.domains.delete() == 10
    assert KEY in world.cluster.domains


@pytest.mark.parametrize(
    ("call", "error", "seconds"),
    [
        ("find ComputeDomain", NotServedError("not served"), 600),
        ("find ComputeDomain", ForbiddenError("may not list"), 600),
        ("find ComputeDomain", UnavailableError("no answer"), 10),
        ("find Pod", UnavailableError("no answer"), 10),
        ("patch_status", UnavailableError("no answer"), 10),
    ],
)
async def test_domain_stays_while_the_api_server_does_not_answer(
    call: str, error: ClusterError, seconds: float
) -> None:
    world = await deleted_job()
    world.cluster.end_pods()
    world.cluster.refuse[call] = error
    assert await world.domains.delete() == seconds
    assert KEY in world.cluster.domains
    world.cluster.refuse.clear()
    await world.domains.delete()
    assert KEY not in world.cluster.domains


async def test_engine_deletes_domains_once_it_starts() -> None:
    world = await deleted_job()
    world.cluster.end_pods()
    engine = Engine(world.cluster, settings=SETTINGS)
    await asyncio.sleep(0)
    assert KEY in world.cluster.domains, "a standby deletes nothing"
    engine.start()
    await eventually(lambda: KEY not in world.cluster.domains)
    await engine.stop()
