import json
import os
import tarfile
from pathlib import Path

import pytest
from ddp_client.remote import bundle as client_bundle
from ddp_client.views import redaction
from ddp_operator.api.schema.crd import custom_resource_definition
from ddp_operator.kube import CUSTOM_RESOURCE_DEFINITIONS, NODES

from tests.good_manifests import Json
from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import ESCAPES, training
from tests.unit.cli.test_logs import printed, started
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer, Fault
from tests.unit.views.test_doctor import node, operator

SECRET = "s3cr3t-v4lue-0123456789"
JOB = ("ddpjobs", "research", NAME)
DENIED = {"kind": "Status", "message": "you cannot list this", "reason": "Forbidden"}


@pytest.fixture
async def pods(server: FakeApiServer) -> list[str]:
    """A job with a secret in every possible place."""
    server.create("ddpjobs", training())
    [container] = server.objects[JOB]["spec"]["template"]["spec"]["containers"]
    container["env"] = [{"name": "WANDB_API_KEY", "value": SECRET}]
    server.objects[JOB]["metadata"]["annotations"] = {"kubectl.io/last-applied": SECRET}
    crd = custom_resource_definition()
    server.documents = {
        "/version": {"gitVersion": "v1.37.0"},
        NODES.path(name="node-a"): node("node-a", gpus=8),
        CUSTOM_RESOURCE_DEFINITIONS.path(name=crd["metadata"]["name"]): crd,
    }
    names = [started(server, 0), started(server, 1, ended=True)]
    for index, name in enumerate(names):
        stored = server.objects["pods", "research", name]
        stored["spec"]["nodeName"] = "node-a"
        stored["spec"]["containers"][0]["args"] = ["--api-key", SECRET]
        server.logs[name] = printed((index, f"{ESCAPES} step {index}"), (9, f"token={SECRET}"))
        uid = stored["metadata"]["uid"]
        server.create("events", event(f"pulled-{index}", uid))
    server.create("events", event("other", "uid-of-another"))
    labels = {"ddp-operator.io/component": "operator"}
    deployment = operator()
    deployment["metadata"]["labels"] = labels
    server.create("deployments", deployment)
    own = {"metadata": {"name": "ddp-operator-1", "namespace": "ddp-operator", "labels": labels}}
    status = {"containerStatuses": [{"name": "operator", "state": {"running": {}}}]}
    server.create("pods", {**own, "status": status})
    server.logs["ddp-operator-1"] = printed((1, "leads"))
    return names


def event(name: str, uid: str) -> Json:
    return {
        "metadata": {"name": name, "namespace": "research"},
        "involvedObject": {"uid": uid},
        "message": f"Authorization: Bearer {SECRET}",
    }


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        return {
            member.name.removeprefix(f"{NAME}-bundle/"): _read(tar, member)
            for member in tar.getmembers()
        }


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    content = tar.extractfile(member)
    assert content is not None
    return content.read().decode()


