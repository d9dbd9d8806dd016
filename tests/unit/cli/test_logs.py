from datetime import UTC, datetime
from typing import Any

import pytest
from ddp_client.cli import app
from ddp_client.cli.commands.pods import logs
from ddp_client.remote import following
from ddp_client.remote.logs import MOST_BYTES, Lines, read_line
from ddp_client.text import clean_output
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity

from tests.good_manifests import Json
from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import ESCAPES, at, failure, stored, training
from tests.unit.job.builders import NAME, fresh_job, pod
from tests.unit.kube.fake_api_server import FakeApiServer, Fault

JOB = ("ddpjobs", "research", NAME)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(following, "SHORT_POLL_SECONDS", 0.02)


def printed(*lines: tuple[int, str]) -> bytes:
    return b"".join(f"2026-03-01T12:00:{second:02}Z {text}\n".encode() for second, text in lines)


def started(
    server: FakeApiServer,
    index: int,
    *,
    attempt: int = 0,
    replacement: int = 0,
    ended: bool = False,
) -> str:
    """Create a pod of the stored job that runs, or has run; return its name."""
    made = manifests.pod(fresh_job(), Identity(index, attempt, replacement))
    uid = server.objects[JOB]["metadata"]["uid"]
    made["metadata"]["ownerReferences"][0]["uid"] = uid
    name: str = made["metadata"]["name"]
    server.create("pods", made | {"status": _status(ended=ended)})
    return name


def _status(*, ended: bool) -> Json:
    state = {"terminated": {"exitCode": 0, "finishedAt": at(60)}}
    running = {"running": {"startedAt": at(0)}}
    return {
        "phase": "Succeeded" if ended else "Running",
        "containerStatuses": [{"name": "trainer", "state": state if ended else running}],
    }


class TestLines:
    def test_chunks_are_split_into_lines(self) -> None:
        lines = Lines()
        assert lines.feed(b"a\nb") == [b"a"]
        assert lines.feed(b"c") == []
        assert lines.feed(b"\n\nd\n") == [b"bc", b"", b"d"]
        assert lines.end() == []
        assert lines.feed(b"e") == []
        assert lines.end() == [b"e"]

    def test_endless_line_is_cut(self) -> None:
        lines = Lines()
        for _ in range(10):
            assert lines.feed(b"x" * MOST_BYTES) == []
        assert lines.feed(b"y\nz\n") == [b"x" * MOST_BYTES, b"z"]

    @pytest.mark.parametrize(
        ("raw", "second", "text"),
        [
            (b"2026-03-01T12:00:05.123456789Z step 1", 5, "step 1"),
            (b"2026-03-01T14:00:05.5+02:00   indented", 5, "  indented"),
            (b"no time here", 1, "no time here"),
            (b"2026-03-01T12:00:07Z \xff", 7, "\ufffd"),
        ],
    )
    def test_time_of_a_line(self, raw: bytes, second: int, text: str) -> None:
        before = datetime(2026, 3, 1, 12, 0, 1, tzinfo=UTC)
        line = read_line(pod(fresh_job()), raw, before)
        assert line.time.replace(microsecond=0) == before.replace(second=second)
        assert line.text == text

    @pytest.mark.parametrize(
        ("raw", "rank", "text"),
        [
            (b"2026-03-01T12:00:05Z [rank3]: ValueError: no", 3, "ValueError: no"),
            (b"[rank12]:   indented", 12, "  indented"),
            (b"2026-03-01T12:00:05Z [rank3]:", None, "[rank3]:"),
            (b"2026-03-01T12:00:05Z x [rank3]: y", None, "x [rank3]: y"),
            (b"2026-03-01T12:00:05Z [rank1234567]: y", None, "[rank1234567]: y"),
        ],
    )
    def test_rank_prefix_of_a_line(self, raw: bytes, rank: int | None, text: str) -> None:
        line = read_line(pod(fresh_job()), raw, datetime(2026, 3, 1, tzinfo=UTC))
        assert (line.rank, line.text) == (rank, text)
        assert line.may_be_of([])
        assert line.may_be_of([3]) == (rank in (3, None))

    def test_spaces_stay_and_progress_bars_show_their_last_state(self) -> None:
        assert clean_output("  a   b\tc", 80) == "  a   b c"
        assert clean_output("10%|#   \r 50%|##  \r100%|####\r", 80) == "100%|####"
        assert clean_output(ESCAPES.replace("\r", ""), 80) == "red end"
        assert len(clean_output("x" * 1000, 80)) == 80


