"""`run --workdir` and `--pip`: the folder, and what travels."""

import base64
import io
import subprocess
import tarfile
import zlib
from pathlib import Path

import pytest
import yaml
from ddp_client.submit import JobRequestError
from ddp_client.submit import folder as folder_module
from ddp_client.submit.folder import read_folder
from ddp_operator.ports import Manifest

from tests.unit.cli.conftest import Ddp
from tests.unit.cli.test_run import SHORT, made, writes
from tests.unit.kube.fake_api_server import FakeApiServer, Fault


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with rules, but no repository."""
    folder = tmp_path / "project"
    for name, text in {
        "train.py": "import lib\n",
        "pkg/lib.py": "x = 1\n",
        "data/huge.bin": "0" * 1000,
        "pkg/__pycache__/lib.pyc": "",
        ".venv/lib/torch.py": "",
        ".gitignore": "data/\n*.log\n",
        "run.log": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def git(folder: Path, *words: str) -> None:
    name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)


def test_files_that_gits_rules_ignore_stay_here(project: Path) -> None:
    expected = [".gitignore", "pkg/lib.py", "train.py"]
    files, left_out = read_folder(str(project))
    assert (sorted(files), left_out) == (expected, "")
    git(project, "init")
    assert sorted(read_folder(str(project))[0]) == expected
    git(project, "add", "-f", "run.log")
    (project / "train.py").unlink()
    assert sorted(read_folder(str(project))[0]) == [".gitignore", "pkg/lib.py", "run.log"]


def test_folder_of_a_repository_is_sent_alone(project: Path) -> None:
    git(project, "init")
    git(project, "add", "pkg/lib.py")
    (project / "pkg" / "new.py").touch()
    assert sorted(read_folder(str(project / "pkg"))[0]) == ["lib.py", "new.py"]


def test_links_become_files_only_within_the_folder(project: Path) -> None:
    (project / "same.py").symlink_to("train.py")
    (project / "outside").symlink_to("/etc/passwd")
    (project / "gone").symlink_to("nowhere")
    inner = project / "inner"
    inner.mkdir()
    git(inner, "init")
    files, left_out = read_folder(str(project))
    assert files["same.py"] == files["train.py"]
    assert not files.keys() & {"outside", "gone", "inner"}
    assert left_out == "3 links or repositories left out: gone, inner/, outside"


def test_programs_stay_programs(project: Path) -> None:
    (project / "train.py").chmod(0o755)
    files, _ = read_folder(str(project))
    assert [files[name][1] for name in ("train.py", "pkg/lib.py")] == [True, False]


def test_folders_that_cannot_be_sent(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "MAX_BYTES", 10)
    with pytest.raises(JobRequestError, match=r"largest: .*train\.py"):
        read_folder(str(project))
    empty = project / "data"
    (empty / ".gitignore").write_text("*\n")
    with pytest.raises(JobRequestError, match="leave no file"):
        read_folder(str(empty))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(JobRequestError, match="install git"):
        read_folder(str(project))


def files_of(config_maps: list[Manifest]) -> dict[str, bytes]:
    packed = b"".join(
        base64.b64decode(one["binaryData"][f"part-{number}"])
        for number, one in enumerate(config_maps)
    )
    with tarfile.open(fileobj=io.BytesIO(zlib.decompress(packed, 31))) as archive:
        return {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]


async def test_folder_travels_to_the_pods(
    ddp: Ddp, server: FakeApiServer, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    result = await ddp(*SHORT, "--workdir", ".", "--yes", "--detach", "--", "python", "train.py")
    assert result.exit_code == 0, result.output
    assert "is not sent" not in result.stderr
    said = " ".join(result.stderr.split())
    [name] = made(server, "configmaps")
    job = server.objects["ddpjobs", "research", "try"]
    code, parts = job["metadata"]["annotations"]["ddp-operator.io/code"].split("/")
    assert (name, parts) == (f"try-code-{code}-0", "1")
    assert f"code {code}: 3 files" in said
    config_map = server.objects["configmaps", "research", name]
    assert sorted(files_of([config_map])) == [".gitignore", "pkg/lib.py", "train.py"]
    [owner] = config_map["metadata"]["ownerReferences"]
    assert owner["uid"] == job["metadata"]["uid"]
    assert writes(server) == ["POST", "POST", "PATCH"]


async def test_refused_job_leaves_no_code_behind(
    ddp: Ddp, server: FakeApiServer, project: Path
) -> None:
    denied = {"kind": "Status", "message": "no", "reason": "Forbidden"}
    server.faults = [Fault("POST", 403, denied, times=9, path_part="/ddpjobs")]
    result = await ddp(*SHORT, "--workdir", str(project), "--yes", "--", "python", "train.py")
    assert result.exit_code == 1
    assert made(server, "configmaps") == []


async def test_ignored_script_is_named(
    ddp: Ddp, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    (project / ".gitignore").write_text("train.py\n")
    result = await ddp(*SHORT, "--workdir", ".", "--dry-run", "--", "python", "./train.py")
    assert "train.py of this folder is not sent" in result.stderr
    assert "change .gitignore" in result.stderr


async def test_requirements_within_and_outside_the_folder(ddp: Ddp, project: Path) -> None:
    inside, outside = project / "requirements.txt", project.parent / "more.txt"
    for file in (inside, outside):
        file.write_text("einops\n")
    lines = {
        inside: ("--workdir", str(project)),
        outside: ("--workdir", str(project)),
        project / "train.py": ("--script", str(project / "train.py")),
    }
    names = []
    for file, sent in lines.items():
        result = await ddp(*SHORT, *sent, "--pip", str(file), "--dry-run", "--", "python", "a.py")
        assert result.exit_code == 0, result.output
        *config_maps, job = yaml.safe_load_all(result.stdout)
        pod = job["spec"]["template"]["spec"]
        names.append(pod["initContainers"][0]["command"][-1])
        assert names[-1] in files_of(config_maps[-1:])
    assert names == ["requirements.txt", ".ddp-requirements.txt", ".ddp-requirements.txt"]


async def test_options_that_exclude_each_other(ddp: Ddp, project: Path) -> None:
    script = str(project / "train.py")
    both = await ddp(*SHORT, "--workdir", str(project), "--script", script)
    assert (both.exit_code, "use one of the two" in both.stderr) == (2, True)
    local = await ddp("run", "try", "--local", "--pip", script, "--", "python", script)
    assert (local.exit_code, "--pip needs a cluster" in local.stderr) == (2, True)


async def test_large_requirements_file_is_refused(ddp: Ddp, tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_bytes(b"#" * (1024 * 1024 + 1))
    result = await ddp(*SHORT, "--pip", str(file), "--dry-run", "--", "python", "a.py")
    assert result.exit_code == 2
    assert "pip: the file has more than 1048576 bytes" in " ".join(result.stderr.split())
