"""Answers of a launcher on DDP_STATUS_PORT, for all kinds and states of ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.trainer.support.exposition import parse
from tests.trainer.support.pods import TOKEN, job, until
from tests.trainer.support.status_requests import ask


class Server:
    """A launcher's status server, as the operator and Prometheus see it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str, *, method: str = "GET") -> tuple[int, str]:
        """Status code and body; (0, "") where nobody listens."""
        token = TOKEN if method == "POST" else None
        code, body = ask(self.port, path, method=method, token=token)
        return code, body.decode()

    def status(self) -> dict[str, Any]:
        """Return the status; empty while there is none."""
        code, body = self.ask("/status")
        assert code in (0, 200, 503), body
        return json.loads(body) if code == 200 else {}

    def metrics(self) -> dict[str, float]:
        code, body = self.ask("/metrics")
        assert code == 200
        return parse(body)


@pytest.fixture
def server() -> Server:
    return Server(free_port())


def served_by(server: Server, **settings: Any) -> dict[str, Any]:
    """Return settings of a job with launchers that serve on this port."""
    return {"extra_environment": {"DDP_STATUS_PORT": str(server.port)}, **settings}


SCRIPT = """
import faulthandler, os, pathlib, signal, stat, sys
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
if rank == "0":
    faulthandler.register(signal.SIGUSR1)
(folder / ("file-" + rank)).write_text(os.environ["DDP_STATUS_FILE"])


def is_socket(fd):
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


(folder / ("sockets-" + rank)).write_text(str([fd for fd in range(3, 1000) if is_socket(fd)]))
(folder / ("ready-" + rank)).touch()


def wait_for_the_end():
    while True:
        signal.pause()


wait_for_the_end()
"""


def test_script_reports_its_status_in_a_file(tmp_path: Path, server: Server) -> None:
    program = tmp_path / "script.py"
    program.write_text(SCRIPT)
    with job(tmp_path, **served_by(server, nodes=1, local_world_size=2)) as scripts:
        pod = scripts.start(0, "--", sys.executable, str(program), str(tmp_path))
        for rank in (0, 1):
            until((tmp_path / f"ready-{rank}").exists, "the script to start")
            assert (tmp_path / f"sockets-{rank}").read_text() == "[]"
        path = Path((tmp_path / "file-0").read_text())
        assert (tmp_path / "file-1").read_text() == str(path)

        assert server.ask("/status") == (503, "nothing to report yet\n")
        assert server.metrics() == {"ddp_rank_restarts_total": 0}
        status = {"step": 7, "totalSteps": 70, "checkpoint": {"step": 5, "path": "/checkpoints/5"}}
        path.write_text(json.dumps(status | {"of its own": True}))
        assert server.status() == status
        assert server.metrics()["ddp_checkpoint_step"] == 5
        for _ in range(2):
            path.write_text('{"step": "seven"}')
            assert server.ask("/status")[0] == 503
        path.write_text('{"step": 8}')
        assert server.status() == {"step": 8}

        assert server.ask("/dump-stacks", method="POST") == (202, '{"ranks": [0]}')
        pod.wait_for_log("in wait_for_the_end")
        assert len(pod.rank_pids()) == 2  # the signal would have ended rank 1
        assert server.ask("/dump-stacks")[0] == 405
        refused = "no rank of this pod saves on request\n"
        assert server.ask("/checkpoint", method="POST") == (404, refused)
        assert server.ask("/status", method="POST")[0] == 405
        assert server.ask("/")[0] == 404
        pod.stop()
        assert pod.wait() == 143
        assert not path.parent.exists()
        refused = "step must be a whole number from 0 to 9007199254740991, not 'seven'"
        assert pod.log.count(refused) == 1


def test_used_port_ends_no_pod(tmp_path: Path, server: Server) -> None:
    with (
        socket.create_server(("", server.port)),
        job(tmp_path, **served_by(server, nodes=1)) as scripts,
    ):
        pod = scripts.start(0, "--", "true")
        assert pod.wait() == 0
        assert f"process {os.getpid()} (" in pod.log
        assert f") has port {server.port}; set spec.statusPort to a free port" in pod.log


