"""The launcher as process 1 of a pod: scripts, signals, orphans, deadlines, causes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from ddp_trainer import launch
from ddp_trainer.checkpoints.manifest import MANIFEST, Manifest
from ddp_trainer.launcher.output.rank_output import OWN_STREAMS
from ddp_trainer.launcher.ranks.forkserver import STARTED_SIGNAL, send_request
from ddp_trainer.telemetry.termination import open_report_file

from tests.ports import free_port
from tests.trainer.support.pods import DEADLINE_SECONDS, is_alive, job, until

container_job = partial(job, imports_torch=True)
"""A job of pods that start as in a container, instead of as forks of a process with torch."""


def script(folder: Path, text: str) -> list[str]:
    path = folder / "script.py"
    path.write_text(text)
    return ["--", sys.executable, str(path), str(folder)]


def test_a_script_runs_once_for_each_rank(tmp_path: Path) -> None:
    text = """
import json, os, pathlib, sys
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "OMP_WAIT_POLICY"]
path = pathlib.Path(sys.argv[1], "rank-" + os.environ["RANK"])
path.write_text(json.dumps({name: os.environ[name] for name in names}))
"""
    with container_job(tmp_path, local_world_size=2) as scripts:
        pod = scripts.start(1, *script(tmp_path, text))
        assert pod.wait() == 0
        for local_rank in range(2):
            assert json.loads((tmp_path / f"rank-{2 + local_rank}").read_text()) == {
                "RANK": str(2 + local_rank),
                "LOCAL_RANK": str(local_rank),
                "WORLD_SIZE": "4",
                "MASTER_PORT": str(scripts.port),
                "OMP_WAIT_POLICY": "PASSIVE",
            }
        assert pod.message == {"exitCode": 0, "rank": 2}


def test_a_rank_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    text = """
import os, pathlib, signal, sys, time
ready = pathlib.Path(sys.argv[1], "ready")
if os.environ["RANK"] == "1":
    while not ready.exists():
        time.sleep(0.01)
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready.touch()
while True:
    signal.pause()
"""
    with job(tmp_path, nodes=1, local_world_size=2) as scripts:
        pod = scripts.start(0, "--kill-after-seconds", "0.2", *script(tmp_path, text))
        assert pod.wait() == 3
        assert pod.message["rank"] == 1


def test_script_gets_sigterm_once_and_its_code_is_the_pods(tmp_path: Path) -> None:
    text = """
import pathlib, signal, sys
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
pathlib.Path(sys.argv[1], "ready").touch()
while not got:
    signal.pause()
sys.exit(20 + len(got))
"""
    with job(tmp_path, nodes=1) as scripts:
        pod = scripts.start(0, *script(tmp_path, text))
        until((tmp_path / "ready").exists, "the script to start")
        pod.stop()
        assert pod.wait() == 21


@pytest.mark.parametrize(("finished", "code"), [("true", 0), ("false", 143)])
def test_script_that_exits_0_after_sigterm_must_report_its_end(
    tmp_path: Path, finished: str, code: int
) -> None:
    text = """
import os, pathlib, signal, sys
status = pathlib.Path(os.environ["DDP_STATUS_FILE"])
status.with_name("new").write_text('{"step": 7, "finished": ' + sys.argv[2] + '}')
status.with_name("new").rename(status)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
pathlib.Path(sys.argv[1], "ready").touch()
while True:
    signal.pause()
"""
    port = {"DDP_STATUS_PORT": str(free_port())}
    with job(tmp_path, nodes=1, extra_environment=port) as scripts:
        pod = scripts.start(0, *script(tmp_path, text), finished)
        until((tmp_path / "ready").exists, "the script to start")
        pod.stop()
        assert pod.wait() == code


REMARK = "rank 0 ended with exit code 134 after its work was done: "
FINISHING = """
import json, os, pathlib, sys
if os.environ["RANK"] == "0":
    status = pathlib.Path(os.environ["DDP_STATUS_FILE"])
    new = status.with_name("new")
    new.write_text(json.dumps(eval(sys.argv[2])))
    new.rename(status)
    exec(sys.argv[3])
