"""The part of a rank's output that goes into its report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_trainer.launcher.output.last_words import last_words
from ddp_trainer.launcher.verdict import RankEnd, judge_script
from ddp_trainer.launcher.world.failure_reports import MESSAGE_BYTES, message_of
from ddp_trainer.telemetry.termination import TerminationReport
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.support import pods
from tests.trainer.support.stub_torch import stub_torch

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 5, in <module>
    main()
{more}ValueError: --lr -3 is no learning rate
"""
PLAIN = TRACEBACK.format(more="")
ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"


def kept(*streams: str, unhandled: bool = True, most: int = 900) -> str:
    words = last_words([each.encode() for each in streams], unhandled=unhandled, most=most)
    assert len(words.encode()) <= most
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
    assert words.startswith("Traceback (most recent call last):\n[…]\n")
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
    assert len(words.encode()) <= most


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
        "if os.environ['RANK'] == '1':\n"
        "    raise ValueError('--lr -3 is no learning rate')\n"
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
