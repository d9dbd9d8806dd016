import asyncio
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from ddp_client.cli.__main__ import program
from ddp_client.cli.commands import wait
from ddp_client.remote import following

from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import ESCAPES, condition
from tests.unit.kube.fake_api_server import FakeApiServer, Fault
from tests.unit.submit.test_job import gpu_node
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


async def test_gpus_are_selected_by_the_label_of_the_nodes(ddp: Ddp, server: FakeApiServer) -> None:
    node = gpu_node("k8s.amazonaws.com/accelerator", "nvidia-h100-80gb")
    node["metadata"]["namespace"] = ""
    node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    server.create("nodes", node)
    result = await ddp(*SHORT, "--gpus", "h100:8", "--yes", "--detach", "--", "python", "train.py")
    assert result.exit_code == 0, result.output
    said = " ".join(result.stderr.split())
    assert "nodes with label k8s.amazonaws.com/accelerator=nvidia-h100-80gb" in said
    pod = server.objects["ddpjobs", "research", "try"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"k8s.amazonaws.com/accelerator": "nvidia-h100-80gb"}
    using = {"nodeName": "a", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "3"}}}]}
    for name, spec in (("uses", using), ("other", {"nodeName": "a", "containers": [{}]})):
        server.create("pods", {"metadata": {"name": name, "namespace": "other"}, "spec": spec})
    listed = await ddp("gpus")
    assert listed.exit_code == 0, listed.output
    assert listed.stdout.splitlines()[1].split() == [
        *("nvidia-h100-80gb", "nvidia.com/gpu", "1", "8", "5", "5"),
        *("--gpus", "nvidia-h100-80gb:N"),
    ]


async def test_unknown_gpu_type_is_refused(ddp: Ddp, server: FakeApiServer) -> None:
    result = await ddp(*SHORT, "--gpus", "h99", "--yes")
    assert result.exit_code == 2
    assert "unknown type, use one of a100" in " ".join(result.stderr.split())
    assert [request.path for request in server.requests] == ["/api/v1/nodes"]


async def test_dry_run_tells_that_a_gpu_type_is_gkes(ddp: Ddp, server: FakeApiServer) -> None:
    result = await ddp(*SHORT, "--gpus", "h100:8", "--dry-run")
    assert "note: --dry-run without =server asks no cluster, so h100 is selected by" in (
        result.stderr
    )
    assert yaml.safe_load(result.stdout)["spec"]["accelerator"]["type"] == "nvidia-h100-80gb"
    assert server.requests == []


async def test_gpus_without_the_right_to_list_nodes(ddp: Ddp, server: FakeApiServer) -> None:
    denied = {"kind": "Status", "message": "no", "reason": "Forbidden"}
    server.faults = [Fault("GET", 403, denied, times=9, path_part="/nodes")]
    result = await ddp(*SHORT, "--gpus", "h100:8", "--", "python", "train.py")
    assert "you may not list nodes, so h100 is selected by GKE's label" in result.stderr
    assert "label cloud.google.com/gke-accelerator=nvidia-h100-80gb" in (
        " ".join(result.stderr.split())
    )
    assert "you may not list nodes" in (await ddp("gpus")).stderr


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


async def test_option_that_contradicts_the_job_is_refused(ddp: Ddp) -> None:
    line = (*SHORT, "--replicas", "2", "--gpus", "h100:4", "--dry-run", "--", "torchrun")
    for option, said in (
        ("--nnodes=1", "torchrun --nnodes=1, but replicas is 2"),
        ("--nproc_per_node=8", "torchrun --nproc_per_node=8, but each pod has 4 GPUs"),
    ):
        result = await ddp(*line, option, "train.py")
        assert result.exit_code == 2
        assert said in " ".join(result.stderr.split())


async def test_doubtful_option_gets_a_note(ddp: Ddp) -> None:
    line = (*SHORT, "--gpus", "h100:4", "--dry-run", "--", "torchrun", "--nproc_per_node=2", "t.py")
    result = await ddp(*line)
    assert result.exit_code == 0
    assert "note: torchrun --nproc_per_node=2: set spec.nprocPerNode to 2" in result.stderr


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


