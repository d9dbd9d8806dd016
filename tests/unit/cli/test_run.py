import asyncio
import json
from pathlib import Path

import pytest
import yaml
from ddp_client.cli.commands import wait
from ddp_client.remote import following

from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import ESCAPES, condition
from tests.unit.kube.fake_api_server import FakeApiServer, Fault
from tests.waiting import eventually

SHORT = ("run", "try", "--image", "me/train:1")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(following, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(following, "SHORT_POLL_SECONDS", 0.02)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return str(path)


def enforce(server: FakeApiServer, level: str) -> None:
    server.namespace_labels["pod-security.kubernetes.io/enforce"] = level


def writes(server: FakeApiServer) -> list[str]:
    return [request.method for request in server.requests if request.method != "GET"]


def made(server: FakeApiServer, plural: str) -> list[str]:
    return [name for kind, _, name in server.objects if kind == plural]


async def test_detached_run_creates_a_job(ddp: Ddp, server: FakeApiServer) -> None:
    result = await ddp(*SHORT, "--yes", "--detach", "--", "python", "-c", "print(1)")
    assert result.exit_code == 0, result.output
    assert result.stdout == "ddpjob.ddp-operator.io/try created\n"
    stored = server.objects["ddpjobs", "research", "try"]
    [container] = stored["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-c", "print(1)"]
    assert [(r.method, r.path.split("/")[-1]) for r in server.requests] == [
        ("GET", "research"),
        ("POST", "ddpjobs"),
    ]


async def test_plan_is_shown_before_a_job_is_created(ddp: Ddp, server: FakeApiServer) -> None:
    result = await ddp(
        *(*SHORT, "--gpus", "h100:8", "--replicas", "4", "--spot", "--queue", "team"),
        *("--", "python", "train.py"),
    )
    assert result.exit_code == 2
    assert "no terminal for a confirmation, nothing was changed; add --yes" in result.stderr
    assert "DDPJob try in namespace research: 4 pods with 8 processes each: 32 GPUs" in (
        " ".join(result.stderr.split())
    )
    for said in ("spot", "team", "python -m torch.distributed.run train.py", "are lost"):
        assert said in " ".join(result.stderr.split())
    assert max(map(len, result.stderr.splitlines())) <= 80
    assert writes(server) == []


async def test_plan_shows_sizes_of_an_elastic_group(ddp: Ddp) -> None:
    sizes = ("--replicas", "4", "--min-replicas", "2", "--max-replicas", "6", "--spares", "2")
    memory = ("--memory-checkpoint", "64Gi,copies=1")
    result = await ddp(*SHORT, *sizes, *memory, "--launcher", "inject", "--", "python", "train.py")
    said = " ".join(result.stderr.split())
    assert "least continues with 2 pods while others are missing" in said
    assert "most grows up to 6 pods when nodes are available" in said
    assert "spares 2 more pods to replace lost ones" in said
    assert "in memory 64Gi of each pod, 1 copy in other pods (ddp_trainer.memory)" in said
    plain = await ddp(*SHORT, "--replicas", "4", "--", "python", "train.py")
    assert "continues with" not in plain.stderr


async def test_dry_run_prints_manifests(ddp: Ddp, server: FakeApiServer, script: str) -> None:
    line = (*SHORT, "--script", script, "--dry-run", "--", "python", script, "--lr", "1")
    result = await ddp(*line)
    assert result.exit_code == 0, result.output
    scripts, job = yaml.safe_load_all(result.stdout)
    assert scripts["data"] == {"train.py": "print('hello')\n"}
    pod = job["spec"]["template"]["spec"]
    assert pod["volumes"][0]["configMap"]["name"] == scripts["metadata"]["name"]
    assert pod["containers"][0]["command"] == ["python", "/ddp-scripts/train.py", "--lr", "1"]
    assert server.requests == []
    as_json = json.loads((await ddp(*SHORT, "--dry-run", "-o", "json")).stdout)
    assert as_json["kind"] == "DDPJob"


async def test_server_dry_run_creates_nothing(ddp: Ddp, server: FakeApiServer, script: str) -> None:
    line = (*SHORT, "--script", script, "--dry-run=server")
    assert (await ddp(*line)).exit_code == 0
    assert [r.query for r in server.requests if r.method == "POST"] == [{"dryRun": "All"}] * 2
    assert made(server, "configmaps") == made(server, "ddpjobs") == []
    said = {"message": "admission webhook denied it", "reason": "Forbidden"}
    server.faults = [Fault("POST", 403, body=said, path_part="ddpjobs")]
    result = await ddp(*line)
    assert result.exit_code == 1
    assert "admission webhook denied it" in result.stderr


async def test_scripts_go_with_their_job(ddp: Ddp, server: FakeApiServer, script: str) -> None:
    assert (await ddp(*SHORT, "-y", "-d", "--script", script)).exit_code == 0
    [name] = made(server, "configmaps")
    job = server.objects["ddpjobs", "research", "try"]
    [owner] = server.objects["configmaps", "research", name]["metadata"]["ownerReferences"]
    assert owner["uid"] == job["metadata"]["uid"]
    assert not owner["blockOwnerDeletion"]  # which only admins may set on some clusters
    assert [(r.method, r.path.split("/")[-1]) for r in server.requests] == [
        ("GET", "research"),
        ("POST", "configmaps"),
        ("POST", "ddpjobs"),
        ("PATCH", name),
    ]
    [mount] = job["spec"]["template"]["spec"]["volumes"]
    assert mount["configMap"]["name"] == name


async def test_two_submissions_share_no_scripts(
    ddp: Ddp, server: FakeApiServer, script: str
) -> None:
    """The ConfigMap of an old job is deleted with that job, at any time."""
    assert (await ddp(*SHORT, "-y", "-d", "--script", script)).exit_code == 0
    server.delete("ddpjobs", "research", "try")
    assert (await ddp(*SHORT, "-y", "-d", "--script", script)).exit_code == 0
    assert len(made(server, "configmaps")) == 2


@pytest.mark.parametrize("lost", ["configmaps", "ddpjobs"])
async def test_lost_answer(ddp: Ddp, server: FakeApiServer, script: str, lost: str) -> None:
    """The creation took effect: the scripts are ours, but the job may be another's."""
    server.faults = [Fault("POST", None, path_part=lost, after_effect=True)]
    result = await ddp(*SHORT, "-y", "-d", "--script", script)
    assert result.exit_code == (0 if lost == "configmaps" else 1)
    assert made(server, "ddpjobs") == ["try"]


async def test_taken_name_leaves_nothing_behind(
    ddp: Ddp, server: FakeApiServer, script: str
) -> None:
    assert (await ddp(*SHORT, "-y", "-d")).exit_code == 0
    result = await ddp(*SHORT, "-y", "--script", script)
    assert result.exit_code == 1
    assert "job try already exists in namespace research" in result.stderr
    assert made(server, "configmaps") == []


async def test_restricted_namespace_gets_a_security_context(
    ddp: Ddp, server: FakeApiServer
) -> None:
    enforce(server, "restricted")
    result = await ddp(*SHORT)
    assert "user the image's; Pod Security restricted in this namespace needs a numeric" in (
        " ".join(result.stderr.split())
    )
    assert "if the image has none, add --user 1000" in " ".join(result.stderr.split())
    checked = await ddp(*SHORT, "--dry-run=server")
    [shown] = yaml.safe_load_all(checked.stdout)
    assert (await ddp(*SHORT, "-y", "-d")).exit_code == 0
    spec = server.objects["ddpjobs", "research", "try"]["spec"]
    assert shown["spec"] == spec
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["securityContext"]["allowPrivilegeEscalation"] is False


async def test_user_option_sets_the_security_context(ddp: Ddp, server: FakeApiServer) -> None:
    """With --user the namespace is not read."""
    line = (*SHORT, "--user", "1000")
    [shown] = yaml.safe_load_all((await ddp(*line, "--dry-run")).stdout)
    assert server.requests == []
    enforce(server, "restricted")
    told = await ddp(*line, "-y", "-d")
    assert " ".join(told.stderr.split()).count("user 1000") == 1
    assert server.objects["ddpjobs", "research", "try"]["spec"] == shown["spec"]
    assert shown["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == 1000


@pytest.mark.parametrize("status", [403, 404])
async def test_unreadable_namespace_gets_no_security_context(
    ddp: Ddp, server: FakeApiServer, status: int
) -> None:
    enforce(server, "restricted")
    answer = {"message": "no", "reason": "No"}
    server.faults = [Fault("GET", status, answer, path_part="/namespaces/research")]
    result = await ddp(*SHORT, "-y", "-d")
    assert (result.exit_code, "Pod Security" in result.output) == (0, False)
    pod = server.objects["ddpjobs", "research", "try"]["spec"]["template"]["spec"]
    assert "securityContext" not in pod


async def test_forbidden_mount_is_refused(ddp: Ddp, server: FakeApiServer) -> None:
    enforce(server, "baseline")
    result = await ddp(*SHORT, "-y", "-d", "--mount", "/disk:/data")
    assert result.exit_code == 2
    assert "forbids paths of nodes; use pvc/NAME or gs://BUCKET" in " ".join(result.stderr.split())
    assert writes(server) == []


async def test_a_cluster_without_ddpjobs(ddp: Ddp, server: FakeApiServer) -> None:
    server.resource_lists.clear()
    server.faults = [Fault("POST", 404, body={"message": "page not found"}, path_part="ddpjobs")]
    result = await ddp(*SHORT, "-y")
    assert result.exit_code == 1
    assert "the DDPJob CRD is not installed: install" in result.stderr


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Failed", 3)])
@pytest.mark.parametrize("quietly", [False, True])
async def test_exit_code_follows_the_job(
    ddp: Ddp, server: FakeApiServer, phase: str, code: int, quietly: bool
) -> None:
    running = asyncio.ensure_future(ddp(*SHORT, "-y", *(["--wait"] if quietly else [])))
    await eventually(lambda: made(server, "ddpjobs") == ["try"])
    await eventually(lambda: server.count("GET", "ddpjobs/try") >= 1)
    status = {
        "observedGeneration": 0,
        "phase": phase,
        "message": ESCAPES,
        "conditions": [condition(phase, "Because")],
    }
    server.update("ddpjobs", "research", "try", {"status": status})
    result = await running
    assert result.exit_code == code, result.output
    assert (f"-- {phase}: red" in result.stderr) == (not quietly)
    assert result.output.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("run", "try"), "--image: name an image"),
        (
            ("run", "try", "--local", "--dry-run"),
            "--dry-run needs a cluster: leave it out, or --local",
        ),
        (("run", "try", "--local", "-d"), "--detach needs a cluster"),
        (("run", "try", "--local", "--wait"), "--wait needs a cluster"),
        ((*SHORT, "--gpus", "h99"), "unknown type, use one of a100"),
        ((*SHORT, "--env", "A"), "use NAME=VALUE"),
        ((*SHORT, "--env", "RANK=1"), "RANK"),
        ((*SHORT, "--mount", "x"), "use pvc/NAME:/path"),
        ((*SHORT, "--script", "/nowhere.py"), "does not exist"),
        (("run", "Try", "--image", "x"), "use lower-case letters"),
        ((*SHORT, "--replicas", "0"), "0 is not in the range"),
        ((*SHORT, "--user", "0"), "user 0: give a number from 1"),
    ],
)
async def test_invalid_options_are_refused(
    ddp: Ddp, server: FakeApiServer, given: tuple[str, ...], said: str
) -> None:
    result = await ddp(*given, "--yes")
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert server.requests == []