async def test_bundle_has_all_about_a_job_and_no_secret(
    ddp: Ddp, pods: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "bundle.tar.gz"
    result = await ddp("bundle", NAME, "-o", str(path))
    assert result.exit_code == 0, result.output
    files = unpacked(path)
    assert sorted(files) == [
        *("events.json", "job.json", "left-out.txt"),
        *(f"logs/{name}.trainer.log" for name in pods),
        *("nodes.json", "operator/deployments.json", "operator/logs/ddp-operator-1.operator.log"),
        *("pods.json", "removed.txt", "versions.json"),
    ]
    assert SECRET not in json.dumps(files)
    assert "\x1b" not in "".join(files.values())
    assert files["left-out.txt"] == "nothing\n"
    assert "WANDB_API_KEY" in files["job.json"]
    assert len(json.loads(files["pods.json"])) == 2
    assert [each["metadata"]["name"] for each in json.loads(files["events.json"])] == [
        *("pulled-0", "pulled-1")
    ]
    assert [each["metadata"]["name"] for each in json.loads(files["nodes.json"])] == ["node-a"]
    assert "step 0" in files[f"logs/{pods[0]}.trainer.log"]
    versions = json.loads(files["versions.json"])
    assert versions["server"] == {"gitVersion": "v1.37.0"}
    assert versions["crd"]["versions"] == ["v1alpha1"]
    assert versions["crd"]["lacking"] == []
    for name in files:
        assert name in result.stdout or name in ("left-out.txt", "removed.txt")
    variables = files["pods.json"].count('"value": "<removed>"')
    assert files["removed.txt"].splitlines() == [
        "job.json: removed: 1 annotation, 1 environment variable",
        f"pods.json: removed: {variables} environment variable, 2 value after a flag",
        "events.json: removed: 2 header",
        *(f"logs/{name}.trainer.log: removed: 1 value named like a secret" for name in pods),
    ]
    for line in files["removed.txt"].splitlines():
        name, _, removed = line.partition(": ")
        assert f"{name}  ({removed})" in result.stdout
    assert f"without {variables + 8} secrets; there may be others: check" in result.stdout
    assert os.stat(path).st_mode & 0o077 == 0


async def test_forbidden_parts_are_named_and_left_out(
    ddp: Ddp, server: FakeApiServer, pods: list[str], tmp_path: Path
) -> None:
    for part in ("/nodes", "/deployments", "/customresourcedefinitions", "/events"):
        server.faults.append(Fault("GET", 403, DENIED, times=9, path_part=part))
    del server.logs[pods[0]]
    path = tmp_path / "bundle.tar.gz"
    result = await ddp("bundle", NAME, "-o", str(path))
    assert result.exit_code == 0, result.output
    left_out = unpacked(path)["left-out.txt"]
    for what in ("nodes", "the operator", "the CRD's version", "events", f"the log of {pods[0]}"):
        assert what in left_out
        assert f"left out: {what}" in result.stderr
    assert "step 1" in unpacked(path)[f"logs/{pods[1]}.trainer.log"]


async def test_bundle_is_bounded(
    ddp: Ddp,
    server: FakeApiServer,
    pods: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_bundle, "_LOG_BYTES", 1000)
    monkeypatch.setattr(client_bundle, "_MOST_LOGS", 1)
    monkeypatch.setattr(client_bundle, "_MOST_EVENTS", 1)
    server.logs[pods[0]] = b"".join(b"2026-03-01T12:00:00Z line %d\n" % i for i in range(10_000))
    path = tmp_path / "bundle.tar.gz"
    await ddp("bundle", NAME, "-o", str(path))
    files = unpacked(path)
    log = files[f"logs/{pods[0]}.trainer.log"]
    assert len(log) <= 1000
    assert log.splitlines()[0].startswith("2026-03-01T12:00:00Z line")  # no partial archive
    assert log.splitlines()[-1].endswith("line 9999")
    assert "the logs of 1 more pod" in files["left-out.txt"]
    assert "events: there are more" in files["left-out.txt"]
    monkeypatch.setattr(client_bundle, "_MOST_BYTES", 100)
    small = tmp_path / "small.tar.gz"
    await ddp("bundle", NAME, "-o", str(small))
    assert "pods.json: the bundle already has" in unpacked(small)["left-out.txt"]


async def test_log_that_takes_too_long_to_search_is_left_out(
    ddp: Ddp, pods: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(line: str) -> tuple[str, tuple[str, ...]]:
        now[0] += 5
        return line, ()

    now = [0.0]
    monkeypatch.setattr(redaction, "without_secrets", slow)
    monkeypatch.setattr("ddp_client.views.redaction.time.thread_time", lambda: now[0])
    path = tmp_path / "bundle.tar.gz"
    result = await ddp("bundle", NAME, "-o", str(path))
    assert result.exit_code == 0, result.output
    files = unpacked(path)
    name = f"logs/{pods[1]}.trainer.log"
    assert f"{name}: the search for secrets takes too long" in files["left-out.txt"]
    assert name not in files
    assert now[0] <= 70


async def test_existing_file_is_not_overwritten(
    ddp: Ddp, server: FakeApiServer, pods: list[str], tmp_path: Path
) -> None:
    del pods
    path = tmp_path / "bundle.tar.gz"
    path.write_text("mine")
    result = await ddp("bundle", NAME, "-o", str(path))
    assert result.exit_code == 2
    assert path.read_text() == "mine"
    assert server.requests == []
    result = await ddp("bundle", NAME, "-o", str(tmp_path / "nowhere" / "x"))
    assert result.exit_code == 1
    assert "No such file" in result.stderr
