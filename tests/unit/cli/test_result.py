"""The command `result`."""

import json
from pathlib import Path

from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import at, stored
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer


async def test_result_of_a_job_without_pods(ddp: Ddp, server: FakeApiServer) -> None:
    progress = {"step": 20, "loss": 0.5, "updatedAt": at(5)}
    curve = {"curve": "10:2 20:0.5:0.9"}
    server.create("ddpjobs", stored("Succeeded", progress=progress, bookkeeping=curve))
    result = await ddp("result", NAME)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[2:] == [
        "state     Succeeded",
        "step      20",
        "loss      2 █▁ 0.5",
        "accuracy  90.0%",
        "best      90.0% at step 20",
    ]
    made = json.loads((await ddp("result", NAME, "-o", "json")).stdout)
    assert (made["phase"], made["loss"], made["best"]["value"]) == ("Succeeded", 0.5, 0.9)
    assert [row["step"] for row in made["rows"]] == [10, 20]


async def test_metrics_file_replaces_the_kept_curve(
    ddp: Ddp, server: FakeApiServer, tmp_path: Path
) -> None:
    server.create("ddpjobs", stored("Failed", bookkeeping={"curve": "10:2"}))
    line = {"kind": "training", "step": 3, "time": at(0), "loss": 7.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line))
    made = await ddp("result", NAME, "-o", "json", "--metrics", str(tmp_path))
    assert json.loads(made.stdout)["rows"] == [{"step": 3, "loss": 7.5, "accuracy": None}]
    (tmp_path / "metrics.jsonl").unlink()
    refused = await ddp("result", NAME, "--metrics", str(tmp_path))
    assert refused.exit_code == 1
    assert "give a metrics.jsonl, or the checkpoint directory" in refused.stderr