"""


@pytest.mark.parametrize(
    ("status", "end", "exit_code"),
    [
        ({"step": 7, "finished": True}, "os.abort()", 0),
        ({"step": 7, "done": True}, "os.abort()", 0),
        ({"step": 7, "finished": True}, "sys.exit(3)", 3),
        # The last step may be trained, and its checkpoint lost.
        ({"step": 7, "totalSteps": 7}, "os.abort()", 134),
    ],
)
def test_signal_after_a_reported_end_is_ignored(
    status: dict[str, object], end: str, exit_code: int, tmp_path: Path
) -> None:
    port = {"DDP_STATUS_PORT": str(free_port())}
    with job(tmp_path, nodes=1, local_world_size=2, extra_environment=port) as scripts:
        pod = scripts.start(0, *script(tmp_path, FINISHING), str(status), end)
        assert pod.wait() == exit_code, pod.log
        assert pod.message["exitCode"] == exit_code
        assert (REMARK + "counted as 0" in pod.log) == (exit_code == 0)


def test_last_status_of_a_script_is_in_the_termination_message(tmp_path: Path) -> None:
    status = {"step": 7, "totalSteps": 9, "loss": 0.5, "metrics": {"lr": 0.1}}
    port = {"DDP_STATUS_PORT": str(free_port())}
    with job(tmp_path, nodes=1, local_world_size=2, extra_environment=port) as scripts:
        pod = scripts.start(0, *script(tmp_path, FINISHING), str(status), "sys.exit(0)")
        assert pod.wait() == 0, pod.log
        assert {name: pod.message.get(name) for name in status} == status


def test_metrics_with_long_names_leave_the_other_numbers_room(tmp_path: Path) -> None:
    status = {"step": 7, "metrics": {f"{'x' * 4000}{number}": 0.1 for number in range(4)}}
    port = {"DDP_STATUS_PORT": str(free_port())}
    with job(tmp_path, nodes=1, local_world_size=2, extra_environment=port) as scripts:
        pod = scripts.start(0, *script(tmp_path, FINISHING), str(status), "sys.exit(0)")
        assert pod.wait() == 0, pod.log
        assert pod.message == {"exitCode": 0, "rank": 0, "step": 7}


def test_exit_code_that_a_rank_reported_replaces_a_signal(tmp_path: Path) -> None:
    text = """
import os
from ddp_trainer.telemetry.termination import RankReport
report = RankReport(os.environ, rank=0)
report.update(step=7, finished=False)
report.update(exit_code=143)
os.abort()
"""
    with job(tmp_path, nodes=1) as scripts:
        pod = scripts.start(0, *script(tmp_path, text), "--max-restarts=0")
        assert pod.wait() == 143, pod.log
        assert pod.message["exitCode"] == 143
        assert "error" not in pod.message
        assert REMARK + "counted as 143" in pod.log


def test_status_of_an_earlier_pod_is_ignored(tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    status.write_text('{"step": 7, "finished": true}')
    variables = {"DDP_STATUS_PORT": str(free_port()), "DDP_STATUS_FILE": str(status)}
    with job(tmp_path, nodes=1, extra_environment=variables) as scripts:
        pod = scripts.start(0, *script(tmp_path, "import os\nos.abort()\n"))
        assert pod.wait() == 134, pod.log
    assert not status.exists()


def test_nothing_outlives_the_launcher(tmp_path: Path) -> None:
    # A rank leaves one child in its process group and one orphan in another session.
    text = """
