"""The Secrets with the tokens of pods."""

import base64
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
from ddp_operator.api.constants import LABEL_TOKEN_KEY
from ddp_operator.engine.engine import Engine
from ddp_operator.engine.pod_settings import PodSettings
from ddp_operator.engine.reconciler import Reconciler
from ddp_operator.engine.tokens.access import Access
from ddp_operator.ports import ForbiddenError, Key, UnavailableError

from tests.unit.engine.fakes import ACCESS, TOKEN, FakeCluster
from tests.unit.engine.test_reconciler import CRASHED, KEY, READY, World, job
from tests.waiting import eventually

HIDING: Final = replace(ACCESS, has_secrets=True)
NAME: Final = HIDING.secret_name("u1", "1")
ROTATED: Final = {"1": b"operator", "2": b"newer"}
LACKING: Final = {
    "phase": "Pending",
    "containerStatuses": [
        {
            "name": "trainer",
            "state": {
                "waiting": {
                    "reason": "CreateContainerConfigError",
                    "message": f'secret "{NAME}" not found',
                }
            },
        }
    ],
}


class HidingWorld(World):
    """A world with an operator that may create Secrets, and can be restarted."""

    def __init__(self) -> None:
        super().__init__()
        self.restart_operator()

    def restart_operator(
        self, *, has_secrets: bool = True, keys: Mapping[str, bytes] = ACCESS.keys
    ) -> None:
        settings = PodSettings(access=Access(keys=keys, has_secrets=has_secrets))
        self.reconciler = Reconciler(
            self.cluster, self.jobs, settings=settings, clock=lambda: self.now, metrics=self.metrics
        )

    def edit(self, **spec: Any) -> None:
        stored = self.cluster.jobs[KEY]
        self.apply({**stored, "spec": {**stored["spec"], **spec}})


@pytest.fixture
def world() -> HidingWorld:
    return HidingWorld()


def tokens(cluster: FakeCluster) -> dict[str, str]:
    """Return by pod the token as its kubelet would find it."""
    return {key.name: token_of(cluster, pod) for key, pod in cluster.pods.items()}


def token_of(cluster: FakeCluster, pod: dict[str, Any]) -> str:
    [entry] = [e for e in pod["spec"]["containers"][0]["env"] if e["name"] == "DDP_TOKEN"]
    if "value" in entry:
        return str(entry["value"])
    reference = entry["valueFrom"]["secretKeyRef"]
    secret = cluster.secrets[Key(pod["metadata"]["namespace"], reference["name"])]
    return base64.b64decode(secret["data"][reference["key"]]).decode()


def count(calls: list[str]) -> int:
    return calls.count("create_secret default")


async def test_secret_is_created_before_the_first_pods(world: HidingWorld) -> None:
    world.apply(job())
    calls = await world.reconcile()
    assert calls.index("create_secret default") < calls.index("create_pod train-0-0")
    expected = HIDING.token_of("u1", "1")
    assert tokens(world.cluster) == {"train-0-0": expected, "train-0-1": expected}
    assert expected == TOKEN not in str(world.cluster.pods)


async def test_suspended_job_has_no_secret_yet(world: HidingWorld) -> None:
    world.apply(job(suspend=True))
    assert count(await world.reconcile()) == 0


async def test_all_attempts_have_one_secret(world: HidingWorld) -> None:
    await world.start()
    world.cluster.set_pod_status("train-0-1", CRASHED)
    await world.reconcile_until_quiet()
    assert {key.name for key in world.cluster.pods} == {"train-1-0", "train-1-1"}
    assert count(world.cluster.calls) == 2, "once for each attempt"
    assert len(world.cluster.secrets) == 1


async def test_each_job_has_a_token_of_its_own() -> None:
    cluster = FakeCluster()
    engine = Engine(cluster, settings=PodSettings(access=HIDING))
    engine.start()
    for number in range(20):
        made = job()
        made["metadata"] = {**made["metadata"], "name": f"job-{number}", "uid": f"u{number}"}
        engine.job_changed(cluster.store_job(made))
    await eventually(lambda: len(cluster.pods) == 40)
    await engine.stop()
    assert count(cluster.calls) == len(cluster.secrets) == 20
    assert len(set(tokens(cluster).values())) == 20
    owners = [secret["metadata"]["ownerReferences"] for secret in cluster.secrets.values()]
    assert {owner["uid"] for [owner] in owners} == {f"u{number}" for number in range(20)}


async def test_replacement_after_a_restart_needs_no_new_secret(world: HidingWorld) -> None:
    await world.start(restart={"scope": "Pod"})
    world.restart_operator()
    world.cluster.refuse["create_secret"] = ForbiddenError("exceeded quota", status=403)
    world.cluster.set_pod_status("train-0-0", READY)
    world.cluster.set_pod_status("train-0-1", CRASHED)
    await world.reconcile_until_quiet()
    assert sorted(tokens(world.cluster)) == ["train-0-0", "train-0-1-r1"]
    assert len(set(tokens(world.cluster).values())) == 1


