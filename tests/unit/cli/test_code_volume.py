"""`run --code-volume`: a folder that travels through a volume."""

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddp_client.pod_security import PodSecurity
from ddp_client.remote.cluster import Cluster
from ddp_client.remote.code import volume
from ddp_client.remote.code.upload_pod import MISSING, upload_pod
from ddp_client.remote.code.volume import store_code
from ddp_client.submit import CodeFolder, JobRequest, admitted, job_manifest
from ddp_client.submit import code as code_module
from ddp_client.submit.code import STORE_PATH, code_volume
from ddp_operator.ports import Manifest
from ddp_protocol.code_archive import STORE, unpack

from tests.good_manifests import Json
from tests.unit.cli.conftest import Ddp
from tests.unit.cli.test_logs import started
from tests.unit.cli.test_run import SHORT, made, writes
from tests.unit.cli.test_run_into import OLD, receiving, requested, with_code
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer, Fault
from tests.unit.kube.fake_channels import ProgramRun
from tests.waiting import eventually

RUNNING = {
    "phase": "Running",
    "containerStatuses": [{"name": "upload", "state": {"running": {}}}],
}
CLAIM = code_volume("pvc/team")
CODE = replace(OLD, volume=CLAIM)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of some hundred bytes is too large for ConfigMaps."""
    monkeypatch.setattr(code_module, "MAX_PACKED_BYTES", 400)
    monkeypatch.setattr(volume, "_POLL_SECONDS", 0.01)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print(2)\n")
    (folder / "tokens.bin").write_bytes(random.Random(1).randbytes(3000))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The folder of the volume."""
    folder = tmp_path / "root" / STORE
    folder.mkdir(parents=True)
    return folder


class Kubelet:
    """Starts the pods that store code, and runs their programs as processes."""

    def __init__(self, server: FakeApiServer, store: Path) -> None:
        self.pods: list[Json] = []
        self.status: Json = RUNNING
        self.program = receiving(store, STORE_PATH)
        self._server = server

    async def run(self) -> None:
        known: set[str] = set()
        while True:
            for (kind, namespace, name), pod in list(self._server.objects.items()):
                if kind == "pods" and name.startswith("ddp-code-") and name not in known:
                    known.add(name)
                    self.pods.append(pod)
                    self._server.programs[name] = self.program
                    self._server.update("pods", namespace, name, {"status": self.status})
            await asyncio.sleep(0.005)


@pytest.fixture
async def kubelet(server: FakeApiServer, store: Path) -> AsyncIterator[Kubelet]:
    kubelet = Kubelet(server, store)
    task = asyncio.create_task(kubelet.run())
    yield kubelet
    task.cancel()


@pytest.fixture
def claim(server: FakeApiServer) -> Callable[..., None]:
    def create(*modes: str, **metadata: str) -> None:
        spec = {"accessModes": modes or ("ReadWriteMany",)}
        named = {"name": "team", "namespace": "research", **metadata}
        server.create("persistentvolumeclaims", {"metadata": named, "spec": spec})

    return create


def command(project: Path, *more: str) -> tuple[str, ...]:
    sent = ("--workdir", str(project), "--code-volume", "pvc/team")
    return (*SHORT, *sent, *more, "--yes", "--detach", "--", "python", "train.py")


def sent_bytes(server: FakeApiServer) -> int:
    """Return how often bytes were sent to a pod."""
    return sum(request.query.get("stdin") == "true" for request in server.requests)


async def test_large_folder_is_stored_before_the_job_exists(
    ddp: Ddp,
    server: FakeApiServer,
    project: Path,
    store: Path,
    kubelet: Kubelet,
    claim: Callable[..., None],
    tmp_path: Path,
) -> None:
    claim()
    result = await ddp(*command(project, "--replicas", "2"))
    assert result.exit_code == 0, result.output
    assert "KiB in claim team, sent by a pod" in " ".join(result.stderr.split())
    assert "the code is in claim team" in result.stderr
    ways = [(r.method, r.path.rsplit("/")[-1]) for r in server.requests if r.method != "GET"]
    [pod] = kubelet.pods
    name, [config_map] = pod["metadata"]["name"], made(server, "configmaps")
    assert ways == [
        ("POST", "pods"),
        ("DELETE", name),
        ("POST", "configmaps"),
        ("POST", "ddpjobs"),
        ("PATCH", config_map),
    ]
    assert made(server, "pods") == []
    stored = server.objects["configmaps", "research", config_map]
    reference = base64.b64decode(stored["binaryData"]["part-0"])
    unpack(reference, stored["data"]["id"], tmp_path / "root")
    for file in ("train.py", "tokens.bin"):
        assert (tmp_path / "root" / "work" / file).read_bytes() == (project / file).read_bytes()
    [archive] = (store / "ddp-code").iterdir()
    assert reference.endswith(archive.name.removesuffix(".tar.gz").encode())


