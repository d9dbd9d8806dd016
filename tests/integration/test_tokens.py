"""Tokens of jobs, and rotation of the key that they derive from, with a real API server."""

import hashlib
import hmac
from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest
from ddp_operator.api.constants import ANNOTATION_RESTART_REQUESTED, LABEL_TOKEN_KEY
from ddp_operator.job.pods.access import SECRET_PREFIX
from ddp_operator.kube import SECRETS, ApiClient
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.process.startup import SECRET_NAME

from tests import cluster
from tests.good_manifests import Json, job
from tests.integration.jobs import JOBS, Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import OperatorProcess, flawless_operator
from tests.integration.test_progress import token_of
from tests.trainer_server import TrainerServer
from tests.waiting import eventually

NEW: Final = "99991231T235959Z"


@pytest.fixture
def operator(
    control_plane: cluster.ControlPlane,
    namespace: str,
    jobs: Jobs,  # noqa: ARG001 - the CRD is there
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OperatorProcess]:
    log = tmp_path_factory.mktemp("operator") / "log"
    options = ("--lease-namespace", namespace)  # the key is in the test's namespace
    with flawless_operator(
        control_plane.kubeconfig, log, namespace=namespace, options=options
    ) as process:
        yield process


@pytest.fixture
async def launcher() -> AsyncIterator[TrainerServer]:
    async with TrainerServer() as server:
        server.world = (200, b'{"number": 1, "generation": 0, "failures": []}')
        yield server


async def token_secrets(admin: ApiClient, namespace: str) -> list[Json]:
    path = SECRETS.path(namespace=namespace)
    found: list[Json] = (await admin.request("GET", path))["items"]
    return [one for one in found if one["metadata"]["name"].startswith(SECRET_PREFIX)]


async def restart(operator: OperatorProcess) -> None:
    operator.kill()
    operator.start()
    await operator.serving()


async def until_signed(launcher: TrainerServer, token: str) -> None:
    """Wait for the next request to a launcher, and check that this token signed it."""
    before = len(launcher.documents)
    await eventually(lambda: len(launcher.documents) > before)
    requests = [asked for asked in launcher.asked if " /world" in asked]
    for asked, body, header in list(
        zip(requests, launcher.documents, launcher.tokens, strict=True)
    )[before:]:
        method, target = asked.split(" ")
        at, digest, signature = header.removeprefix("DDP-HMAC-SHA256 ").split(":")
        assert digest == hashlib.sha256(body).hexdigest()
        text = f"{method}\n{target}\n{at}\n{digest}"
        assert signature == hmac.digest(token.encode(), text.encode(), "sha256").hex()


async def test_key_is_rotated_while_a_job_runs(
    operator: OperatorProcess,
    jobs: Jobs,
    kubelet: FakeKubelet,
    launcher: TrainerServer,
    admin: ApiClient,
) -> None:
    port = launcher.port
    made = job(replicas=1, statusPort=port, restart={"scope": "InPlace"})
    uid = (await jobs.create(made))["metadata"]["uid"]
    await jobs.until_pods("job-0-0")
    own = SECRETS.path(namespace=jobs.namespace, name=SECRET_NAME)
    [old] = (await admin.request("GET", own))["data"]
    await kubelet.run("job-0-0", ip="127.0.0.1")
    first = (await jobs.pods())["job-0-0"]
    token = await token_of(admin, first)
    await until_signed(launcher, token)

    added = {"stringData": {NEW: "0123456789abcdef" * 4}}
    await admin.request("PATCH", own, body=added, content_type=MERGE_PATCH)
    await restart(operator)
    await until_signed(launcher, token)

    path = JOBS.path(namespace=jobs.namespace, name="job")
    asked = {"metadata": {"annotations": {ANNOTATION_RESTART_REQUESTED: "now"}}}
    await admin.request("PATCH", path, body=asked, content_type=MERGE_PATCH)
    await jobs.until(lambda status: status.attempt == 1)
    await kubelet.finish_deleted("job-0-0")
    await jobs.until_pods("job-1-0")
    second = (await jobs.pods())["job-1-0"]
    keys = [pod["metadata"]["labels"][LABEL_TOKEN_KEY] for pod in (first, second)]
    assert keys == [old, NEW]
    newer = await token_of(admin, second)
    assert newer != token

    removed = {"data": {old: None}}  # no pod has it
    await admin.request("PATCH", own, body=removed, content_type=MERGE_PATCH)
    await restart(operator)
    await kubelet.run("job-1-0", ip="127.0.0.1")
    await until_signed(launcher, newer)

    secrets = await token_secrets(admin, jobs.namespace)
    owners = [owner for secret in secrets for owner in secret["metadata"]["ownerReferences"]]
    assert [owner["uid"] for owner in owners] == [uid, uid]
    await admin.request("DELETE", path)

    async def gone() -> bool:
        return not await token_secrets(admin, jobs.namespace)

    await eventually(gone)