import os, pathlib, subprocess, sys
folder = pathlib.Path(sys.argv[1])
child = subprocess.Popen(["sleep", "1000"])
(folder / "child").write_text(str(child.pid))
(folder / "rank").write_text(str(os.getpid()))
subprocess.run(["sh", "-c", "setsid sleep 0.05 & echo $! > " + str(folder / "orphan")], check=True)
(folder / "ready").touch()
child.wait()
"""
    with job(tmp_path, nodes=1) as scripts:
        pod = scripts.start(0, *script(tmp_path, text))
        until((tmp_path / "ready").exists, "the script to start")
        orphan = int((tmp_path / "orphan").read_text())
        # Reaped, and not only dead: a zombie would still have its entry.
        until(lambda: not Path(f"/proc/{orphan}").exists(), "the orphan to be reaped")
        rank = int((tmp_path / "rank").read_text())
        child = int((tmp_path / "child").read_text())
        os.kill(rank, signal.SIGKILL)
        assert pod.wait() == 128 + signal.SIGKILL
        until(lambda: not is_alive(child), "the rank's own child to be killed")


def test_missing_command_is_a_configuration_error(tmp_path: Path) -> None:
    with job(tmp_path, nodes=1) as scripts:
        pod = scripts.start(0, "--", "/no/such/command")
        assert pod.wait() == 64
        assert "cannot start /no/such/command" in pod.message["error"]


def test_command_that_cannot_start_now_is_a_failure(tmp_path: Path) -> None:
    few_files = ["prlimit", "--nofile=5", "--"]  # as on a node without free resources
    with job(tmp_path, nodes=1, command_prefix=few_files) as scripts:
        pod = scripts.start(0, "--", "true")
        assert pod.wait() == 1, pod.log
        assert pod.message["error"] == "cannot start true: [Errno 24] Too many open files"


def test_a_log_that_cannot_be_written_changes_no_exit_code(tmp_path: Path) -> None:
    full_disk = ["env", "-u", "PYTHONUNBUFFERED", "sh", "-c", 'exec "$@" >/dev/full', "sh"]
    with job(tmp_path, nodes=1, command_prefix=full_disk) as mute:
        pod = mute.start(0, "--no-preload", "--", "sh", "-c", "echo lost; exit 3")
        assert pod.wait() == 3, pod.log
        assert pod.message["error"] == "rank 0 ended with exit code 3\nlost"


def test_sigterm_while_the_launcher_is_imported(tmp_path: Path) -> None:
    (tmp_path / "tempfile.py").write_text(
        "import os, signal, sys\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        f"sys.path.remove({str(tmp_path)!r})\n"
        "del sys.modules['tempfile']\n"
        "import tempfile\n"
    )
    path = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    with container_job(tmp_path, nodes=1, extra_environment=path) as starting:
        pod = starting.start(0, "--", "sleep", "1000")
        assert pod.wait() == 143, pod.log
        assert pod.message["exitCode"] == 143


def test_sigterm_before_torch_is_imported(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "torch.py").write_text(
        f"import pathlib, signal\npathlib.Path({str(tmp_path)!r}, 'imports').touch()\n"
        "signal.pause()\n"
    )
    path = {"PYTHONPATH": f"{slow}:{os.environ.get('PYTHONPATH', '')}"}
    with container_job(tmp_path, local_world_size=2, extra_environment=path) as starting:
        pod = starting.start(1)
        until((tmp_path / "imports").exists, "the import to begin")
        children = pod.child_pids()
        pod.stop()
        assert pod.wait() == 143, pod.log
        assert pod.message == {"exitCode": 143, "rank": 2}
        assert not any(is_alive(child) for child in children)


def test_help_shows_the_flags_of_launcher_and_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        launch.main(["--help"], {})
    shown = capsys.readouterr().out
    assert "--max-restarts" in shown
    assert "--max-reforms" in shown
    assert "--checkpoint-every-steps" in shown


def test_missing_peers_end_the_wait_at_the_deadline(tmp_path: Path) -> None:
    with job(tmp_path / "one") as one, job(tmp_path / "other") as other:
        for pod, missing in [
            (one.start(0, "--rendezvous-timeout-seconds", "1"), "rank 0 waits for rank 1 of 2"),
            (other.start(1, "--rendezvous-timeout-seconds", "1"), "rank 0 does not answer"),
        ]:
            assert pod.wait() == 75
            assert "gave up after 1 s" in pod.message["error"]
            assert missing in pod.message["error"]


def test_sigterm_while_a_name_does_not_resolve(tmp_path: Path) -> None:
    unknown = {"MASTER_ADDR": "rank-0.example.invalid"}
    with job(tmp_path, extra_environment=unknown) as lonely:
        pod = lonely.start(1)
        pod.wait_for_log("rank-0.example.invalid does not resolve yet")
        pod.stop()
        assert pod.wait() == 143
        assert pod.message == {"exitCode": 143, "rank": 1}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPUs")
def test_nccl_without_gpus(tmp_path: Path) -> None:
    with job(tmp_path, nodes=1, extra_environment={"DDP_BACKEND": "nccl"}) as no_gpus:
        pod = no_gpus.start(0)
        assert pod.wait() == 64
        assert "1 processes in this pod need as many GPUs, but 0 are" in pod.message["error"]


def test_failing_program_is_the_failure_and_its_peers_lose_a_peer(tmp_path: Path) -> None:
    with job(tmp_path) as failing:
        pods = [
            failing.start(0, "--max-reforms", "0"),
            failing.start(
                1, "--max-restarts", "0", "--trace-samples", str(tmp_path / "no/such/folder")
            ),
        ]
        assert pods[1].wait() == 1
        assert pods[1].message["error"].startswith("FileNotFoundError")
        assert pods[0].wait() == 75, pods[0].log
        assert "gave up after 0 re-forms" in pods[0].message["error"]


def test_program_that_always_fails_restarts_within_its_budget(tmp_path: Path) -> None:
    folder = str(tmp_path / "no" / "such" / "folder")
    with job(tmp_path, nodes=1) as failing:
        pod = failing.start(0, "--max-restarts", "2", "--trace-samples", folder)
        assert pod.wait() == 1
        assert pod.message["error"].startswith("FileNotFoundError")
        assert "restarting it, 1 of at most 2 restarts in 600 s" in pod.log
        assert "restarting it, 2 of at most 2 restarts in 600 s" in pod.log
        assert pod.log.count("Traceback") == 3


def test_wrong_settings_are_not_retried(tmp_path: Path) -> None:
    with job(tmp_path, nodes=1) as digits:
        assert digits.start(0, "--epochs", "1").wait() == 0
        state = next(digits.checkpoints.glob("step-*")) / "state.pt"
        torch.save({"model": {}}, state)
        content = state.read_bytes()
        changed = replace(
            Manifest.read(state.parent),
            state_bytes=len(content),
            state_sha256=hashlib.sha256(content).hexdigest(),
        )
        state.with_name(MANIFEST).write_bytes(changed.encode())
        pod = digits.start(0)
        assert pod.wait() == 64
        assert "does not fit this run" in pod.message["error"]
        assert "restarting it" not in pod.log


def test_dead_forkserver_is_replaced(tmp_path: Path) -> None:
    with job(tmp_path, nodes=1) as digits:
        pod = digits.start(
            0,
            "--epochs",
            "1",
            "--trace-samples",
            str(digits.traces),
            "--step-delay-seconds",
            "0.02",
        )
        digits.wait_for_step(3)
        [rank] = pod.rank_pids()
        [server] = set(pod.child_pids()) - {rank}
        os.kill(server, signal.SIGKILL)
        until(lambda: not is_alive(server), "the server to be reaped")
        os.kill(rank, signal.SIGKILL)
        pod.wait_for_log("restarting it")
        assert pod.wait() == 0, pod.log
        assert pod.message["step"] == pod.message["totalSteps"]


@contextmanager
def ignored(number: signal.Signals) -> Iterator[None]:
    """Ignore a signal in this process, which is the forkserver's launcher here."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_forkserver_that_cannot_fork_ends() -> None:
    # The first fork makes the process between server and rank, which then cannot fork the rank.
    program = """
import os, socket, sys
from ddp_trainer.launcher.ranks import forkserver
fork, forks = os.fork, []
def fork_once():
    forks.append(None)
    if len(forks) > 1:
        raise BlockingIOError("Resource temporarily unavailable")
    return fork()
os.fork = fork_once
forkserver.PRELOADED = ()
forkserver.serve(socket.socket(fileno=int(sys.argv[1])), [])
"""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, os.fdopen(open_report_file()) as report, ignored(STARTED_SIGNAL):
        number = theirs.fileno()
        with subprocess.Popen(
            [sys.executable, "-c", program, str(number)], pass_fds=[number], stderr=subprocess.PIPE
        ) as server:
            send_request(ours, 0, {}, report_fd=report.fileno(), streams=OWN_STREAMS)
            _, errors = server.communicate(timeout=DEADLINE_SECONDS)
    assert server.returncode == 1
    assert b"BlockingIOError: Resource temporarily unavailable" in errors


def test_ranks_die_with_their_launcher(tmp_path: Path) -> None:
    with job(tmp_path, nodes=1, local_world_size=2) as digits:
        pod = digits.start(0, "--trace-samples", str(digits.traces), "--step-delay-seconds", "0.02")
        digits.wait_for_step(3)
        children = pod.child_pids()
        assert len(children) == 3
        pod.kill()
        until(lambda: not any(is_alive(pid) for pid in children), "all of the pod to be gone")


def test_finished_run_that_starts_again_finishes_again(tmp_path: Path) -> None:
    with job(tmp_path, nodes=1) as twice:
        first = twice.start(0, "--epochs", "1")
        assert first.wait() == 0, first.log
        second = twice.start(0, "--epochs", "1")
        assert second.wait() == 0, second.log
        for known in ("step", "totalSteps", "accuracy", "checkpoint", "done"):
            assert second.message[known] == first.message[known]
