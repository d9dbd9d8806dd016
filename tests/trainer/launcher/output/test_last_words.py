"""The part of a rank's output that goes into its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_operator.job.failure import symptoms
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.planning.plan import plan
from ddp_protocol.message import to_json
from ddp_protocol.progress import CheckpointStatus, Resumption
from ddp_protocol.world import MESSAGE_BYTES, PodFailure
from ddp_trainer.launcher.output.last_words import bytes_of, last_words
from ddp_trainer.launcher.verdict import RankEnd, judge_script
from ddp_trainer.launcher.world.failure_reports import message_of, within_bounds
from ddp_trainer.telemetry.termination import TerminationReport
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.support import pods
from tests.trainer.support.stub_torch import stub_torch
from tests.unit.job.builders import ended, later, listening, running_job, stored

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 5, in <module>
    main()
{more}ValueError: --lr -3 is no learning rate
"""
PLAIN = TRACEBACK.format(more="")
ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"


def kept(*streams: str, unhandled: bool = True, most: int = 900) -> str:
    words = last_words([each.encode() for each in streams], unhandled=unhandled, most=most)
    assert bytes_of(words) <= most
    return words


def test_traceback_is_kept_whole_with_the_lines_before_it() -> None:
    assert kept(f"epoch 1\nepoch 2\n{PLAIN}") == f"epoch 1\nepoch 2\n{PLAIN}".strip()
    assert kept("progress\n" * 900, PLAIN) == PLAIN.strip()


@pytest.mark.parametrize(
    "after",
    [
        "[W1121 03:55:27.29 TCPStore.cpp:106] recvValue failed\n" * 300,
        "Exception in thread Thread-3 (_pin_memory_loop):\n" + PLAIN.replace("Value", "Connection"),
        "Exception ignored in: <function f at 0x7f>\n" + PLAIN.replace("Value", "OS"),
        "--- Logging error ---\n" + PLAIN.replace("Value", "BrokenPipe"),
        "Task exception was never retrieved\nfuture: <Task>\n" + PLAIN.replace("Value", "OS"),
        "E1121 api.py:1002] failed (exitcode: 1)\nTraceback (most recent call last):\n"
        '  File "/usr/bin/torchrun", line 6\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n=====\n" + "x\n" * 700,
        "frame #0: c10::Error::Error() + 0x10\n" * 300,
    ],
)
def test_later_lines_do_not_push_out_the_traceback(after: str) -> None:
    words = kept(PLAIN + after)
    assert "ValueError: --lr -3 is no learning rate" in words
    assert words.startswith("Traceback (most recent call last):")


def test_deep_traceback_keeps_its_exception_and_last_frames() -> None:
    deep = "".join(f'  File "lib.py", line {n}, in call\n    call({n})\n' for n in range(200))
    words = kept(TRACEBACK.format(more=deep))
    assert words.startswith("Traceback (most recent call last):\n  […]\n")
    assert words.endswith("    call(199)\nValueError: --lr -3 is no learning rate")


def test_long_exception_keeps_its_beginning() -> None:
    words = kept(PLAIN + "Exception raised from f:\n" + "detail\n" * 500)
    assert "ValueError: --lr -3" in words
    assert "call" not in words.splitlines()[-1]
    assert words.endswith("[…]")
    assert "    main()" in words


def test_torchs_prefix_and_colours_are_dropped() -> None:
    prefixed = "".join(f"[rank3]: {line}\n" for line in PLAIN.splitlines())
    assert kept(prefixed) == PLAIN.strip()
    assert kept("\x1b[31mred\x1b[0m\n") == "red"
    assert kept("10%\r20%\r30%\nend\n", unhandled=False) == "30%\nend"


def test_handled_traceback_counts_like_any_line() -> None:
    log = PLAIN.replace("Value", "ConnectionReset") + "step\n" * 900
    assert "ConnectionReset" in kept(log, unhandled=True)
    assert "ConnectionReset" not in kept(log, unhandled=False)


def test_abort_keeps_its_reason_without_stack_frames() -> None:
    what = (
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [Rank 1] Watchdog caught collective operation timeout\n"
    )
    stack = "frame #1: f + 0x1 (0x7f in /usr/lib/libtorch.so)\n" * 100
    words = kept("step 1\n" * 2000 + what + stack + "Fatal Python error: Aborted\n\nThread 0x7f:\n")
    assert words.startswith("step 1\n")
    assert "Watchdog caught collective operation timeout" in words
    assert "frame" not in words


def test_without_a_traceback_both_streams_are_kept() -> None:
    assert kept("NCCL WARN x\n", "killed\n") == "NCCL WARN x\nkilled"
    assert kept("", "killed\n") == "killed"
    assert kept("out\n", "") == "out"
    assert kept() == ""


@given(
    st.lists(st.binary(max_size=3000), max_size=2),
    st.booleans(),
    st.integers(min_value=0, max_value=1200),
)
def test_last_words_of_any_output_are_bounded(
    streams: list[bytes], unhandled: bool, most: int
) -> None:
    words = last_words(streams, unhandled=unhandled, most=most)
    assert bytes_of(words) <= most


