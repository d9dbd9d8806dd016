"""Programs of `helm test`, as local processes."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity

from tests.ports import free_port
from tests.unit.chart.rendering import Json, hooks
from tests.unit.job.builders import fresh_job
from tests.unit.kube.fake_api_server import FakeApiServer, Fault
from tests.waiting import eventually

REFUSAL: Final = "spec.replicas: Invalid value: 0"
PATH: Final = ("ddpjobs", "default", "ddp-operator-test-1")


def container() -> Json:
    [found] = hooks()["Pod", "ddp-operator-test"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def job() -> Json:
    [variable] = container()["env"]
    assert variable["name"] == "JOB"
    found: Json = json.loads(variable["value"])
    return found


async def start(command: list[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    program, *arguments = command
    assert program == "python"
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@contextlib.asynccontextmanager
async def pod_of_the_test(
    tmp_path: Path, *faults: Fault
) -> AsyncIterator[tuple[asyncio.subprocess.Process, FakeApiServer]]:
    """Start the test's pod at an API server with these faults."""
    kubeconfig = tmp_path / "kubeconfig"
    async with FakeApiServer().running() as server:
        server.faults = [*faults]
        cluster = {"name": "fake", "cluster": {"server": server.url}}
        context = {"name": "test", "context": {"cluster": "fake", "user": "me"}}
        config: dict[str, Any] = {"current-context": "test", "users": [{"name": "me", "user": {}}]}
        config |= {"clusters": [cluster], "contexts": [context]}
        kubeconfig.write_text(yaml.safe_dump(config))
        environment = {"KUBECONFIG": str(kubeconfig), "JOB": json.dumps(job())}
        pod = await start(container()["command"], environment)
        try:
            yield pod, server
        finally:
            with contextlib.suppress(ProcessLookupError):
                pod.kill()


async def tried(tmp_path: Path, status: Json) -> tuple[int | None, str, str, FakeApiServer]:
    """Run the test's pod against an operator that gives its job this status."""
    refusal = Fault("POST", 422, {"message": REFUSAL}, path_part="dryRun=All")
    async with pod_of_the_test(tmp_path, refusal) as (pod, server):
        await eventually(lambda: PATH in server.objects)
        assert server.objects[PATH]["spec"] == job()["spec"]
        server.update(*PATH, {"status": status})
        async with asyncio.timeout(60):
            out, errors = await pod.communicate()
    return pod.returncode, out.decode(), errors.decode(), server


async def test_accepted_invalid_job_fails_the_test(tmp_path: Path) -> None:
    async with pod_of_the_test(tmp_path) as (pod, server):
        async with asyncio.timeout(60):
            _, errors = await pod.communicate()
        assert pod.returncode == 1
        assert b"a DDPJob with 0 replicas was accepted" in errors
        assert PATH not in server.objects


async def test_successful_job_passes_and_is_removed(tmp_path: Path) -> None:
    status = {"phase": "Succeeded", "reason": "Completed", "message": "all is well"}
    code, out, errors, server = await tried(tmp_path, status)
    assert (code, errors) == (0, "")
    assert out.splitlines() == [
        f"an invalid DDPJob is refused: {REFUSAL}",
        *(line for line in out.splitlines() if line.startswith("ddp-operator-test-1: ")),
        "a valid DDPJob was reconciled: pods created, training completed",
    ]
    assert "ddp-operator-test-1: Succeeded: all is well\n" in out
    assert PATH not in server.objects


async def test_failed_job_shows_the_reason_and_is_removed(tmp_path: Path) -> None:
    status = {"phase": "Failed", "reason": "BackoffLimit", "message": "it is not"}
    code, out, errors, server = await tried(tmp_path, status)
    assert (code, errors) == (1, "failed: BackoffLimit\n")
    assert "ddp-operator-test-1: Failed: it is not\n" in out
    assert PATH not in server.objects


@pytest.mark.parametrize("late", [0, 1])
async def test_ranks_meet_in_any_order(late: int) -> None:
    spec = job()["spec"]
    parsed = fresh_job(**spec)
    [trainer] = manifests.pod(parsed, Identity(0, 0))["spec"]["containers"]
    given = {variable["name"] for variable in trainer["env"]}
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    assert {*common, "RANK"} <= given
    first, second = [
        await start(trainer["command"], {**common, "RANK": str(rank)}) for rank in (late, 1 - late)
    ]
    ends = await asyncio.gather(first.communicate(), second.communicate())
    assert [first.returncode, second.returncode] == [0, 0], ends
    assert sorted(out.decode() for out, _ in ends) == [
        "rank 0 of 2: connected\n",
        "rank 1 of 2: connected\n",
    ]


def test_pods_meet_the_restricted_level() -> None:
    for spec in (hooks()["Pod", "ddp-operator-test"]["spec"], job()["spec"]["template"]["spec"]):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for found in spec["containers"]:
            assert found["securityContext"]["allowPrivilegeEscalation"] is False
            assert found["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_rights_are_minimal() -> None:
    added = hooks()
    assert {kind for kind, _ in added} == {"ServiceAccount", "Role", "RoleBinding", "Pod"}
    [rule] = added["Role", "ddp-operator-test"]["rules"]
    assert rule == {
        "apiGroups": ["ddp-operator.io"],
        "resources": ["ddpjobs"],
        "verbs": ["create", "get", "delete"],
    }
    # The pod comes last.
    weights = {
        kind: o["metadata"]["annotations"]["helm.sh/hook-weight"] for (kind, _), o in added.items()
    }
    assert weights == {"ServiceAccount": "-1", "Role": "-1", "RoleBinding": "-1", "Pod": "0"}