async def test_equal_code_is_sent_once_and_damaged_code_again(
    ddp: Ddp,
    server: FakeApiServer,
    project: Path,
    store: Path,
    kubelet: Kubelet,
    claim: Callable[..., None],
) -> None:
    claim()
    for number in range(2):
        result = await ddp(*command(project))
        assert result.exit_code == 0, result.output
        assert ("already has this code" in result.stderr) == bool(number)
        server.delete("ddpjobs", "research", "try")
    assert sent_bytes(server) == 1
    [archive] = (store / "ddp-code").iterdir()
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-20])
    result = await ddp(*command(project))
    assert result.exit_code == 0, result.output
    assert (sent_bytes(server), archive.read_bytes()) == (2, whole)
    assert len(kubelet.pods) == 3
    assert made(server, "pods") == []


async def test_small_folder_needs_no_pod_but_a_claim_that_exists(
    ddp: Ddp, server: FakeApiServer, project: Path, claim: Callable[..., None]
) -> None:
    (project / "tokens.bin").unlink()
    result = await ddp(*command(project))
    assert result.exit_code == 1
    assert "there is no claim team in namespace research" in " ".join(result.stderr.split())
    claim()
    result = await ddp(*command(project))
    assert result.exit_code == 0, result.output
    assert writes(server) == ["POST", "POST", "PATCH"]


def no_claim(server: FakeApiServer) -> None:
    server.delete("persistentvolumeclaims", "research", "team")


def claim_of(*modes: str, **metadata: str) -> Callable[[FakeApiServer], None]:
    def change(server: FakeApiServer) -> None:
        patch = {"spec": {"accessModes": list(modes)}, "metadata": metadata}
        server.update("persistentvolumeclaims", "research", "team", patch)

    return change


def no_exec(server: FakeApiServer) -> None:
    server.denied.add(("get", "pods/exec"))


def no_pods(server: FakeApiServer) -> None:
    denied = {"kind": "Status", "message": "you cannot create pods", "reason": "Forbidden"}
    server.faults = [Fault("POST", 403, denied, times=9, path_part="/pods")]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (no_claim, "there is no claim team in namespace research; create it"),
        (claim_of("ReadWriteOnce"), "is ReadWriteOnce, so one node alone can use it, but the job"),
        (claim_of("ReadWriteMany", deletionTimestamp="2026-01-01T00:00:00Z"), "is being deleted"),
        (no_pods, "you cannot create pods: storing code in a volume takes the rights"),
        (no_exec, "get and create pods/exec"),
    ],
)
async def test_code_that_cannot_be_stored_creates_nothing(
    ddp: Ddp,
    server: FakeApiServer,
    project: Path,
    kubelet: Kubelet,
    claim: Callable[..., None],
    change: Callable[[FakeApiServer], None],
    why: str,
) -> None:
    claim()
    change(server)
    result = await ddp(*command(project, "--replicas", "2"))
    assert result.exit_code == 1, result.output
    assert why in " ".join(result.stderr.split())
    assert made(server, "pods") + made(server, "configmaps") + made(server, "ddpjobs") == []
    assert len(kubelet.pods) == (change is no_exec)


@pytest.mark.parametrize("replicas", ["1", "2"])
async def test_claim_of_one_node_is_enough_where_there_is_one(
    ddp: Ddp,
    server: FakeApiServer,
    project: Path,
    kubelet: Kubelet,
    claim: Callable[..., None],
    replicas: str,
) -> None:
    claim("ReadWriteOnce")
    if replicas == "2":
        server.create("nodes", {"metadata": {"name": "laptop", "namespace": ""}})
    result = await ddp(*command(project, "--replicas", replicas))
    assert result.exit_code == 0, result.output
    assert len(kubelet.pods) == 1