@given(st.text(max_size=3000), st.integers(min_value=200, max_value=1536))
def test_last_words_fit_a_termination_message_and_a_failure_report(text: str, size: int) -> None:
    words = last_words([(text + PLAIN * 3 + text).encode(errors="replace")], unhandled=True)
    end = RankEnd(
        rank=1, exit_code=1, consequence=False, report=TerminationReport(step=7), words=words
    )
    report = judge_script([end]).report
    assert (report.error or "").startswith("rank 1 ended with exit code 1\n")
    assert len(report.to_json().encode()) < 4096
    text = message_of(report, size=size)
    assert len(text.encode()) <= size <= MESSAGE_BYTES
    parsed = TerminationReport.from_json(text)
    assert (parsed.rank, parsed.exit_code, parsed.printed) == (1, 1, True)
    assert (parsed.error or "").startswith("rank 1 ended with exit code 1")


LINES = {
    "ASCII": "    return self.layer(batch)\n",
    "multi-byte": '    raise ValueError("größe ☃ 💾")\n',
    "escapes": '    print("\\n\\t", r"C:\\data")\t# "\n',
}
"""Source lines of frames."""
LINK = "\nThe above exception was the direct cause of the following exception:\n\n"
LIMIT = 'ValueError: --lr -3 is no "learning rate", größer als 0\n'
WRAPPED = "TrainerError: step 7 failed\n"


