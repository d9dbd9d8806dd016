"""`run --into`: new code in the pods of a running job."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ddp_client.cli.commands.running import into
from ddp_client.submit import CodeFolder, JobRequest, job_manifest
from ddp_operator.api.code import Code
from ddp_protocol.code_archive import ROOT, SENT, unpack

from tests.good_manifests import Json
from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import condition, training
from tests.unit.cli.test_logs import started
from tests.unit.cli.test_run import made, writes
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer
from tests.unit.kube.fake_channels import FakeProgram, ProgramRun

OLD = CodeFolder({"train.py": (b"print(1)\n", False)}, token="0001")
JOB = ("ddpjobs", "research", NAME)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print(2)\n")
    return folder


def with_code(folder: CodeFolder = OLD, **more: Any) -> Json:
    """Return a running job that was created with this folder."""
    request = JobRequest(name=NAME, image="me/x:1", command=["python", "train.py"], code=folder)
    template = job_manifest(request)["spec"]["template"]
    notes = {"launcher": "InPlace", "code": str(folder.code), "codeRequested": str(folder.code)}
    return training(
        spec={"template": template, **more.pop("spec", {})}, **{"bookkeeping": notes, **more}
    )


def receiving(folder: Path, path: str = f"{ROOT}/{SENT}") -> FakeProgram:
    """Run the client's program as a process, with a pod's folder, at this path there, elsewhere."""

    async def program(run: ProgramRun) -> int:
        words = [word.replace(path, str(folder)) for word in run.command[1:]]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdin=pipe, stderr=pipe
        )
        assert process.stdin is not None
        try:
            left = int(words[-1])
            if left:
                async for piece in run.input():
                    process.stdin.write(piece)
                    left -= len(piece)
                    if left <= 0:
                        break
            _, errors = await process.communicate()
        finally:
            if process.returncode is None:  # the client has left
                process.kill()
                await process.wait()
        if errors:
            await run.print(errors, error=True)
        return process.returncode or 0

    return program


@pytest.fixture
def pods(server: FakeApiServer, tmp_path: Path) -> Callable[[], list[Path]]:
    """Creates two running pods; returns the folders that receive code in them."""

    def create() -> list[Path]:
        folders = [tmp_path / f"pod-{index}" for index in (0, 1)]
        for index, folder in enumerate(folders):
            folder.mkdir()
            server.programs[started(server, index)] = receiving(folder)
        return folders

    return create


OTHER = "eeeeeeeeeeee-0000/1"


def config_map(server: FakeApiServer, name: str) -> str:
    labels = {"ddp-operator.io/job-name": NAME}
    metadata = {"name": name, "namespace": "research", "labels": labels}
    server.create("configmaps", {"metadata": metadata})
    return name


def code_map(server: FakeApiServer, text: str) -> str:
    """Create the ConfigMap of code of one part; return its name."""
    code = Code.parse(text)
    assert code is not None
    return config_map(server, code.config_maps(NAME)[0])


def requested(server: FakeApiServer) -> str:
    return str(server.objects[JOB]["metadata"]["annotations"]["ddp-operator.io/code"])


async def test_new_code_reaches_all_pods_before_the_operator_hears_of_it(
    ddp: Ddp, server: FakeApiServer, project: Path, pods: Callable[[], list[Path]], tmp_path: Path
) -> None:
    server.create("ddpjobs", with_code())
    folders = pods()
    result = await ddp("run", "--into", NAME, "--workdir", str(project), "--yes", "--detach")
    assert result.exit_code == 0, result.output
    assert "processes restart in its 2 pods, which stay; no restart is charged" in result.stderr
    code = Code.parse(requested(server))
    assert code is not None
    for folder in folders:
        [sent] = folder.iterdir()
        unpack(sent.read_bytes(), sent.name, tmp_path)
        assert sent.name == code.id
    assert (tmp_path / "work" / "train.py").read_text() == "print(2)\n"
    [new] = code.config_maps(NAME)
    [owner] = server.objects["configmaps", "research", new]["metadata"]["ownerReferences"]
    assert owner["uid"] == server.objects[JOB]["metadata"]["uid"]
    changes = [request for request in server.requests if request.method in ("POST", "PATCH")]
    assert changes[-1].method == "PATCH", "the job changes last"


async def test_only_code_that_a_pod_may_still_need_stays(
    ddp: Ddp, server: FakeApiServer, project: Path, pods: Callable[[], list[Path]]
) -> None:
    job = with_code()
    job["metadata"]["annotations"] = {"ddp-operator.io/code": OTHER}
    server.create("ddpjobs", job)
    used, asked = code_map(server, str(OLD.code)), code_map(server, OTHER)
    mounted, ended = code_map(server, "dddddddddddd-0000/1"), code_map(server, f"{'c' * 12}-0000/1")
    unused = code_map(server, "bbbbbbbbbbbb-0000/1")
    scripts = config_map(server, f"{NAME}-scripts-1")
    pods()
    for index, (phase, name) in enumerate({"Running": mounted, "Failed": ended}.items()):
        volume = Code("x", 0).volume(NAME)
        volume["projected"]["sources"] = [{"configMap": {"name": name}}]
        stored = server.objects["pods", "research", f"{NAME}-0-{index}"]
        spare = {**stored, "status": {**stored["status"], "phase": phase}}
        spare["metadata"] = {**stored["metadata"], "name": f"{NAME}-0-{index + 2}"}
        server.create("pods", {**spare, "spec": {**stored["spec"], "volumes": [volume]}})
    result = await ddp("run", "--into", NAME, "--workdir", str(project), "--yes", "--detach")
    assert result.exit_code == 0, result.output
    left = set(made(server, "configmaps")) - {f"{NAME}-code-{requested(server)[:-2]}-0"}
    assert left == {used, asked, mounted, scripts}
    assert not {ended, unused} & left


@pytest.mark.parametrize("by", ["another", "another job", "itself", "the status"])
async def test_change_of_the_job_while_code_is_sent(
    ddp: Ddp, server: FakeApiServer, project: Path, pods: Callable[[], list[Path]], by: str
) -> None:
    """Another command may have deleted what this one created."""
    server.create("ddpjobs", with_code())
    earlier = code_map(server, "bbbbbbbbbbbb-0000/1")
    pods()
    first = f"{NAME}-0-0"
    receive = server.programs[first]

    async def change_meanwhile(run: ProgramRun) -> int:
        code = await receive(run)
        if by == "the status":
            server.update(*JOB, {"status": {"restarts": 1}})
        elif by == "another job":
            server.delete(*JOB)
            server.create("ddpjobs", with_code())
        else:
            text = OTHER if by == "another" else f"{run.command[-2]}/1"
            server.update(*JOB, {"metadata": {"annotations": {"ddp-operator.io/code": text}}})
        return code

    server.programs[first] = change_meanwhile
    result = await ddp("run", "--into", NAME, "--workdir", str(project), "--yes", "--detach")
    is_sent = by in ("itself", "the status")
    assert (result.exit_code == 0) == is_sent, result.output
    assert (earlier in made(server, "configmaps")) != is_sent
    if not is_sent:
        why = {"another": "another command has changed digits", "another job": "2 of 2 pods do not"}
        assert why[by] in " ".join(result.stderr.split())
        annotations = server.objects[JOB]["metadata"].get("annotations") or {}
        assert annotations.get("ddp-operator.io/code") == (OTHER if by == "another" else None)


async def test_job_stopped_before_the_answer_gets_no_code(
    ddp: Ddp,
    server: FakeApiServer,
    project: Path,
    pods: Callable[[], list[Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.create("ddpjobs", with_code())
    pods()

    def stop() -> None:
        server.objects[JOB]["spec"]["suspend"] = True

    monkeypatch.setattr(into, "confirm", stop)
    result = await ddp("run", "--into", NAME, "--workdir", str(project), "--detach")
    assert result.exit_code == 1
    assert "kubectl ddp resume digits first" in " ".join(result.stderr.split())
    assert writes(server) == []


async def test_pod_replaced_while_code_is_sent_gets_it_too(
    ddp: Ddp,
    server: FakeApiServer,
    project: Path,
    pods: Callable[[], list[Path]],
    tmp_path: Path,
) -> None:
    server.create("ddpjobs", with_code())
    pods()
    second, new = f"{NAME}-0-1", tmp_path / "new"
    new.mkdir()
    receive = server.programs[second]

    async def end_afterwards(run: ProgramRun) -> int:
        code = await receive(run)
        server.delete("pods", "research", second)
        server.programs[started(server, 1, replacement=1)] = receiving(new)
        return code

    server.programs[second] = end_afterwards
    result = await ddp("run", "--into", NAME, "--workdir", str(project), "--yes", "--detach")
    assert result.exit_code == 0, result.output
    assert len([*new.iterdir()]) == 1


async def test_pod_without_a_launcher_keeps_the_job_as_it_is(
    ddp: Ddp, server: FakeApiServer, project: Path, pods: Callable[[], list[Path]]
) -> None:
    server.create("ddpjobs", with_code())
    first, second = pods()
    second.rmdir()
    result = await ddp("run", "--into", NAME, "--workdir", str(project), "--yes")
    assert result.exit_code == 1
    assert "digits-0-1: no launcher of this release runs in it" in result.stderr
    assert "annotations" not in server.objects[JOB]["metadata"]
    assert first.exists()


async def test_pod_keeps_few_archives(
    ddp: Ddp, server: FakeApiServer, project: Path, pods: Callable[[], list[Path]]
) -> None:
    server.create("ddpjobs", with_code())
    folders = pods()
    for number in range(4):
        (project / "train.py").write_text(f"print({number + 2})\n")
        result = await ddp("run", "--into", NAME, "--workdir", str(project), "--yes", "--detach")
        assert result.exit_code == 0, result.output
    assert [len([*folder.iterdir()]) for folder in folders] == [3, 3]


INSTALLS = CodeFolder(
    {**OLD.files, "requirements.txt": (b"einops\n", False)}, token="0001"
).with_requirements("requirements.txt", b"")
OUTSIDE = OLD.with_requirements("", b"einops\n")


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (with_code(CodeFolder({"train.py": (b"print(2)\n", False)}, "0001")), "already has this"),
        (
            with_code(bookkeeping={"launcher": "InPlace", "savedInPod": 0}),
            "only new pods start alike",
        ),
        (training(), "it has no code to replace: create it with --workdir"),
        (with_code(bookkeeping={}), "no launcher has answered"),
        (
            with_code(spec={"restart": {"scope": "Gang"}}),
            "spec.restart.scope is Gang, which replaces pods",
        ),
        (with_code(spec={"suspend": True}), "kubectl ddp resume digits first"),
        (with_code(conditions=[condition("Failed", "PodFailed")]), "has ended"),
        (with_code(INSTALLS), "requirements.txt has changed or is not sent"),
        (with_code(OUTSIDE), ".ddp-requirements.txt has changed or is not sent"),
        (
            with_code(
                spec={
                    "managedBy": "kueue.x-k8s.io/multikueue",
                    "scheduling": {"queueName": "team"},
                }
            ),
            "in another cluster: use that cluster's context",
        ),
        (with_code(), "2 of 2 pods do not run"),
    ],
)
async def test_job_that_cannot_take_code_is_refused(
    ddp: Ddp, server: FakeApiServer, project: Path, job: Json, why: str
) -> None:
    server.create("ddpjobs", job)
    result = await ddp("run", "--into", NAME, "--workdir", str(project), "--yes")
    assert result.exit_code == 1, result.output
    assert why in " ".join(result.stderr.split())
    assert writes(server) == []


@pytest.mark.parametrize("inside", [True, False])
async def test_unchanged_requirements_are_no_obstacle(
    ddp: Ddp, server: FakeApiServer, project: Path, pods: Callable[[], list[Path]], inside: bool
) -> None:
    server.create("ddpjobs", with_code(INSTALLS if inside else OUTSIDE))
    pods()
    file = (project if inside else project.parent) / "requirements.txt"
    file.write_text("einops\n")
    pip = () if inside else ("--pip", str(file))
    words = ("--into", NAME, "--workdir", str(project), "--yes", "--detach")
    result = await ddp("run", *words, *pip)
    assert result.exit_code == 0, result.output


async def test_packages_of_a_job_that_installs_none_are_refused(
    ddp: Ddp, server: FakeApiServer, project: Path
) -> None:
    server.create("ddpjobs", with_code())
    (project / "requirements.txt").write_text("einops\n")
    words = ("--into", NAME, "--workdir", str(project), "--pip", str(project / "requirements.txt"))
    result = await ddp("run", *words, "--yes")
    assert result.exit_code == 1
    assert "packages are installed only when pods start" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "name the folder with the code"),
        (("--workdir", ".", "--image", "x"), "--image: the job keeps its options"),
        (("--workdir", ".", "--gpus", "1"), "--gpus: the job keeps its options"),
        (("--workdir", ".", "--", "python", "a.py"), "keeps its name and command"),
        (("--workdir", ".", "other"), "keeps its name and command"),
    ],
)
async def test_other_options_are_refused(
    ddp: Ddp, server: FakeApiServer, words: tuple[str, ...], why: str
) -> None:
    result = await ddp("run", "--into", NAME, *words)
    assert result.exit_code == 2
    assert why in " ".join(result.stderr.split())
    assert server.requests == []


async def test_status_names_the_code(ddp: Ddp, server: FakeApiServer) -> None:
    server.create("ddpjobs", with_code())
    result = await ddp("status", NAME)
    assert OLD.code.id in result.stdout
