"""Reports of jobs on this machine and on a cluster."""

import json
from pathlib import Path

import pytest
from ddp_client import AsyncClient, LocalClient
from ddp_client.report.files import UnreadableError
from ddp_client.sdk import ClientError, Options

from tests.unit.cli.jobs import training
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer

METRICS = "\n".join(
    f'{{"kind": "training", "step": {step}, "time": "2026-03-01T12:00:0{step}Z", "loss": 0.5}}'
    for step in (4, 5)
)


@pytest.mark.parametrize("claim", [True, False])
def test_report_of_a_local_job(tmp_path: Path, claim: bool) -> None:
    write = f"echo '{METRICS}' > \"$DDP_CHECKPOINT_DIR/metrics.jsonl\""
    script = f'[ "$DDP_ATTEMPT" = 1 ] && {write} && exit; exit 3'
    with LocalClient(workdir=tmp_path / "work") as client:
        other = client.run(command=["sh", "-c", "exit"], name="other")
        given: Options = {"name": "twice"}
        if claim:
            given["checkpoint"] = "pvc/saved"
        job = client.run(command=["sh", "-c", script], **given)
        job.wait(timeout=60)
        other.wait(timeout=60)
        found = job.report(prices={"gpu": 1.0})
        assert (found.data.name, found.data.phase, found.data.restarts) == ("twice", "Succeeded", 1)
        assert [pod.name for pod in found.data.pods] == ["twice-0-0", "twice-1-0"]
        assert [point.loss for point in found.data.points] == [0.5, 0.5]
        assert any(reason == "Succeeded" for _, reason, _ in found.data.events)
        markdown = found.save(tmp_path / "report.md").read_text()
        assert markdown == found._repr_markdown_()
        assert markdown.startswith("# Report of job twice\n")
        assert json.loads(found.save(tmp_path / "report.json").read_text())["restarts"] == 1
        page = found.save(tmp_path / "report.html").read_text()
        assert "<svg" in page
        with pytest.raises(ClientError, match=r"one of the suffixes \.html, \.md, \.json"):
            found.save(tmp_path / "report.pdf")
        nothing = other.report()
        assert [pod.name for pod in nothing.data.pods] == ["other-0-0"]
        assert not nothing.data.points


async def test_report_of_a_job_on_a_cluster(
    client: AsyncClient, server: FakeApiServer, tmp_path: Path
) -> None:
    server.create("ddpjobs", training())
    (tmp_path / "metrics.jsonl").write_text(METRICS)
    job = await client.job(NAME)
    found = await job.report(metrics=tmp_path)
    assert (found.data.phase, found.data.step) == ("Running", 500)
    assert [point.loss for point in found.data.points] == [0.5, 0.5]
    assert "pod 0 is not running" in " ".join((await job.report()).data.gaps)
    with pytest.raises(UnreadableError, match=r"give a metrics\.jsonl"):
        await job.report(metrics=tmp_path / "missing")


async def test_html_without_its_packages_is_an_error(
    client: AsyncClient, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create("ddpjobs", training())
    found = await (await client.job(NAME)).report()
    monkeypatch.setitem(__import__("sys").modules, "ddp_client.report.page", None)
    with pytest.raises(ClientError, match=r"pip install 'ddp-client\[report\]'"):
        found.html()
    assert found.markdown()