def deep(exception: str, size: int, line: str) -> str:
    """Return a traceback of about so many bytes."""
    frame = f'  File "/app/model.py", line 7, in forward\n{line}'
    frames = max((size - len(exception.encode())) // len(frame.encode()), 1)
    return "Traceback (most recent call last):\n" + frame * frames + exception


def message_to_operator(output: str, *, rank: int = 1) -> str:
    """Return what a pod reports, both in its termination message and to a running operator."""
    words = last_words([b"", output.encode()], unhandled=True)
    known = TerminationReport(
        step=70_000,
        last_step_time="2026-11-21T03:00:00Z",
        trained_seconds=86_400.123,
        resumed=Resumption(step=60_000, time="2026-11-20T03:00:00.250Z"),
        total_steps=100_000,
        loss=2.718281828,
        checkpoint=CheckpointStatus(step=69_000, path="/checkpoints/step-69000"),
    )
    end = RankEnd(rank=rank, exit_code=1, consequence=False, report=known, words=words)
    verdict = judge_script([end]).noting("not restarted in place: no answer within 120 s")
    return message_of(verdict.report)


@pytest.mark.parametrize("size", [500, 900, 1100, 2000, 5000, 30_000, 100_000])
@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
@pytest.mark.parametrize("causes", [0, 1, 3])
@pytest.mark.parametrize("after", ["", "[W1121 TCPStore.cpp:106] recvValue failed\n" * 20])
def test_operator_reads_the_exception_of_any_traceback(
    size: int, line: str, causes: int, after: str
) -> None:
    first = deep(LIMIT if causes else "", size, line) if causes else ""
    wrapped = LINK.join([first, *(deep(WRAPPED, size // 2, line) for _ in range(causes - 1))])
    last = WRAPPED if causes else LIMIT
    output = "epoch 1\n" * 50 + (wrapped + LINK if causes else "") + deep(last, size, line) + after
    message = message_to_operator(output)
    assert len(message.encode()) <= MESSAGE_BYTES
    text = symptoms.last_words(message).text
    assert last.strip() in text.splitlines()
    assert symptoms.headline(text) == last.strip()
    assert LIMIT.strip() in text.splitlines(), "the first of the exceptions that led to it"
    assert "step" in json.loads(message), "nothing else is left out for it"


def test_rule_and_class_see_the_exception_of_a_long_traceback() -> None:
    rules = [{"messageRegex": 'no "learning rate"', "action": "FailJob"}]
    for exception, expected in (
        (LIMIT, ("Failed", "FailedByRule", "Application")),
        (
            f"{ECC}\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n",
            ("Restarting", "NodeFailed", "Infrastructure"),
        ),
    ):
        job, pods = running_job(replicas=2, restart={"rules": rules, "scope": "Gang"})
        message = message_to_operator(deep(exception, 20_000, LINES["escapes"]))
        failed = ended(job, 1, code=1, at=59, message=message)
        status = plan(job, [pods[0], failed], later(63)).status
        assert (status.phase, status.reason, status.failures[-1].class_) == expected


@pytest.mark.parametrize(
    ("exception", "action", "class_"),
    [(LIMIT, "FailJob", "Application"), (f"{ECC}\n", "RestartInPlace", "Infrastructure")],
    ids=["rule", "node"],
)
def test_long_traceback_in_a_launchers_report_is_seen_too(
    exception: str, action: str, class_: str
) -> None:
    rules = [{"messageRegex": 'no "learning rate"', "action": "FailJob"}]
    job, running = running_job(replicas=2, restart={"rules": rules, "scope": "InPlace"})
    running = [listening(each) for each in running]
    launchers = LauncherStates(scope="InPlace")
    job = stored(job, plan(job, running, later(20), launchers=launchers))
    failed = PodFailure(
        pod=running[1].key.name,
        generation=0,
        exit_code=1,
        message=message_to_operator(deep(exception, 20_000, LINES["ASCII"])),
        time=later(59).isoformat(),
    )
    reported = replace(launchers, failures=(failed,))
    [failure] = plan(job, running, later(60), launchers=reported).status.failures
    assert (failure.action, failure.class_) == (action, class_)
    assert exception.strip() in failure.message


def test_operator_reads_the_exceptions_of_many_pods() -> None:
    def failure(number: int, exception: str) -> PodFailure:
        return PodFailure(
            pod=f"a-job-with-a-long-name-0-{number}-x7k2p",
            node_rank=number,
            generation=3,
            exit_code=1,
            message=message_to_operator(deep(exception, 9000, LINES["escapes"]), rank=number),
            time="2026-11-21T03:00:00Z",
        )

    earlier = [failure(number, WRAPPED) for number in range(128)]
    present = [failure(number, LIMIT) for number in range(64)]
    for before, now in (([], present), (earlier, present), (earlier, present[:5])):
        news = within_bounds(before, now)
        assert sum(len(to_json(each).encode()) for each in news) < 60 * 1024
        for each in news[len(before) :]:
            text = symptoms.last_words(each.message).text
            assert symptoms.headline(text) == LIMIT.strip()


@given(
    st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp"))),
    st.integers(min_value=1, max_value=60),
    st.lists(st.integers(min_value=200, max_value=900), min_size=1, max_size=4),
)
def test_words_that_are_cut_again_keep_the_exception(
    line: str, frames: int, sizes: list[int]
) -> None:
    words = deep(LIMIT, 900 * frames, f"    {line}\n")
    for most in sorted(sizes, reverse=True):
        words = last_words([words.encode()], unhandled=True, most=most)
        assert bytes_of(words) <= most
        assert LIMIT.strip() in words.splitlines()


def test_error_that_a_rank_reports_replaces_its_last_words() -> None:
    report = TerminationReport(error="ValueError: own", exit_code=1)
    end = RankEnd(rank=1, exit_code=1, consequence=False, report=report, words="noise")
    judged = judge_script([end]).report
    assert (judged.error, judged.printed) == ("ValueError: own", None)


def launch(message: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a pod of two ranks that writes its termination message to this file."""
    return subprocess.run(
        [sys.executable, "-m", "ddp_trainer.launch", *arguments],
        env={
            **os.environ,
            **pods.contract(local_world_size=2),
            "DDP_TERMINATION_LOG": str(message),
            **variables,
        },
        capture_output=True,
        timeout=pods.DEADLINE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("forked", [False, True])
def test_termination_message_has_the_traceback_of_a_failed_script(
    forked: bool, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, time\n"
        "print('noise ' * 1000)\n"
        "sys.stdout.flush()\n"
        "def a_layer_of_the_model(depth):\n"
        "    if depth == 0:\n"
        "        raise ValueError('--lr -3 is no learning rate')\n"
        "    return next(a_layer_of_the_model(depth - 1) for _ in range(1))\n"
        "if os.environ['RANK'] == '1':\n"
        "    a_layer_of_the_model(12)\n"
        "time.sleep(60)\n"
    )
    message = tmp_path / "message"
    command = [sys.executable, str(script)]
    ended = launch(
        message, *([] if forked else ["--no-preload"]), "--", *command, **stub_torch(tmp_path)
    )
    assert ended.returncode == 1
    report = TerminationReport.from_json(message.read_text())
    first, *words = (report.error or "").splitlines()
    assert (report.rank, first) == (1, "rank 1 ended with exit code 1")
    assert words[-1] == "ValueError: --lr -3 is no learning rate"
    assert "Traceback (most recent call last):" in words
    assert ended.stdout.decode().count("ValueError") == 0, "the log has it once"


def test_binary_output_makes_a_valid_termination_message(tmp_path: Path) -> None:
    message = tmp_path / "message"
    program = "import os; os.write(2, bytes(range(256)) * 300); os._exit(3)"
    ended = launch(message, "--no-preload", "--", sys.executable, "-c", program)
    assert ended.returncode == 3
    assert message.stat().st_size < 4096
    assert TerminationReport.from_json(message.read_text()).printed


def test_rank_that_failed_by_itself_is_the_cause_in_any_order() -> None:
    lost = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:11"
    words = {0: lost, 1: "ValueError: --lr -3", 2: lost}
    ends = [
        RankEnd(
            rank=rank,
            exit_code=1,
            consequence=False,
            report=TerminationReport(),
            words=words[rank],
        )
        for rank in (0, 1, 2)
    ]
    assert judge_script(ends).report.rank == 1
    assert judge_script([ends[0], ends[2]]).report.rank == 0