async def test_claim_that_may_not_be_read_is_trusted(
    ddp: Ddp, server: FakeApiServer, project: Path, kubelet: Kubelet
) -> None:
    denied = {"kind": "Status", "message": "no", "reason": "Forbidden"}
    server.faults = [Fault("GET", 403, denied, times=9, path_part="/persistentvolumeclaims")]
    result = await ddp(*command(project, "--replicas", "2"))
    assert result.exit_code == 0, result.output
    assert len(kubelet.pods) == 1


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": 'persistentvolumeclaim "team" not bound',
        }
    ],
}
NO_PYTHON = {
    "phase": "Failed",
    "containerStatuses": [
        {
            "name": "upload",
            "state": {
                "terminated": {
                    "exitCode": 128,
                    "reason": "StartError",
                    "message": 'exec: "python": executable file not found in $PATH',
                }
            },
        }
    ],
}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (UNSCHEDULABLE, "has not started in 0.5 s: Unschedulable: persistentvolumeclaim"),
        (NO_PYTHON, "ended before it got the code: StartError: exec:"),
        ({"phase": "Pending"}, "has not started in 0.5 s: Unable to attach or mount volumes"),
    ],
)
async def test_pod_that_does_not_start_is_deleted(
    ddp: Ddp,
    server: FakeApiServer,
    project: Path,
    kubelet: Kubelet,
    claim: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    status: Json,
    why: str,
) -> None:
    claim()
    kubelet.status = status
    monkeypatch.setattr(volume, "_START_SECONDS", 0.5)
    monkeypatch.setattr(volume, "_LINE_SECONDS", 0.1)
    text = "Unable to attach or mount volumes"
    event = {"name": "e", "namespace": "research"}
    server.create("events", {"metadata": event, "type": "Warning", "message": text})
    result = await ddp(*command(project))
    assert result.exit_code == 1, result.output
    said = " ".join(result.stderr.split())
    assert why in said
    if status is not NO_PYTHON:
        assert "still waiting for pod ddp-code-" in said
    assert made(server, "pods") + made(server, "ddpjobs") == []
    assert len(kubelet.pods) == 1


async def test_full_volume_is_named_and_nothing_stays(
    ddp: Ddp,
    server: FakeApiServer,
    project: Path,
    store: Path,
    kubelet: Kubelet,
    claim: Callable[..., None],
) -> None:
    claim()
    (store / "ddp-code").touch()  # a folder cannot be made, as on a volume that is full
    result = await ddp(*command(project))
    assert result.exit_code == 1, result.output
    assert "could not store the code: " in " ".join(result.stderr.split())
    assert made(server, "pods") + made(server, "ddpjobs") == []
    assert len(kubelet.pods) == 1


def request(code: CodeFolder, **more: Any) -> Manifest:
    words = ["python", "train.py"]
    return job_manifest(JobRequest(name="try", image="me/x:1", command=words, code=code, **more))


LARGE = CodeFolder({"tokens.bin": (random.Random(2).randbytes(3000), False)}, "0001", volume=CLAIM)


@pytest.mark.parametrize("sends", [False, True])
async def test_interruption_deletes_the_pod(
    cluster: Cluster,
    server: FakeApiServer,
    kubelet: Kubelet,
    claim: Callable[..., None],
    sends: bool,
) -> None:
    claim()
    begun = asyncio.Event()

    async def never_ends(run: ProgramRun) -> int:
        if run.command[-1] == "0":
            return MISSING
        async for _ in run.input():
            begun.set()
        return 0

    kubelet.program = never_ends
    if not sends:
        kubelet.status = {"phase": "Pending"}
    task = asyncio.create_task(store_code(cluster, "research", request(LARGE), LARGE))
    await eventually(lambda: begun.is_set() if sends else bool(kubelet.pods))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert made(server, "pods") == []


