"""Launchers that receive another assignment: their ranks restart, and the pods stay."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.support.pods import is_alive, until
from tests.trainer.support.worlds import world_job

JOINED = """
from ddp_trainer.telemetry.termination import RankReport
from ddp_trainer.process_group.assignment import AssignmentFile
report, places = RankReport(os.environ), AssignmentFile.from_env(os.environ)
report.update(finished=False)
leave = sys.exit

def end(code):
    report.update(finished=(folder / "all").exists())
    leave(code)

sys.exit = end
"""
"""A rank that a new process can replace, and that finishes when all ranks have finished."""
LEAVES = """
    place = places.read()
    if place is not None and place.node_rank is None and not (folder / "stays").exists():
        sys.exit(0)
"""


def test_failure_restarts_all_ranks_in_their_pods(tmp_path: Path) -> None:
    with world_job(tmp_path) as job:
        first, second = job.start(0), job.start(1)
        first.wait_for(1)
        died = second.wait_for(1)
        number = first.news()["number"]
        second.end(1, 3)
        news = first.news(after=number, wait=25)
        [failure] = news["failures"]
        assert failure["time"].endswith("Z")
        assert {**failure, "message": json.loads(failure["message"]), "time": ""} == {
            "pod": second.name,
            "nodeRank": 1,
            "generation": 1,
            "exitCode": 3,
            "message": {"exitCode": 3, "rank": 1, "error": "rank 1 ended with exit code 3"},
            "time": "",
        }
        assert (news["generation"], news["scope"]) == (1, "InPlace")
        # The pods swap their node ranks; 127.0.0.2 has node rank 0 now.
        master = {"masterAddr": "pod-1.job", "masterAddress": second.address}
        assert second.tell(2, 0, **master) == (200, 2)
        assert first.tell(2, 1, **master) == (200, 2)
        began = second.wait_for(2)
        assert began.pop("pid") != died["pid"]
        assert began == {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "NODE_RANK": "0",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "2",
            "MASTER_ADDR": second.address,
            "generation": 2,
        }
        assert first.wait_for(2)["RANK"] == "1"
        job.finish()
        assert [first.wait(), second.wait()] == [0, 0]
        assert second.message == {"exitCode": 0, "rank": 0}


def test_old_repeated_and_foreign_assignments_change_nothing(tmp_path: Path) -> None:
    with world_job(tmp_path) as job:
        pod = job.start(1)
        pod.wait_for(1)
        for token in ("", "another"):
            assert pod.tell(9, 0, token=token)[0] == 403
            assert pod.request("GET", "/world", token=token)[0] == 403
            assert pod.request("POST", "/failures", "{}", token=token)[0] == 403
        assert pod.tell(1, 0) == (200, 1)
        assert pod.tell(3, 0) == (200, 3)
        assert pod.tell(3, 1) == (200, 3)
        assert pod.tell(2, 1) == (409, 3)
        assert pod.tell(4, 1, jobUid="another") == (409, 3)
        assert pod.tell(4, 1, attempt=1) == (409, 3)
        assert pod.tell(4, 1, start="yes")[0] == 400
        assert pod.tell(4, 2) == (400, "nodeRank: must be null or 0 to nodes - 1\n")
        assert pod.request("PUT", "/world", "x" * 5000)[0] == 400
        assert pod.tell(4, 1, host="another-pod") == (400, f"host: this is {pod.name}\n")
        assert pod.tell(1, 1, host=pod.name) == (409, 3)
        assert pod.request("GET", "/world?wait=26")[0] == 400
        assert pod.request("GET", "/world?lead=601")[0] == 400
        assert pod.request("PUT", "/status")[0] == 405
        pod.wait_for(3)
        assert pod.tell(5, 1)[0] == 200
        pod.wait_for(5)
        assert [line["generation"] for line in pod.began()] == [1, 3, 5]


def test_pod_without_a_generation_takes_no_assignment(tmp_path: Path) -> None:
    with world_job(tmp_path) as job:
        pod = job.start(0, variables={"DDP_GENERATION": ""}, command=["--", "sleep", "1000"])
        pod.wait_to_listen()
        assert pod.tell(2, 1)[0] == 404
        assert pod.request("GET", "/world")[0] == 404
        assert pod.request("POST", "/failures", "{}")[0] == 404
        pod.process.send_signal(signal.SIGTERM)
        assert pod.wait() == 143


def test_ranks_are_held_until_they_may_start(tmp_path: Path) -> None:
    with world_job(tmp_path) as job:
        pod = job.start(0)
        before = pod.wait_for(1)["pid"]
        assert pod.tell(2, 0, start=False)[0] == 200
        pod.wait_for_log("generation 2: waiting for the other pods")
        assert not is_alive(before)
        assert pod.tell(2, 0, start=False)[0] == 200
        assert pod.tell(2, 0, start=True)[0] == 200
        now = pod.wait_for(2)["pid"]
        assert pod.tell(2, 0, start=False)[0] == 200
        assert pod.tell(3, 0)[0] == 200
        pod.wait_for(3)
        assert not is_alive(now)
        assert [line["generation"] for line in pod.began()] == [1, 2, 3]
        assert pod.tell(4, 0, start=False)[0] == 200
        pod.wait_for_log("generation 4: waiting for the other pods")
        pod.process.send_signal(signal.SIGTERM)
        assert pod.wait() == 143


def test_pod_reports_that_ranks_of_earlier_generations_ended(tmp_path: Path) -> None:
    with world_job(tmp_path) as job:
        pod = job.start(0)
        before = pod.wait_for(1)["pid"]
        os.kill(before, signal.SIGSTOP)
        # A stopped process receives the lower one of two pending signals first: SIGTERM.
        until(lambda: _state(before) == "T", "the rank to stand still")
        assert pod.put(2, 0, start=False) == (200, {"generation": 2, "ended": False, "led": False})
        assert is_alive(before)
        os.kill(before, signal.SIGCONT)
        until(
            lambda: (
                pod.put(2, 0, start=False) == (200, {"generation": 2, "ended": True, "led": False})
            ),
            "a report that they have ended",
        )
        assert not is_alive(before)
        assert [line["generation"] for line in pod.began()] == [1]


def test_answer_waits_for_the_end_of_ranks_as_long_as_requested(tmp_path: Path) -> None:
    with world_job(tmp_path, prelude="import signal; signal.signal(15, signal.SIG_IGN)") as job:
        pod = job.start(0)
        before = pod.wait_for(1)["pid"]
        status, error = pod.put(2, 0, query="?wait=26")
        assert (status, error) == (400, "wait: set it to a whole number from 0 to 25\n")
        # They are killed after twice the default wait.
        ended = pod.put(2, 0, query="?wait=25", start=False, graceSeconds=2)
        assert ended == (200, {"generation": 2, "ended": True, "led": False})
        assert not is_alive(before)


def test_ranks_of_a_held_pod_wait_for_their_start(tmp_path: Path) -> None:
    with world_job(tmp_path) as job:
        pod = job.start(1, variables={"DDP_HELD": "1"})
        pod.wait_for_log("generation 1: waiting for the other pods")
        assert pod.put(1, 1, start=False) == (200, {"generation": 1, "ended": True, "led": False})
        assert pod.tell(0, 1) == (409, 1)
        assert pod.began() == []
        assert pod.tell(1, 1) == (200, 1)
        pod.wait_for(1)


def test_first_ranks_wait_for_their_order_up_to_a_limit(tmp_path: Path) -> None:
    with world_job(tmp_path) as job:
        pod = job.start(1, variables={"DDP_GENERATION": "0", "DDP_HOLD_SECONDS": "1000"})
        pod.wait_for_log("generation 0: waiting for the other pods")
        assert pod.put(1, 0, start=False) == (200, {"generation": 1, "ended": True, "led": False})
        assert pod.began() == []
        assert pod.tell(1, 0) == (200, 1)
        assert pod.wait_for(1)["RANK"] == "0"
        unassigned = job.start(1, variables={"DDP_GENERATION": "0", "DDP_HOLD_SECONDS": "1"})
        assert unassigned.wait_for(0)["RANK"] == "1"
        assert unassigned.tell(1, 0) == (200, 1)
        assert unassigned.wait_for(1)["RANK"] == "0"
        wrong = job.start(1, variables={"DDP_HOLD_SECONDS": "-1"})
        assert wrong.wait() == 64


def test_rank_that_exits_0_after_sigterm_is_restarted(tmp_path: Path) -> None:
    prelude = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))"
    with world_job(tmp_path, prelude=prelude) as job:
        pod = job.start(0)
        pod.wait_for(1)
        assert pod.tell(2, 0)[0] == 200
        pod.wait_for(2)


def test_shell_command_is_restarted_with_its_new_rank(tmp_path: Path) -> None:
    text = f'echo "$RANK $PET_NNODES" >> {tmp_path}/shell; while :; do sleep 0.05; done'
    with world_job(tmp_path) as job:
        pod = job.start(1, command=["--", "/bin/sh", "-c", text])
        output = tmp_path / "shell"
        until(output.exists, "the shell to start")
        assert pod.tell(2, 2, nodes=3)[0] == 200
        until(lambda: output.read_text().splitlines()[1:] == ["2 3"], "the shell to restart")


@pytest.mark.parametrize(
    ("polls", "reason"),
    [
        (False, "the operator does not poll node rank 0 for failures"),
        (True, "no answer within 0.5 s"),
    ],
)
def test_pod_without_an_answer_ends_with_its_exit_code(
    polls: bool, reason: str, tmp_path: Path
) -> None:
    with world_job(tmp_path) as job:
        first, second = job.start(0), job.start(1, waits={"ANSWER_SECONDS": 0.5})
        first.wait_for(1)
        second.wait_for(1)
        if polls:
            assert first.news()["failures"] == []
        second.end(1, 3)
        assert second.wait() == 3
        error = f"rank 1 ended with exit code 3; not restarted in place: {reason}"
        assert second.message["error"] == error
        assert [each["pod"] for each in first.news()["failures"]] == [second.name] * polls


LEADS = {"DDP_MEMBERS": "0-1"}
SOON: dict[str, Any] = {"_PAUSES": [0.5, 0.5], "ANSWER_SECONDS": 60}


def test_node_rank_0_leads_while_no_operator_asks(tmp_path: Path) -> None:
    with world_job(tmp_path) as job:
        first, second = job.start(0, variables=LEADS, waits=SOON), job.start(1)
        first.wait_for(1)
        before = second.wait_for(1)["pid"]
        number = first.news(lead=1)["number"]
        for generation in (1, 2):
            second.end(generation, 3)
            began = second.wait_for(generation + 1)
            assert began.pop("pid") != before
            assert (began["RANK"], began["WORLD_SIZE"]) == ("1", "2")
            assert first.wait_for(generation + 1)["RANK"] == "0"
        first.end(3, 1)
        first.wait_for(4)
        news = first.news(after=number, wait=25)
        assert (news["generation"], news["members"]) == (4, "0-1")
        assert [each["generation"] for each in news["led"]] == [2, 3, 4]
        assert [(each["pod"], each["generation"]) for each in news["failures"]] == [
            (second.name, 1),
            (second.name, 2),
            (first.name, 3),
        ]
        # The operator is back and confirms the assignment: no rank ends.
        settled = {"leader": first.name, "masterAddress": ""}
        assert first.put(4, 0, members="0-1", **settled) == (
            200,
            {"generation": 4, "ended": True, "led": False},
        )
        assert second.put(3, 1, **settled)[0] == 409
        assert second.put(4, 1, **settled)[0] == 200
        assert first.news()["led"] == []
        job.finish()
        assert [first.wait(), second.wait()] == [0, 0]
        assert [line["generation"] for line in second.began()] == [1, 2, 3, 4]


def test_node_rank_0_waits_for_all_pods_before_it_ends_ranks(tmp_path: Path) -> None:
    with world_job(tmp_path) as job:
        leads = {"DDP_MEMBERS": "0-2"}
        first = job.start(0, nodes=3, variables=leads, waits=SOON)
        second = job.start(1, nodes=3)
        first.wait_for(1)
        second.wait_for(1)
        first.news(lead=1)
        second.end(1, 3)
        first.wait_for_log("generation 2: no decision from the operator: restarting the group")
        assert [line["generation"] for line in first.began()] == [1]
        third = job.start(2, nodes=3)
        for pod in (first, second, third):
            pod.wait_for(2)
        assert [line["generation"] for line in first.began()] == [1, 2]


@pytest.mark.parametrize(("scope", "code"), [("Gang", 3), ("Auto", 64)])
def test_pods_of_other_scopes_or_with_exit_code_64_do_not_ask(
    scope: str, code: int, tmp_path: Path
) -> None:
    with world_job(tmp_path) as job:
        pod = job.start(0, variables={"DDP_RESTART_SCOPE": scope})
        pod.wait_for(1)
        pod.news()  # as an operator polls
        pod.end(1, code)
        assert pod.wait() == code
        assert pod.message["error"] == f"rank 0 ended with exit code {code}"


def test_sigterm_ends_a_pod_that_waits_for_its_answer(tmp_path: Path) -> None:
    with world_job(tmp_path) as job:
        pod = job.start(0)
        pod.wait_for(1)
        number = pod.news()["number"]
        pod.end(1, 3)
        assert pod.news(after=number, wait=25)["failures"]
        pod.process.send_signal(signal.SIGTERM)
        assert pod.wait() == 3


def test_spare_waits_gets_an_assignment_and_loses_it(tmp_path: Path) -> None:
    with world_job(tmp_path) as job:
        pod = job.start(None)
        pod.wait_for_log("generation 1: waiting for an assignment")
        assert pod.tell(2, None)[0] == 200
        assert pod.tell(3, 1)[0] == 200
        place = pod.wait_for(3)
        assert (place["RANK"], place["WORLD_SIZE"]) == ("1", "2")
        assert pod.tell(4, None)[0] == 200
        pod.wait_for_log("generation 4: waiting for an assignment")
        assert not is_alive(place["pid"])
        assert pod.tell(5, 0)[0] == 200
        assert pod.wait_for(5)["RANK"] == "0"
        job.finish()
        assert pod.wait() == 0


def test_spare_is_warm_and_can_be_stopped(tmp_path: Path) -> None:
    with world_job(tmp_path, flags=(), prelude="line['warm'] = 'torch' in sys.modules") as job:
        pod = job.start(None)
        children = Path(f"/proc/{pod.process.pid}/task/{pod.process.pid}/children")
        until(lambda: bool(children.read_text()), "the forkserver")
        [server] = map(int, children.read_text().split())
        until(lambda: pod.put(2, None)[1]["ended"], "the imports")
        assert "libtorch" in Path(f"/proc/{server}/maps").read_text(), "reported too early"
        until(lambda: _sleeps(server) and _sleeps(pod.process.pid), "nothing more to do")
        assert pod.began() == []
        assert pod.tell(3, 1)[0] == 200
        began = pod.wait_for(3)
        assert began["warm"]
        assert _parent(began["pid"]) == pod.process.pid
        assert server in map(int, children.read_text().split()), "another server"
        assert pod.tell(4, None)[0] == 200
        pod.wait_for_log("generation 4: waiting for an assignment")
        pod.process.send_signal(signal.SIGTERM)
        assert pod.wait() == 143
        assert pod.message == {"exitCode": 143}
        until(lambda: not is_alive(server), "the forkserver to end")


def test_spare_that_cannot_receive_an_assignment_fails(tmp_path: Path) -> None:
    with world_job(tmp_path) as job:
        job.start(1).wait_for(1)
        unreachable = job.start(None, index=0)
        assert unreachable.wait() == 1
        assert "cannot receive one" in unreachable.message["error"]


PRINTS = """
    order = folder / "print"
    if order.exists():
        order.unlink()
        print("a line", flush=True)
