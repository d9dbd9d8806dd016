"""Progress of scripts that report as in a Kubeflow TrainJob; other reports are refused."""

from __future__ import annotations

import json
import sys
import textwrap
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from ddp_protocol.progress import CheckpointStatus
from ddp_trainer.launcher.status_server import server, trainjob
from ddp_trainer.settings.environment import Placement
from ddp_trainer.telemetry.status import Status, StatusFile

from tests.ports import free_port
from tests.trainer.support.pods import TOKEN, contract, job, until
from tests.trainer.support.status_requests import ask
from tests.trainer.support.status_server import Pod

NOW = "2026-11-21T03:00:00.250Z"
EARLIER = "2026-11-21T02:00:00.000Z"


class Receiver:
    """The receiver of a launcher without ranks."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.file = folder / "status.json"
        self.token = trainjob.write_token(folder / "token")
        server.serve_status(
            self.port,
            self.file,
            Pod(),
            Placement.from_env(contract()),
            trainjob_token=self.token,
        )

    def post(self, body: bytes, token: str | None = None) -> tuple[int, str]:
        token = self.token if token is None else token
        code, text = ask(self.port, trainjob.PATH, method="POST", body=body, token=token)
        return code, text.decode()

    def status(self) -> Status | None:
        return StatusFile(self.file).read()


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    return Receiver(tmp_path)


def document(percent: object = None, **metrics: object) -> bytes:
    """Return a report as scripts write it."""
    numbers = [{"name": name, "value": value} for name, value in metrics.items()]
    status: dict[str, Any] = {
        "lastUpdatedTime": NOW,
        "estimatedRemainingSeconds": 3,
        "metrics": numbers,
    }
    if percent is not None:
        status |= {"progressPercentage": percent}
    return json.dumps({"trainerStatus": status}).encode()


def test_a_report_becomes_the_status(receiver: Receiver) -> None:
    sent = document(40, current_step="4", total_steps="10", loss="0.5", current_epoch="1.2", lr=1)
    assert receiver.post(sent) == (200, "{}")
    status = receiver.status()
    assert status is not None
    assert (status.step, status.total_steps, status.loss, status.epoch) == (4, 10, 0.5, 2)
    assert status.metrics == {"lr": 1.0}
    assert status.last_step_time is not None


@pytest.mark.parametrize(
    ("status", "step", "metrics"),
    [
        ({"progressPercentage": 50}, 50, None),
        ({"progressPercentage": 50, "estimatedRemainingSeconds": 0}, 50, None),
        ({"metrics": [{"name": "loss", "value": "0.5"}]}, None, None),
        (
            {
                "progressPercentage": 25,
                "metrics": [{"name": "phase", "value": "warm-up"}, {"name": "lr", "value": "0.1"}],
            },
            25,
            {"lr": 0.1},
        ),
        (
            {
                "progressPercentage": 100,
                "metrics": [
                    {"name": f"{'m' * 59}_{number:03d}", "value": str(number / 7)}
                    for number in range(256)
                ],
            },
            100,
            {f"{'m' * 59}_{number:03d}": number / 7 for number in range(64)},
        ),
    ],
    ids=["percentage", "no time left", "no step", "words", "as many as the SDK sends"],
)
def test_reports_of_kubeflows_sdk_are_accepted(
    receiver: Receiver, status: dict[str, Any], step: int | None, metrics: dict[str, float] | None
) -> None:
    """As in tests of `update_trainjob_status`: only the time is required, values are text, and
    there are up to 256 metrics.
    """
    body = json.dumps({"trainerStatus": {"lastUpdatedTime": NOW, **status}}).encode()
    assert receiver.post(body) == (200, "{}")
    found = receiver.status()
    assert (found.step if found else None) == step
    assert (found.metrics if found else None) == metrics


@pytest.mark.parametrize("token", ["", "guessed", TOKEN])
def test_report_without_the_token_is_refused(receiver: Receiver, token: str) -> None:
    code, text = receiver.post(document(1), token=token)
    assert (code, receiver.status()) == (403, None)
    assert "$KUBEFLOW_TRAINER_SERVER_TOKEN" in text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"trainerStatus": 3}',
        document(101),
        document(-1),
        document(True),
        document("half"),
        b'{"trainerStatus": {"metrics": 3}}',
        b"[" * 20_000,
        b" " * (trainjob.MAX_BYTES + 1),
    ],
)
def test_invalid_report_is_refused_and_changes_nothing(receiver: Receiver, body: bytes) -> None:
    assert receiver.post(document(40, current_step=4, total_steps=10))[0] == 200
    before = receiver.status()
    assert receiver.post(body)[0] == 400
    assert receiver.status() == before


@pytest.mark.parametrize(
    "metrics",
    [
        {"current_step": "many"},
        {"current_step": -1},
        {"current_step": "1e400"},
        {"current_step": "nan"},
        {"current_step": 10**400},
        {"current_step": [4]},
    ],
)
def test_invalid_step_is_ignored(receiver: Receiver, metrics: dict[str, Any]) -> None:
    assert receiver.post(document(**metrics))[0] == 200
    assert receiver.status() is None


def test_status_of_the_library_is_kept(tmp_path: Path, receiver: Receiver) -> None:
    text = '{"step": 5, "measurements": {"stepSeconds": 1.0, "stepCounts": [], "phaseSeconds": {}'
    (tmp_path / "status.json").write_text(text + ', "reforms": 0, "reformSeconds": 0.0}}')
    assert receiver.post(document(40, current_step=4))[0] == 200
    status = receiver.status()
    assert status is not None
    assert status.step == 5


AT_FOUR = Status(
    step=4, total_steps=10, loss=0.5, last_step_time=EARLIER, checkpoint=CheckpointStatus(step=3)
)


@pytest.mark.parametrize(
    ("before", "percent", "numbers", "step", "total", "time"),
    [
        (None, 0, {"total_steps": 10.0}, 0, 10, None),
        (None, 40, {}, 40, 100, NOW),
        (Status(step=40, total_steps=100), 41, {}, 41, 100, NOW),
        (AT_FOUR, 50, {}, 4, 10, EARLIER),
        (AT_FOUR, 50, {"current_step": 5.0}, 5, 10, NOW),
        (AT_FOUR, 50, {"current_step": 4.0}, 4, 10, EARLIER),
        (AT_FOUR, 100, {"train_loss": 0.5}, 10, 10, NOW),
    ],
)
def test_step_and_time_of_a_report(
    before: Status | None,
    percent: int,
    numbers: dict[str, float],
    step: int,
    total: int,
    time: str | None,
) -> None:
    found = trainjob.merged(before, percent, numbers, NOW)
    assert found is not None
    assert (found.step, found.total_steps, found.last_step_time) == (step, total, time)
    if before is AT_FOUR:
        assert (found.loss, found.checkpoint) == (0.5, CheckpointStatus(step=3))


def test_accuracy_of_the_newest_evaluation_stays() -> None:
    evaluated = trainjob.merged(AT_FOUR, 50, {"current_step": 5.0, "eval_accuracy": 0.75}, NOW)
    later = trainjob.merged(evaluated, 60, {"current_step": 6.0, "loss": 0.25}, NOW)
    assert later is not None
    assert (later.accuracy, later.loss) == (0.75, 0.25)


def test_numbers_of_a_script_are_bounded() -> None:
    numbers = {f"n{i}": 1.0 for i in range(1000)} | {'bad"name': 1.0}
    found = trainjob.merged(None, 1, {'bad"name': 1.0} | numbers, NOW)
    assert found is not None
    assert found.metrics == {f"n{i}": 1.0 for i in range(64)}


def test_script_that_reports_elsewhere_keeps_its_url(tmp_path: Path) -> None:
    assert trainjob.environment({trainjob.URL: "https://x"}, 1, tmp_path / "token") == {}


def test_token_is_readable_by_the_pod_only(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("an earlier launcher's")
    path.chmod(0o644)
    assert trainjob.write_token(path) == path.read_text()
    assert path.stat().st_mode & 0o077 == 0


HUGGING_FACE = """
    import os, sys, time, torch
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.integrations.integration_utils import KubeflowCallback

    KubeflowCallback._MIN_UPDATE_INTERVAL = 0.0  # five seconds by default

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def forward(self, x, labels):
            y = self.layer(x).squeeze(-1)
            return {"loss": torch.nn.functional.mse_loss(y, labels), "logits": y}

    class Hold(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 4:
                open(sys.argv[1], "w").close()
                while os.path.exists(sys.argv[1]):
                    time.sleep(0.01)

    data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(64)]
    arguments = TrainingArguments(
        output_dir=sys.argv[2], report_to="none", use_cpu=True, max_steps=6, logging_steps=1,
        per_device_train_batch_size=4, save_strategy="no", disable_tqdm=True,
    )
    trainer = Trainer(model=Net(), args=arguments, train_dataset=data)
    # After the default callbacks; Kubeflow's is one of them.
    trainer.add_callback(Hold())
    trainer.train()
"""


def test_hugging_faces_trainer_reports_without_a_line_of_code(tmp_path: Path) -> None:
    script, held = tmp_path / "train.py", tmp_path / "held"
    script.write_text(textwrap.dedent(HUGGING_FACE))
    port = free_port()
    settings = {"DDP_STATUS_PORT": str(port), "HF_HUB_OFFLINE": "1"}
    with job(tmp_path / "job", nodes=1, extra_environment=settings) as one:
        pod = one.start(0, "--", sys.executable, str(script), str(held), str(tmp_path / "out"))
        until(lambda: held.exists() or pod.process.poll() is not None, "step 4")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=30) as answer:
            status = json.load(answer)
        held.unlink()
        assert (status["step"], status["totalSteps"]) == (4, 6)
        assert 0 < status["loss"] < 100
        assert "grad_norm" in status["metrics"]
        assert pod.wait() == 0, pod.log