async def test_full_quota_does_not_hold_a_job_that_has_its_secret(world: HidingWorld) -> None:
    await world.start()
    world.edit(suspend=True)
    await world.reconcile_until_quiet()
    assert not world.cluster.pods
    world.restart_operator()
    world.cluster.refuse["create_secret"] = ForbiddenError("exceeded quota", status=403)
    world.edit(suspend=False)
    await world.reconcile_until_quiet()
    assert len(tokens(world.cluster)) == 2


async def test_refused_secret_is_in_the_status_and_prevents_pods(world: HidingWorld) -> None:
    quota = f'secrets "{NAME}" is forbidden: exceeded quota: objects'
    world.cluster.refuse["create_secret"] = ForbiddenError(quota, status=403)
    world.apply(job())
    await world.reconcile_fails(ForbiddenError)
    assert not world.cluster.pods
    [running] = [item for item in world.status["conditions"] if item["type"] == "Running"]
    assert running["reason"] == "PodsForbidden"
    assert running["message"] == f"{quota}: this Secret provides DDP_TOKEN to pods"
    world.cluster.refuse = {"create_secret": UnavailableError("timeout")}
    await world.reconcile_fails(UnavailableError)
    assert not world.cluster.pods
    world.cluster.refuse.clear()
    await world.reconcile_until_quiet()
    assert len(set(tokens(world.cluster).values())) == 1


async def test_replacement_in_a_secret_has_the_plain_token_of_others(world: HidingWorld) -> None:
    world.restart_operator(has_secrets=False)
    await world.start(restart={"scope": "Pod"})
    assert set(tokens(world.cluster).values()) == {TOKEN}
    world.restart_operator()
    world.cluster.set_pod_status("train-0-0", READY)
    world.cluster.set_pod_status("train-0-1", CRASHED)
    await world.reconcile_until_quiet()
    world.cluster.set_pod_status("train-0-1-r1", LACKING)
    await world.reconcile()
    assert tokens(world.cluster) == {"train-0-0": TOKEN, "train-0-1-r1": TOKEN}
    assert TOKEN not in str(world.cluster.pods[Key("default", "train-0-1-r1")])


async def test_new_attempt_reads_the_token_from_the_secret(world: HidingWorld) -> None:
    world.restart_operator(has_secrets=False)
    await world.start()
    world.restart_operator()
    world.cluster.set_pod_status("train-0-1", CRASHED)
    await world.reconcile_until_quiet()
    assert {key.name for key in world.cluster.pods} == {"train-1-0", "train-1-1"}
    assert TOKEN not in str(world.cluster.pods)


async def test_rotation_changes_the_key_with_the_next_attempt(world: HidingWorld) -> None:
    await world.start(restart={"scope": "Pod"})
    world.restart_operator(keys=ROTATED)
    world.cluster.set_pod_status("train-0-0", READY)
    world.cluster.set_pod_status("train-0-1", CRASHED)
    await world.reconcile_until_quiet()
    assert keys(world.cluster) == {"train-0-0": "1", "train-0-1-r1": "1"}
    assert set(tokens(world.cluster).values()) == {TOKEN}

    world.edit(suspend=True)
    await world.reconcile_until_quiet()
    world.restart_operator(keys={"2": ROTATED["2"]})  # no pod has the former key
    world.edit(suspend=False)
    await world.reconcile_until_quiet()
    assert set(keys(world.cluster).values()) == {"2"}
    assert set(tokens(world.cluster).values()) == {Access(keys=ROTATED).token_of("u1", "2")}


def keys(cluster: FakeCluster) -> dict[str, str]:
    """Return the names of the pods' keys."""
    return {
        key.name: pod["metadata"]["labels"][LABEL_TOKEN_KEY] for key, pod in cluster.pods.items()
    }


async def test_deleted_secret_is_created_again(world: HidingWorld) -> None:
    await world.start()
    before = world.cluster.secrets.copy()
    world.cluster.secrets.clear()
    for pod in ("train-0-0", "train-0-1"):
        world.cluster.set_pod_status(pod, LACKING)
    assert count(await world.reconcile()) == 1, "once for both pods"
    assert world.cluster.secrets == before


async def test_missing_secret_is_a_disruption_and_not_charged(world: HidingWorld) -> None:
    await world.start(restart={"maxRestarts": 0})
    world.cluster.refuse["create_secret"] = ForbiddenError("exceeded quota", status=403)
    for pod in ("train-0-0", "train-0-1"):
        world.cluster.set_pod_status(pod, LACKING)
    world.now += timedelta(seconds=1)
    await world.reconcile_fails(ForbiddenError)
    assert "this Secret provides DDP_TOKEN" in world.status["message"]
    world.now += timedelta(minutes=6)
    await world.reconciler.reconcile(KEY)
    assert world.status["phase"] not in ("Failed", "Succeeded")
    assert world.status["restarts"] == 0
    [failure] = world.status["failures"]
    assert failure["class"] == "Disruption"
