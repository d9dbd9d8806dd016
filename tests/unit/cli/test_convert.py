import json
from pathlib import Path

import yaml
from click.testing import CliRunner, Result
from ddp_client.cli.commands.convert import convert

from tests.unit.convert.examples import JOBSET, PYTORCHJOB


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(convert, arguments, input=text)


def test_manifests_go_to_stdout_and_notes_to_stderr(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(PYTORCHJOB)
    found = run(str(path))
    assert found.exit_code == 0
    assert yaml.safe_load(found.stdout)["kind"] == "DDPJob"
    told = "PyTorchJob digits: not carried over: spec.elasticPolicy.minReplicas: "
    assert any(line.startswith(told) for line in found.stderr.splitlines())


def test_several_jobs_from_standard_input() -> None:
    found = run("-", text=f"{PYTORCHJOB}---{JOBSET}")
    assert [one["metadata"]["name"] for one in yaml.safe_load_all(found.stdout)] == [
        "digits",
        "lines",
    ]
    found = run("-", "-o", "json", text=f"{PYTORCHJOB}---{JOBSET}")
    assert [one["metadata"]["name"] for one in json.loads(found.stdout)["items"]] == [
        "digits",
        "lines",
    ]


def test_command_line_keeps_flags_of_the_script() -> None:
    found = run(
        "--image",
        "i:1",
        "--",
        *["torchrun", "--nnodes", "2", "train.py", "-o", "json"],
    )
    assert found.exit_code == 0
    (container,) = yaml.safe_load(found.stdout)["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["torchrun", "train.py", "-o", "json"]
    assert container["image"] == "i:1"


def test_lines_of_a_script_stay_lines() -> None:
    found = run("--", "torchrun", "--no-python", "bash", "-c", "one\ntwo")
    assert "- |-\n" in found.stdout


def test_exit_codes_for_all_some_and_no_jobs(tmp_path: Path) -> None:
    broken = "{kind: MPIJob, apiVersion: kubeflow.org/v1}"
    assert run("-", text=f"{PYTORCHJOB}---\n{broken}").exit_code == 1
    found = run("-", text=broken)
    assert (found.exit_code, found.stdout) == (2, "")
    for nothing in ("", "{kind: ConfigMap, apiVersion: v1}"):
        found = run("-", text=nothing)
        assert found.exit_code == 2
        assert "the file has no training job" in found.stderr
    found = run(str(tmp_path / "missing.yaml"))
    assert found.exit_code == 2
    assert "missing.yaml: No such file or directory; name a file" in found.stderr
    assert run("-", "--image", "i", text=PYTORCHJOB).exit_code == 2


def test_escape_sequences_in_a_file_are_removed() -> None:
    found = run("-", text='{kind: "MPIJob", apiVersion: "kubeflow.org/\\e[31m"}')
    assert found.exit_code == 2
    assert "\x1b" not in found.stderr
