"""`kubectl ddp report`, from the requests to the file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_client.remote import evidence

from tests.good_manifests import Json
from tests.unit.cli.conftest import Ddp, ddp, kubeconfig, server
from tests.unit.job.builders import NAME, NAMESPACE
from tests.unit.kube.fake_api_server import FakeApiServer, Fault
from tests.unit.kube.fake_channels import ProgramRun
from tests.unit.report.runs import event, job, metrics, pod

__all__ = ["ddp", "kubeconfig", "server"]

POD = f"{NAME}-1-0"


@pytest.fixture
async def running(server: FakeApiServer) -> FakeApiServer:
    """A cluster with the job, its two pods, an event and a trainer's metrics."""
    uid = server.create("ddpjobs", job())["metadata"]["uid"]
    for index in range(2):
        one = pod(index)
        one["metadata"]["ownerReferences"][0]["uid"] = uid
        server.create("pods", one)
        server.logs[one["metadata"]["name"]] = b"2026-03-01T12:05:00Z PASSWORD=abc step 400\n"
    about = {"kind": "DDPJob", "namespace": NAMESPACE, "name": NAME, "uid": uid}
    reported = event("Restarting", "pod digits-0-1 failed", seconds=151)
    named = {"metadata": {"name": "e1", "namespace": NAMESPACE}, "involvedObject": about}
    server.create("events", {**reported, **named})
    content = "\n".join(metrics()).encode() + b"\n"

    async def tail(run: ProgramRun) -> int:
        await run.print(f"{len(content)}\n".encode())
        await run.print(content)
        return 0

    server.programs[POD] = tail
    return server


async def made(ddp: Ddp, *arguments: str) -> Json:
    result = await ddp("report", NAME, "-o", "json", "--file", "-", *arguments)
    assert result.exit_code == 0, result.output
    report: Json = json.loads(result.stdout)
    return report


@pytest.mark.usefixtures("running")
async def test_report_from_a_cluster(ddp: Ddp) -> None:
    report = await made(ddp)
    assert report["step"] == 400
    assert len(report["points"]) == 40
    assert [one["name"] for one in report["pods"]] == ["digits-0-1", "digits-1-0", "digits-1-1"]
    assert report["events"][0][1:] == ["Restarting", "pod digits-0-1 failed"]
    assert report["recoveries"][0]["seconds"] == 8.0
    assert report["logs"][0] == {"pod": POD, "lines": ["PASSWORD=<removed> step 400"]}
    assert report["gaps"] == []


async def test_report_costs_five_requests(ddp: Ddp, running: FakeApiServer) -> None:
    await made(ddp)
    assert len(running.requests) == 5, "job, pods, events, a program in one pod, its log"


async def test_only_the_end_of_a_long_file_is_read(
    ddp: Ddp, running: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "_MAX_METRICS", 1000)

    async def tail(run: ProgramRun) -> int:
        assert run.command[:2] == ["sh", "-c"]
        content = "\n".join(metrics()).encode() + b"\n"
        await run.print(f"{len(content)}\n".encode() + content[-1000:])
        return 0

    running.programs[POD] = tail
    report = await made(ddp)
    assert report["points"][-1]["step"] == 400
    assert any("older part" in gap for gap in report["gaps"])


async def test_endless_output_of_a_pod_is_a_gap(ddp: Ddp, running: FakeApiServer) -> None:
    async def endless(run: ProgramRun) -> int:
        for _ in range(20):
            await run.print(b"9" * 1024 * 1024)
        return 0

    running.programs[POD] = endless
    report = await made(ddp)
    assert report["points"] == []
    assert any(f"could not be read in pod {POD}" in gap for gap in report["gaps"])


async def test_size_of_thousands_of_digits_is_a_gap(ddp: Ddp, running: FakeApiServer) -> None:
    async def hostile(run: ProgramRun) -> int:
        await run.print(b"9" * 5000 + b"\n")
        return 0

    running.programs[POD] = hostile
    [gap] = (await made(ddp))["gaps"]
    assert gap.startswith(f"pod {POD} has no readable metrics.jsonl")


async def test_pod_without_metrics_is_a_gap(ddp: Ddp, running: FakeApiServer) -> None:
    async def missing(run: ProgramRun) -> int:
        await run.print(b"sh: DDP_CHECKPOINT_DIR: is not \x1b[31mset\n", error=True)
        return 2

    running.programs[POD] = missing
    [gap] = (await made(ddp))["gaps"]
    assert gap.startswith(f"pod {POD} has no readable metrics.jsonl: sh: DDP_CHECKPOINT_DIR")
    assert "--metrics FILE" in gap
    assert gap.isprintable()


async def test_missing_rights_are_gaps(ddp: Ddp, running: FakeApiServer) -> None:
    running.denied |= {("get", "pods/exec")}
    forbidden = {"kind": "Status", "message": "you cannot list resource events", "code": 403}
    running.faults.append(Fault("GET", 403, forbidden, path_part="/events"))
    gaps = (await made(ddp))["gaps"]
    assert any("metrics.jsonl could not be read" in gap for gap in gaps)
    assert any("events could not be read" in gap for gap in gaps)


