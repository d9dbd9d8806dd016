"""Ranks profile a few of their steps on request, and continue to train."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_trainer.library.profiling import Profiling
from ddp_trainer.telemetry.requests import profile
from ddp_trainer.telemetry.requests.profile import ProfileError, ProfileFiles, wanted

from tests.trainer.launcher.status_server.test_status import Server, served_by, server
from tests.trainer.library.runs import script_job
from tests.trainer.support.pods import TOKEN, job, until
from tests.trainer.support.status_requests import ask

__all__ = ["server"]


def post(server: Server, path: str) -> tuple[int, bytes]:
    return ask(server.port, path, method="POST", token=TOKEN)


def traced(server: Server, rank: int) -> dict[str, Any]:
    answers: list[bytes] = []

    def is_there() -> bool:
        code, body = post(server, f"/trace?ranks={rank}")
        assert code in (200, 202), body
        answers.append(body)
        return code == 200

    until(is_there, "the trace")
    trace: dict[str, Any] = json.loads(gzip.decompress(answers[-1]))
    return trace


def steps(trace: dict[str, Any]) -> int:
    names = {event.get("name", "") for event in trace["traceEvents"]}
    return sum(name.startswith("ProfilerStep#") for name in names)


def test_ranks_of_the_bundled_trainer_are_profiled(tmp_path: Path, server: Server) -> None:
    settings = served_by(server, nodes=1, local_world_size=2)
    with job(tmp_path, **settings) as digits:
        pod = digits.start(0, "--epochs", "100000", "--step-delay-seconds", "0.02")
        until(lambda: server.status().get("step", 0) > 0, "the training to begin")
        assert post(server, "/trace?ranks=0")[0] == 400  # no request yet
        assert post(server, "/profile?ranks=0,1&steps=3") == (202, b"")
        code, error = post(server, "/profile?ranks=0&steps=3")
        traces = [traced(server, rank) for rank in (0, 1)]
        assert (code, b"not done" in error) == (400, True)
        for trace in traces:
            assert steps(trace) == 3
            assert any("addmm" in str(e.get("name")) for e in trace["traceEvents"])
        assert post(server, "/trace?ranks=0")[0] == 400  # a trace is returned once
        assert post(server, "/profile?ranks=2&steps=3")[1] == b"rank 2 does not run in this pod\n"
        before = server.status()["step"]
        until(lambda: server.status()["step"] > before, "the training to continue")
        pod.stop()
        pod.wait()


def test_a_script_is_profiled(tmp_path: Path, server: Server) -> None:
    variables = {"DDP_STATUS_PORT": str(server.port)}
    with script_job(tmp_path, ranks=1, variables=variables) as scripts:
        [pod] = scripts.start_all("--epochs", "100000", "--step-delay-seconds", "0.05")
        until(lambda: post(server, "/profile?ranks=0&steps=2")[0] == 202, "the script to begin")
        assert steps(traced(server, 0)) == 2
        pod.stop()
        pod.wait()


def test_ranks_and_steps_of_a_request_are_checked() -> None:
    assert wanted({"ranks": ["1,0", "1"], "steps": ["5"]}) == ([0, 1], 5)
    queries: tuple[dict[str, list[str]], ...] = (
        {},
        {"ranks": ["x"]},
        {"ranks": ["0"], "steps": ["0"]},
    )
    for query in queries:
        with pytest.raises(ValueError, match=r"ranks=0,1 and steps=5|choose 1 to 20"):
            wanted(query)


def test_request_is_done_once_and_a_forgotten_one_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = tmp_path / "status.json"
    asking = ProfileFiles(status, 3)
    with pytest.raises(ProfileError, match="takes no steps through ddp_trainer"):
        asking.ask(2)
    assert ProfileFiles.from_env({}, 3) is None
    rank = ProfileFiles.from_env({"DDP_STATUS_FILE": str(status)}, 3)
    assert rank is not None
    assert rank.take() is None
    asking.ask(2)
    assert asking.answer() is None
    assert rank.take() == 2
    assert rank.take() is None
    with pytest.raises(ProfileError, match="not done"):
        asking.ask(2)
    monkeypatch.setattr(profile, "_FORGOTTEN_SECONDS", 0.0)
    asking.ask(4)
    assert rank.take() == 4
    rank.fail("it broke")
    with pytest.raises(ProfileError, match="it broke"):
        asking.answer()


def rank_with_a_request(folder: Path) -> tuple[Profiling, ProfileFiles]:
    status = folder / "status.json"
    rank = Profiling({"DDP_STATUS_FILE": str(status)}, 0)
    asking = ProfileFiles(status, 0)
    asking.ask(2)
    return rank, asking


def test_request_fails_when_the_training_ends(tmp_path: Path) -> None:
    rank, asking = rank_with_a_request(tmp_path)
    rank.step()
    assert asking.answer() is None
    rank.close()
    with pytest.raises(ProfileError, match="the training ended before"):
        asking.answer()


def test_failing_profiler_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("another profiler runs")

    rank, asking = rank_with_a_request(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(torch.profiler, "profile", broken)
        rank.step()
    with pytest.raises(ProfileError, match="torch's profiler: another profiler runs"):
        asking.answer()
    asking.ask(1)  # and the next one can be made
    for _ in range(2):
        rank.step()
    assert asking.answer() is not None


def test_too_large_trace_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddp_trainer.library.profiling.MAX_BYTES", 10)
    rank, asking = rank_with_a_request(tmp_path)
    for _ in range(3):
        rank.step()
    with pytest.raises(ProfileError, match="request fewer steps"):
        asking.answer()
    assert not [*tmp_path.glob("*.gz"), *tmp_path.glob(".*.gz")]