class TestLogs:
    async def test_all_ranks_in_the_order_of_time(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        server.logs[started(server, 0)] = printed((1, "one"), (3, "three"))
        server.logs[started(server, 1)] = printed((2, f"two {ESCAPES}"), (4, "four"))
        result = await ddp("logs", NAME, "--tail", "7", "--since", "1m")
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines()[:1] + result.stdout.splitlines()[2:] == [
            *("0 | one", "0 | three", "1 | four")
        ]
        assert result.stdout.replace("\n", "").isprintable()
        asked = [request for request in server.requests if request.path.endswith("/log")]
        for request in asked:
            assert request.query == {
                "container": "trainer",
                "timestamps": "true",
                "tailLines": "7",
                "sinceSeconds": "60",
            }

    async def test_one_rank(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        server.logs[started(server, 0)] = printed((1, "one"))
        server.logs[started(server, 1)] = printed((2, "two"))
        assert (await ddp("logs", NAME, "--rank", "1")).stdout == "1 | two\n"
        refused = await ddp("logs", NAME, "--rank", "2")
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "the job has ranks 0 to 1 only" in refused.stderr

    async def test_a_pod_of_several_ranks(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", training(spec={"nprocPerNode": 8}))
        server.logs[started(server, 0)] = printed((1, "one"))
        server.logs[started(server, 1)] = printed((2, "two"))
        text = (await ddp("logs", NAME)).stdout
        assert text == "  0-7 | one\n 8-15 | two\n"
        assert (await ddp("logs", NAME, "--rank", "9")).stdout == " 8-15 | two\n"

    async def test_lines_that_begin_with_their_rank(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", training(spec={"nprocPerNode": 2}))
        for index in range(2):
            own = [
                (2, f"[rank{2 * index + local}]: {text}")
                for local in range(2)
                for text in ("same", f"I am {local}")
            ]
            server.logs[started(server, index)] = printed((1, "launcher"), *own)
        assert (await ddp("logs", NAME)).stdout.splitlines() == [
            "[0-3 x2] | launcher",
            "[0-3 x4] | same",
            "[0,2 x2] | I am 0",
            "[1,3 x2] | I am 1",
        ]
        one = await ddp("logs", NAME, "--rank", "3", "--no-fold")
        assert one.stdout.splitlines() == ["2-3 | launcher", "  3 | same", "  3 | I am 1"]

    async def test_equal_lines_of_several_ranks_are_folded(
        self, ddp: Ddp, server: FakeApiServer
    ) -> None:
        server.create("ddpjobs", training(spec={"replicas": 3}))
        for index in range(3):
            own = (2, f"I am {index}")
            server.logs[started(server, index)] = printed((1, "same"), own, (3, "a"), (9, "a"))
        result = await ddp("logs", NAME)
        assert result.stdout.splitlines() == [
            "[0-2 x3] | same",
            *(f"{index} | I am {index}" for index in range(3)),
            *["[0-2 x3] | a"] * 2,
        ]
        plain = await ddp("logs", NAME, "--no-fold")
        assert plain.stdout.splitlines()[:3] == [f"{index} | same" for index in range(3)]
        assert len(plain.stdout.splitlines()) == 12

    async def test_folding_holds_a_bounded_number_of_lines(
        self, ddp: Ddp, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "MOST_HELD", 2)
        server.create("ddpjobs", training(spec={"replicas": 3}))
        for index in range(3):
            server.logs[started(server, index)] = printed((1, "same"))
        assert (await ddp("logs", NAME)).stdout == "[0-1 x2] | same\n2 | same\n"

    async def test_unreadable_log_does_not_hide_others(
        self, ddp: Ddp, server: FakeApiServer
    ) -> None:
        server.create("ddpjobs", training())
        started(server, 0)
        server.logs[started(server, 1)] = printed((2, "two"))
        result = await ddp("logs", NAME)
        assert (result.exit_code, result.stdout) == (0, "1 | two\n")
        assert result.stderr == "0 ! no log: the container is waiting to start\n"

    async def test_connections_are_bounded(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", training(spec={"replicas": 5}))
        for index in range(5):
            server.logs[started(server, index)] = printed((index, "said"))
        result = await ddp("logs", NAME, "--max-pods=2")
        assert result.stdout == "0 | said\n1 | said\n"
        assert "The logs of 3 more pods are left out" in result.stderr
        assert server.count("GET", "/log") == 2

    @pytest.mark.parametrize("count", ["0", "61"])
    async def test_invalid_number_of_connections_is_refused(self, ddp: Ddp, count: str) -> None:
        result = await ddp("logs", NAME, f"--max-pods={count}")
        assert result.exit_code == 2
        assert "1<=x<=60" in result.stderr

    async def test_before_any_pod_has_started(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        result = await ddp("logs", NAME)
        assert (result.exit_code, result.stdout) == (0, "")
        assert "No pod has started yet" in result.stderr


class Script:
    """Runs a step after each read of the follower."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self._fetch = app.fetch

    async def __call__(self, cluster: Any, key: Any) -> Any:
        found = await self._fetch(cluster, key)
        if self.steps:
            self.steps.pop(0)()
        return found


class TestFollow:
    async def test_follow_until_the_end(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", stored("Succeeded"))
        server.logs[started(server, 0, ended=True)] = printed((1, "one"), (3, "three"))
        result = await ddp("logs", NAME, "-f")
        assert (result.exit_code, result.stdout) == (0, "0 | one\n0 | three\n")
        assert server.count("GET", "/log") == 1

    async def test_follow_folds_equal_lines(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", stored("Succeeded"))
        for index in range(2):
            name = started(server, index, ended=True)
            server.logs[name] = printed((1, "same"), (2, f"I am {index}"), (3, "end"))
        shown = (await ddp("logs", NAME, "-f")).stdout.splitlines()
        assert (shown[0], shown[-1]) == ("[0-1 x2] | same", "[0-1 x2] | end")
        assert sorted(shown[1:-1]) == ["0 | I am 0", "1 | I am 1"]
        plain = (await ddp("logs", NAME, "-f", "--no-fold")).stdout.splitlines()
        assert len(plain) == 6

    async def test_follow_ends_after_a_long_outage(
        self, ddp: Ddp, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(following, "PATIENCE_SECONDS", 0.05)
        server.create("ddpjobs", training())
        server.logs[started(server, 0, ended=True)] = printed((1, "said"))

        monkeypatch.setattr(logs, "fetch", Script(server.go_away))
        result = await ddp("logs", NAME, "-f")
        assert result.exit_code == 1
        assert "away" in result.stderr

    async def test_broken_log_continues_where_it_stopped(
        self, ddp: Ddp, server: FakeApiServer
    ) -> None:
        server.create("ddpjobs", stored("Succeeded"))
        name = started(server, 0, ended=False)
        server.logs[name] = printed((1, "one"), (2, "two"), (3, "three"))
        begun = printed((1, "one"), (2, "two")).decode()
        server.faults = [
            Fault("GET", 200, begun, path_part="/log"),
            Fault("GET", None, path_part="/log"),
        ]
        result = await ddp("logs", NAME, "-f")
        assert result.stdout == "0 | one\n0 | two\n0 | three\n"
        reread = [r.query for r in server.requests if "sinceTime" in r.query]
        assert reread[0]["sinceTime"] == "2026-03-01T12:00:02Z"
        assert "tailLines" not in reread[0]

    async def test_unreadable_log_is_reported_once(
        self, ddp: Ddp, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.create("ddpjobs", training())
        started(server, 0)
        steps = [lambda: None, lambda: None, lambda: server.delete(*JOB)]
        monkeypatch.setattr(logs, "fetch", Script(*steps))
        result = await ddp("logs", NAME, "-f")
        assert result.stderr == "0 ! no log: the container is waiting to start\n"
        assert server.count("GET", "/log") > 1

    async def test_follow_includes_new_pods(
        self, ddp: Ddp, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.create("ddpjobs", training())
        server.logs[started(server, 0, ended=True)] = printed((1, "before"))

        def restart() -> None:
            server.update(*JOB, {"status": {"attempt": 1}})
            server.logs[started(server, 0, attempt=1, ended=True)] = printed((30, "after"))

        def end() -> None:
            server.update(*JOB, {"status": stored("Succeeded")["status"] | {"attempt": 1}})

        monkeypatch.setattr(logs, "fetch", Script(restart, lambda: None, end))
        result = await ddp("logs", NAME, "-f")
        assert (result.exit_code, result.stdout) == (0, "0 | before\n0 | after\n")

    async def test_follow_ends_when_the_job_is_deleted(
        self, ddp: Ddp, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.create("ddpjobs", training())
        server.logs[started(server, 0, ended=True)] = printed((1, "said"))
        monkeypatch.setattr(logs, "fetch", Script(lambda: server.delete(*JOB)))
        assert (await ddp("logs", NAME, "-f")).stdout == "0 | said\n"


async def test_earlier_attempt_shows_pods_and_what_the_status_keeps(
    ddp: Ddp, server: FakeApiServer
) -> None:
    server.create("ddpjobs", training(attempt=1, failures=[failure()]))
    server.logs[started(server, 0, ended=True)] = printed((1, "first try"))
    server.logs[started(server, 0, attempt=1)] = printed((2, "second try"))
    result = await ddp("logs", NAME, "--attempt", "0")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        *("0 | first try", "1 | Traceback", "1 |   File x", "1 | ValueError: bad batch")
    ]
    assert result.stderr == (f"Pod {NAME}-0-1 is gone; these last lines were kept in the job:\n")
    other = await ddp("logs", NAME, "--attempt", "7")
    assert "Nothing is left of attempt 7; the newest attempt is 1." in other.stderr
    assert (await ddp("logs", NAME, "-f", "--attempt", "0")).exit_code == 2


@pytest.mark.parametrize(
    ("phase", "lead"),
    [("Failed", "No pod has a log any more."), ("Restarting", "No pod has started yet; run")],
)
async def test_logs_without_pods_show_the_newest_kept_lines(
    ddp: Ddp, server: FakeApiServer, phase: str, lead: str
) -> None:
    failures = [failure(message="older"), failure(attempt=1, pod=f"{NAME}-1-0", index=0, rank=0)]
    server.create("ddpjobs", stored(phase, attempt=2, failures=failures))
    result = await ddp("logs", NAME)
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith(lead)
    assert result.stdout.splitlines() == [
        *("0 | Traceback", "0 |   File x", "0 | ValueError: bad batch")
    ]


async def test_ended_job_that_never_failed_has_no_log_left(ddp: Ddp, server: FakeApiServer) -> None:
    server.create("ddpjobs", stored("Succeeded"))
    result = await ddp("logs", NAME)
    assert (result.stdout, result.stderr) == ("", "No pod has a log any more.\n")


async def test_kept_lines_have_no_secrets(ddp: Ddp, server: FakeApiServer) -> None:
    message = f"epoch 1\nexport WANDB_API_KEY=0123456789abcdef\nKeyError: {ESCAPES}\n"
    server.create("ddpjobs", stored("Failed", failures=[failure(message=message)]))
    result = await ddp("logs", NAME, "--attempt", "0")
    assert "0123456789abcdef" not in result.stdout
    assert "1 | epoch 1" in result.stdout
    assert "\x1b" not in result.stdout


async def test_kept_lines_of_a_pod_with_several_ranks(ddp: Ddp, server: FakeApiServer) -> None:
    failures = [failure(rank=None, message="a"), failure(rank=5, index=1, message="b")]
    server.create("ddpjobs", stored("Failed", failures=failures, spec={"nprocPerNode": 4}))
    assert (await ddp("logs", NAME, "--attempt", "0")).stdout == "4-7 | a\n5 | b\n"
    assert (await ddp("logs", NAME, "--attempt", "0", "--rank", "5")).stdout == "4-7 | a\n5 | b\n"
    assert (await ddp("logs", NAME, "--attempt", "0", "--rank", "6")).stdout == "4-7 | a\n"
    assert (await ddp("logs", NAME, "--attempt", "0", "--rank", "0")).stdout == ""