"""


def test_joined_ranks_continue_and_restart_with_their_new_rank(tmp_path: Path) -> None:
    with world_job(tmp_path, prelude=JOINED, turn=LEAVES + PRINTS) as job:
        pod = job.start(1, variables={"DDP_LOG_PREFIX": "rank"})
        before = pod.wait_for(1)["pid"]
        (tmp_path / "print").touch()
        pod.wait_for_log("[rank1]: a line")
        until(lambda: pod.news()["scope"] == "Pod", "the launcher to know")
        assert pod.tell(2, 0, start=False, masterAddr="pod-1.job")[0] == 200
        # A rank that dies is restarted with its current rank, and looks up the name again.
        pod.wait_for_log("generation 2: node rank 0 of 2")
        assert is_alive(before)
        (tmp_path / "print").touch()
        pod.wait_for_log("[rank0]: a line")
        os.kill(before, signal.SIGKILL)
        again = pod.wait_for(2)
        assert (again["RANK"], again["MASTER_ADDR"]) == ("0", "pod-1.job")
        # It leaves, and returns with its next assignment.
        assert pod.tell(3, None)[0] == 200
        pod.wait_for_log("generation 3: waiting for an assignment")
        assert pod.tell(4, 1)[0] == 200
        assert pod.wait_for(4)["RANK"] == "1"
        job.finish()
        assert pod.wait() == 0


def test_ranks_that_do_not_leave_are_killed(tmp_path: Path) -> None:
    (tmp_path / "stays").touch()
    with world_job(tmp_path, prelude=JOINED, turn=LEAVES) as job:
        pod = job.start(1, waits={"_LEAVE_SECONDS": 0.5})
        rank = pod.wait_for(1)["pid"]
        until(lambda: pod.news()["scope"] == "Pod", "the launcher to know")
        assert pod.tell(2, None, graceSeconds=0)[0] == 200
        pod.wait_for_log("generation 2: waiting for an assignment")
        assert not is_alive(rank)


def test_pod_whose_ranks_leave_after_sigterm_has_not_finished(tmp_path: Path) -> None:
    prelude = JOINED + "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    (tmp_path / "stays").touch()
    with world_job(tmp_path, prelude=prelude, turn=LEAVES) as job:
        pod = job.start(1)
        pod.wait_for(1)
        until(lambda: pod.news()["scope"] == "Pod", "the launcher to know")
        assert pod.tell(2, None)[0] == 200
        pod.wait_for_log("generation 2: the ranks leave the group")
        pod.process.send_signal(signal.SIGTERM)
        pod.wait_for_log("telling the ranks to save and stop")
        (tmp_path / "stays").unlink()
        assert pod.wait() == 143
        assert pod.message["exitCode"] == 143


def test_joined_ranks_ask_only_with_scope_in_place(tmp_path: Path) -> None:
    flags = ("--no-preload", "--max-restarts=0")
    with world_job(tmp_path, prelude=JOINED, flags=flags) as job:
        auto = job.start(0)
        auto.wait_for(1)
        auto.news()
        auto.end(1, 3)
        assert auto.wait() == 3
        named = job.start(0, variables={"DDP_RESTART_SCOPE": "InPlace"})
        named.wait_for(1)
        number = named.news()["number"]
        named.end(1, 3)
        while not (news := named.news(after=number, wait=25))["failures"]:
            number = news["number"]  # its join is in the news, too
        assert named.tell(2, 0)[0] == 200
        named.wait_for(2)


def _sleeps(pid: int) -> bool:
    """Return True if a process used no CPU time for a moment."""
    before = _ticks(pid)
    time.sleep(0.2)
    return before > 0 and _ticks(pid) == before


def _ticks(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12])


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _state(pid: int) -> str:
    return _stat(pid)[0]


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def test_status_of_an_earlier_generation_is_removed(tmp_path: Path) -> None:
    prelude = """
if generation == "1":
    pathlib.Path(os.environ["DDP_STATUS_FILE"]).write_text('{"step": 7}')
"""
    with world_job(tmp_path, prelude=prelude) as job:
        pod = job.start(0)
        pod.wait_for(1)
        assert pod.request("GET", "/status") == (200, {"step": 7})
        assert pod.tell(2, 0)[0] == 200
        pod.wait_for(2)
        assert pod.request("GET", "/status") == (503, "nothing to report yet\n")