async def test_script_that_is_not_sent_is_named(
    ddp: Ddp, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(script).parent)
    note = "note: train.py of this folder is not sent"
    assert note in (await ddp(*SHORT, "--dry-run", "--", "python", "train.py")).stderr
    sent = await ddp(*SHORT, "--dry-run", "--script", "train.py", "--", "python", "train.py")
    assert note not in sent.stderr


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


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "/work/My_train.py", "--lr", "1"), "my-train"),
        (("torchrun", "-m", "my.pretrain"), "pretrain"),
        (("bash", "run.sh"), "bash"),
    ],
)
async def test_words_after_dashes_are_no_name(
    ddp: Ddp, server: FakeApiServer, command: tuple[str, ...], name: str
) -> None:
    result = await ddp("run", "--image", "me/train:1", "--yes", "--detach", "--", *command)
    assert result.exit_code == 0, result.output
    pod = server.objects["ddpjobs", "research", name]["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == [*command]


async def test_run_without_name_and_command_is_refused(ddp: Ddp) -> None:
    result = await ddp("run", "--image", "me/train:1", "--yes")
    assert result.exit_code == 2
    assert "NAME: name the job, or give its command after --" in result.stderr


async def test_replace_deletes_the_job_of_that_name_first(ddp: Ddp, server: FakeApiServer) -> None:
    line = (*SHORT, "--replace", "--detach")
    assert (await ddp(*line, "--yes")).exit_code == 0
    first = server.objects["ddpjobs", "research", "try"]["metadata"]["uid"]
    asked = await ddp(*line)
    assert "deletes try and its status" in asked.stderr
    assert server.objects["ddpjobs", "research", "try"]["metadata"]["uid"] == first
    assert "or add --replace" in (await ddp(*SHORT, "--yes", "--detach")).stderr
    result = await ddp(*line, "--yes")
    assert result.exit_code == 0, result.output
    assert server.objects["ddpjobs", "research", "try"]["metadata"]["uid"] != first
    assert writes(server)[-2:] == ["DELETE", "POST"]


async def read_again(server: FakeApiServer) -> None:
    """Wait until the job was read twice."""
    before = server.count("GET", "ddpjobs/try")
    await eventually(lambda: server.count("GET", "ddpjobs/try") > before + 1)


IMAGE = 'failed to pull image "me/train:1": not found'


async def test_missing_image_is_told_once_with_advice(ddp: Ddp, server: FakeApiServer) -> None:
    running = asyncio.ensure_future(ddp(*SHORT, "-y"))
    await eventually(lambda: made(server, "ddpjobs") == ["try"])
    for reason in ("ErrImagePull", "ImagePullBackOff") * 2:
        status = {"observedGeneration": 0, "phase": "Starting", "reason": reason}
        server.update(
            *("ddpjobs", "research", "try"), {"status": {**status, "message": f"{reason}: {IMAGE}"}}
        )
        await read_again(server)
    ended = {"observedGeneration": 0, "phase": "Succeeded"}
    ended["conditions"] = [condition("Succeeded", "Because")]
    server.update("ddpjobs", "research", "try", {"status": ended})
    said = (await running).stderr
    assert said.count("not found") == 1
    assert "-> check the image's name and tag" in said
    assert "In 5m the pod is given up" in said


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
        ((*SHORT, "--gpus", "h100:x"), "use a number from 1 to 128"),
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


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another Python than this one, first on the PATH."""
    path = tmp_path / "bin" / "python"
    path.parent.mkdir()
    path.write_text('#!/bin/sh\n[ "$2" = fail ] && exit 1\necho "mine runs $*"\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path


def local(*words: str) -> Result:
    """Run the command in this thread, which alone may handle signals."""
    return CliRunner().invoke(program, ["run", "try", "--local", *words])


def test_local_run_uses_the_python_on_the_path(python: Path, script: str) -> None:
    result = local("--script", script, "--max-restarts", "0", "--", "python", script, "--lr", "1")
    assert result.exit_code == 0, result.output
    assert f"rank 0 | mine runs {script} --lr 1" in result.stdout
    assert f"every pod is a process of this machine, run by {python}" in result.stdout
    assert "image" not in result.stdout.split("restarts")[0]
    again = f"kubectl ddp run try --image IMAGE --max-restarts 0 --script {script} -- python"
    assert f"try next  {again} {script} --lr 1" in result.stdout


def test_local_run_starts_in_its_folder(python: Path, script: str) -> None:
    python.write_text('#!/bin/sh\necho "runs $* in $PWD"\n')
    folder = Path(script).parent
    result = local("--workdir", str(folder), "--max-restarts", "0", "--", "python", "train.py")
    assert result.exit_code == 0, result.output
    assert f"rank 0 | runs train.py in {folder}" in result.stdout


@pytest.mark.usefixtures("python")
def test_local_run_that_fails_has_the_exit_code_of_the_help() -> None:
    result = local("--max-restarts", "0", "--", "sh", "-c", "python x fail")
    assert result.exit_code == 3, result.output
    assert "try next" not in result.stdout