def test_status_and_metrics_of_a_training_that_loses_a_rank(tmp_path: Path, server: Server) -> None:
    endless = ("--epochs", "100000", "--log-every-steps", "2", "--checkpoint-every-steps", "10")
    with job(tmp_path, **served_by(server)) as digits:
        pod = digits.start(0, *endless)
        until(lambda: server.ask("/metrics")[0] == 200, "the first launcher to serve")
        other = digits.start(1, *endless, "--step-delay-seconds", "0.2")
        other.wait_for_log(f"has port {server.port}; set spec.statusPort")  # one machine, one port

        until(lambda: server.status().get("slowestRank") == 1, "the slow rank to be named")
        pod.wait_for_log("rank 1 holds the others up")

        def steps_with_a_slow_rank() -> set[int]:
            pace = server.status().get("pace")
            if pace and pace["rank"] == 1 and pace["seconds"] >= 1.5 * pace["othersSeconds"]:
                compared.add(pace["step"])
            return compared

        compared: set[int] = set()
        until(lambda: len(steps_with_a_slow_rank()) >= 3, "comparisons that show the slow rank")
        assert all(step % 2 == 0 for step in compared), "one at each interval"
        until(lambda: "checkpoint" in server.status(), "a checkpoint")
        status = server.status()
        assert status["totalSteps"] == 100_000 * 23
        assert status["loss"] > 0
        assert status["samplesPerSecond"] > 0
        checkpoint = digits.checkpoints / f"step-{status['checkpoint']['step']:08d}"
        assert status["checkpoint"]["path"] == str(checkpoint)

        metrics = server.metrics()
        assert metrics["ddp_step_duration_seconds_count"] >= 10
        assert metrics['ddp_phase_seconds_total{phase="data"}'] > 0
        assert metrics['ddp_phase_seconds_total{phase="checkpoint"}'] > 0
        # Rank 1 was named, so in ten steps of 0.2 s or more rank 0 waited for a third of the time.
        assert metrics['ddp_phase_seconds_total{phase="communication"}'] > 0.5

        assert server.ask("/dump-stacks", method="POST") == (202, '{"ranks": [0]}')
        pod.wait_for_log("in train")

        [rank] = pod.rank_pids()
        os.kill(rank, signal.SIGKILL)
        assert server.status()["step"] >= status["step"]  # from the launcher, which still runs
        reforms = metrics["ddp_reforms_total"]
        until(lambda: server.metrics()["ddp_reforms_total"] > reforms, "the group to form again")
        after = server.metrics()
        assert after["ddp_rank_restarts_total"] >= 1
        assert after["ddp_reform_seconds_total"] > 0
        count = "ddp_step_duration_seconds_count"
        assert after[count] >= metrics[count]
        until(lambda: server.metrics()[count] > after[count] + 4, "training to continue")
        for one in (pod, other):
            one.stop()
            assert one.wait() == 143, one.log
    assert_steps_grow(digits.checkpoints / "metrics.jsonl")


def test_checkpoint_is_saved_on_request(tmp_path: Path, server: Server) -> None:
    endless = ("--batch-size", "1", "--log-every-steps", "2", "--step-delay-seconds", "0.05")

    def saved() -> int:
        step = server.status().get("checkpoint", {}).get("step", 0)
        assert isinstance(step, int)
        return step

    with job(tmp_path, **served_by(server, nodes=1, local_world_size=2)) as digits:
        pod = digits.start(0, *endless, "--checkpoint-every-steps", "0")  # within one epoch
        until(lambda: server.status().get("step", 0) > 2, "the training to begin")
        assert saved() == 0
        for _ in range(2):
            step = server.status()["step"]
            assert server.ask("/checkpoint", method="POST") == (202, "")
            until(partial(lambda least: saved() >= least, step), "a checkpoint")
        pod.stop()
        assert pod.wait() == 143, pod.log
        assert len(list(digits.checkpoints.glob("step-*"))) == 3, "the last one as it was stopped"


def assert_steps_grow(path: Path) -> None:
    """Check that no step appears twice; the step of a lost rank may be missing."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [line["step"] for line in lines if line["kind"] == "training"]
    assert len(steps) > 5
    assert all(step % 2 == 0 for step in steps), steps
    assert all(earlier < later for earlier, later in pairwise(steps)), steps
    assert all(line["computeSeconds"] >= 0 for line in lines if line["kind"] == "training")