async def test_metrics_of_a_finished_job_come_from_a_file(
    ddp: Ddp, server: FakeApiServer, tmp_path: Path
) -> None:
    server.create("ddpjobs", job())
    [gap, *_] = (await made(ddp))["gaps"]
    assert "pod 0 is not running" in gap
    (tmp_path / "metrics.jsonl").write_text("\n".join(metrics()))
    for given in (tmp_path, tmp_path / "metrics.jsonl"):
        assert (await made(ddp, "--metrics", str(given)))["points"][-1]["step"] == 400


@pytest.mark.usefixtures("running")
async def test_files_are_named_after_the_job(
    ddp: Ddp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for form in ("html", "md", "json"):
        result = await ddp("report", NAME, "-o", form)
        assert (result.exit_code, result.stdout) == (0, "")
        assert f"wrote {NAME}.{form}" in result.stderr
    assert (tmp_path / f"{NAME}.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / f"{NAME}.md").read_text().startswith("# Report")


@pytest.mark.usefixtures("running")
async def test_invalid_usage_gets_one_line(ddp: Ddp, tmp_path: Path) -> None:
    for arguments, message in (
        (("report", "other"), "there is no job other"),
        (("report", NAME, "--price", "h100=-1"), "use nvidia-h100-80gb=3.5"),
        (
            ("report", NAME, "-o", "mine.md"),
            "mine.md: choose html, md, json; for a file: -o md --f",
        ),
        (("report", NAME, "--price", "3.5"), "use nvidia-h100-80gb=3.5"),
        (("report", NAME, "--price", "h100=nan"), "use nvidia-h100-80gb=3.5"),
        (("report", NAME, "--price-per-hour", "-1"), "-1: use a price of at least 0"),
        (("report", NAME, "--price-per-hour", "nan"), "nan: use a price of at least 0"),
        (("report", NAME, "--price", "gpu=3", "--price-per-hour", "4"), "not both"),
        (("report", NAME, "--metrics", str(tmp_path)), "give a metrics.jsonl"),
        (
            ("report", NAME, "--local", str(tmp_path)),
            "--workdir of a finished `python -m ddp_client.local",
        ),
        (("report", NAME, "-o", "md", "--file", str(tmp_path / "no" / "r.md")), "cannot write"),
    ):
        result = await ddp(*arguments)
        assert result.exit_code != 0
        assert message in result.stderr, result.stderr
        assert "Traceback" not in result.output


async def test_report_of_a_local_run(ddp: Ddp, tmp_path: Path) -> None:
    pods = [pod(0), pod(1)]
    record = {"job": job(), "pods": pods, "events": [event("Started", "x", seconds=1)]}
    (tmp_path / "run.json").write_text(json.dumps(record))
    folder = tmp_path / "volumes" / "checkpoints" / "of-it"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("\n".join(metrics()))
    report = await made(ddp, "--local", str(tmp_path))
    assert report["recoveries"][0]["seconds"] == 8.0
    result = await ddp("report", "other", "--local", str(tmp_path))
    assert "has a run of job digits, not of other" in result.stderr
    for broken in ("{", "[]", '{"job": 7}', '{"job": {}}', "[" * 100_000):
        (tmp_path / "run.json").write_text(broken)
        result = await ddp("report", NAME, "--local", str(tmp_path))
        assert "not a complete record of a local run" in result.stderr


def test_only_html_needs_extra_packages() -> None:
    """Run a process in which matplotlib and jinja2 cannot be imported."""
    code = """
import sys
from importlib.abc import MetaPathFinder
class Absent(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("matplotlib", "jinja2", "markupsafe", "rich"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from click.testing import CliRunner
from ddp_client.cli.__main__ import program
from ddp_client.cli.commands.results import report
from tests.unit.report.runs import facts
report._facts = lambda *given: facts()
for form in ("md", "json", "html"):
    result = CliRunner().invoke(program, ["report", "digits", "-o", form, "--file", "-"])
    print(form, result.exit_code, len(result.stdout) > 100, result.stderr.strip(), sep="|")
print(CliRunner().invoke(program, ["ui"]).stderr.strip())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    markdown, plain, html, live = done.stdout.splitlines() or [done.stderr] * 4
    assert (markdown, plain) == ("md|0|True|", "json|0|True|")
    assert html.startswith("html|1|False|Error: ")
    assert "pip install 'ddp-client[report]'" in html
    assert "pip install 'ddp-client[report]'" in live


async def test_log_that_cannot_be_read_is_a_gap(ddp: Ddp, running: FakeApiServer) -> None:
    del running.logs[POD]
    [gap] = (await made(ddp))["gaps"]
    assert gap.startswith(f"the log of pod {POD} could not be read: no log: ")
