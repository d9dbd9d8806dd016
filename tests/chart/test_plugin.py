"""`kubectl-ddp` as one file, in an environment where nothing is installed."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ddp_client.cli.__main__ import program
from ddp_client.remote.cluster import JOBS
from ddp_operator import __version__

from tests.unit.cli.jobs import stored
from tests.unit.kube.conftest import kubeconfig, server
from tests.unit.kube.fake_api_server import FakeApiServer
from tools.chart import plugin
from tools.chart.plugin_preamble import KEPT_BESIDE, prune, refusal

__all__ = ["kubeconfig", "server"]

pytestmark = pytest.mark.nightly  # building the file takes 14 s

PYTHON = Path(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plugin.build(tmp_path_factory.mktemp("plugin"))


def run(file: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """-S: without this machine's libraries; -I: without those of the user, or of this folder."""
    return subprocess.run(
        [PYTHON, "-I", "-S", file, *arguments],
        env={"HOME": str(home), "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_plugin_shows_its_version(file: Path, home: Path) -> None:
    ended = run(file, home, "--version")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"ddp-operator {__version__}\n"
    [unpacked] = (home / ".cache/kubectl-ddp").glob("[!.]*")
    assert (unpacked / "site-packages/ddp_operator/py.typed").exists()
    assert {p.name for p in home.iterdir()} == {".cache"}


def test_plugin_has_all_commands(file: Path, home: Path) -> None:
    ended = run(file, home, "--help")
    listed = ended.stdout.partition("\nRun jobs:\n")[2].splitlines()
    names = {line.split()[0] for line in listed if line.startswith("  ") and line[2] != " "}
    assert names == program.commands.keys()


def test_plugin_converts(file: Path, home: Path, tmp_path: Path) -> None:
    containers = [{"name": "pytorch", "image": "me/train:1", "command": ["python", "a.py"]}]
    replicas = {"replicas": 2, "template": {"spec": {"containers": containers}}}
    theirs = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "old"},
        "spec": {"pytorchReplicaSpecs": {"Worker": replicas}},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(theirs))
    ended = run(file, home, "convert", str(tmp_path / "job.yaml"))
    assert yaml.safe_load(ended.stdout)["spec"]["replicas"] == 2, ended.stderr


async def test_plugin_uses_a_server(
    file: Path, home: Path, server: FakeApiServer, kubeconfig: Path
) -> None:
    server.resource_lists[JOBS.root] = [JOBS.plural]
    server.create("ddpjobs", stored("Running"))
    ended = await asyncio.to_thread(
        run, file, home, "list", "--kubeconfig", str(kubeconfig), "-o", "name"
    )
    assert ended.stdout == "ddpjob.ddp-operator.io/digits\n", ended.stderr


def test_unlocked_package_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for wrong, said in ((("click", "0.1"), "but 0.1 is locked"), (("no-such", "1"), "not inst")):
        monkeypatch.setattr(plugin, "locked", lambda wrong=wrong: [wrong])
        with pytest.raises(plugin.NotLockedError, match=said):
            plugin.build(tmp_path)
    assert not (tmp_path / plugin.PLUGIN).exists()


def test_other_python_is_refused(file: Path) -> None:
    linux = [3, 11, "linux", "x86_64"]
    assert refusal(linux, linux) == ""
    assert refusal(linux, [3, 13, "darwin", "arm64"]) == (
        "kubectl-ddp: this file needs Python 3.11 on linux x86_64, but runs on Python 3.13 "
        "on darwin arm64; run it with python3.11, or install ddp-operator with pip"
    )
    first = file.read_bytes().partition(b"\n")[0].decode()
    assert first == "#!/usr/bin/env python{}.{}".format(*sys.version_info)


def test_plugin_refuses_another_platform(file: Path, home: Path) -> None:
    run(file, home, "--version")
    [facts] = (home / ".cache/kubectl-ddp").glob("*/site-packages/kubectl-ddp.json")
    true = facts.read_text()
    facts.write_text(json.dumps([2, 7, "os2", "i386"]))
    try:
        ended = run(file, home, "--version")
    finally:
        facts.write_text(true)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("kubectl-ddp: this file needs Python 2.7 on os2 i386")


def test_older_unpacked_releases_are_removed(tmp_path: Path) -> None:
    for age in range(4):
        folder = tmp_path / f"kubectl-ddp_{age}"
        (folder / "site-packages").mkdir(parents=True)
        os.utime(folder, (1000 - age, 1000 - age))
    (tmp_path / "kubectl-ddp_other_9").mkdir()
    (tmp_path / ".kubectl-ddp_3_lock").touch()
    prune(tmp_path / "kubectl-ddp_3")
    kept = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert KEPT_BESIDE == 1
    assert kept == ["kubectl-ddp_0", "kubectl-ddp_3", "kubectl-ddp_other_9"]