async def test_pod_that_cannot_be_deleted_is_named(
    cluster: Cluster, server: FakeApiServer, kubelet: Kubelet, claim: Callable[..., None]
) -> None:
    claim()
    lines: list[str] = []
    denied = {"kind": "Status", "message": "you cannot delete pods", "reason": "Forbidden"}
    server.faults = [Fault("DELETE", 403, denied, times=9)]
    await store_code(cluster, "research", request(LARGE), LARGE, tell=lines.append)
    assert "could not be deleted (you cannot delete pods): delete it; it ends within" in lines[-1]
    assert kubelet.pods[0]["spec"]["activeDeadlineSeconds"] == 1620


def test_pod_is_as_unprivileged_as_the_jobs_and_has_no_other_volume() -> None:
    job = request(LARGE, user=1000, env_from=["secret/keys"])
    job["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
    job = admitted(job, PodSecurity("restricted"))
    pod = upload_pod(job, "x", CLAIM, node="", lifetime_seconds=60)
    spec, of_job = pod["spec"], job["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert container["securityContext"] == of_job["containers"][0]["securityContext"]
    assert spec["securityContext"] == of_job["securityContext"]
    assert spec["tolerations"] == of_job["tolerations"]
    assert container["image"] == "me/x:1"
    assert "env" not in container
    assert "envFrom" not in container
    assert [one["name"] for one in spec["volumes"]] == ["ddp-code-store"]
    assert spec["restartPolicy"] == "Never"
    assert "nodeName" not in spec
    bucket = code_volume("gs://team")
    job = request(replace(LARGE, volume=bucket))
    pod = upload_pod(job, "x", bucket, node="", lifetime_seconds=60)
    assert pod["metadata"]["annotations"] == {"gke-gcsfuse/volumes": "true"}


async def test_new_large_code_travels_once_and_pods_get_its_reference(
    ddp: Ddp, server: FakeApiServer, project: Path, store: Path, kubelet: Kubelet, tmp_path: Path
) -> None:
    server.create("ddpjobs", with_code(CODE))
    folders = [tmp_path / f"pod-{index}" for index in (0, 1)]
    for index, folder in enumerate(folders):
        folder.mkdir()
        name = started(server, index)
        server.update("pods", "research", name, {"spec": {"nodeName": "node-a"}})
        server.programs[name] = receiving(folder)
    result = await ddp("run", "--into", NAME, "--workdir", str(project), "--yes", "--detach")
    assert result.exit_code == 0, result.output
    [archive] = (store / "ddp-code").iterdir()
    reference = f"stored sha256:{archive.name.removesuffix('.tar.gz')}"
    code_id, _, parts = requested(server).partition("/")
    assert parts == "1"
    assert [(folder / code_id).read_text() for folder in folders] == [reference] * 2
    unpack(reference.encode(), code_id, tmp_path / "root")
    assert (tmp_path / "root" / "work" / "train.py").read_text() == "print(2)\n"
    [pod] = kubelet.pods
    assert pod["spec"]["nodeName"] == "node-a", "its claim may be of one node"
    [left] = [name for name in made(server, "pods") if name.startswith("ddp-code-")]
    assert server.objects["pods", "research", left]["metadata"]["deletionTimestamp"]


async def test_new_large_code_of_a_job_without_a_volume_is_refused(
    ddp: Ddp, server: FakeApiServer, project: Path
) -> None:
    server.create("ddpjobs", with_code())
    result = await ddp("run", "--into", NAME, "--workdir", str(project), "--yes")
    assert result.exit_code == 2
    assert "more can be sent" in " ".join(result.stderr.split())
    assert "code-volume" in result.stderr
    assert writes(server) == []


async def test_dry_run_stores_nothing(ddp: Ddp, server: FakeApiServer, project: Path) -> None:
    sent = ("--workdir", str(project), "--code-volume", "gs://team")
    result = await ddp(*SHORT, *sent, "--dry-run", "--", "python", "train.py")
    assert result.exit_code == 0, result.output
    assert "note: bucket team does not have the code" in result.stderr
    assert server.requests == []


async def test_volume_without_a_folder_is_refused(ddp: Ddp) -> None:
    result = await ddp(*SHORT, "--code-volume", "pvc/team", "--", "python", "train.py")
    assert result.exit_code == 2
    assert "code-volume: only a folder can be stored there" in " ".join(result.stderr.split())
