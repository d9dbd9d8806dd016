"""Progress from the lines that a script prints."""

import time

import pytest
from ddp_operator.engine.trainers.log_progress import read
from ddp_operator.ports import LOG_END_BYTES
from ddp_protocol.message import InvalidMessageError
from ddp_protocol.progress import TrainerStatus

PATTERN = r"step (?P<step>[\d,]+)(?:/(?P<totalSteps>\d+))?|loss[=:] ?(?P<loss>\S+)"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (b"step 3/9\n", TrainerStatus(step=3, total_steps=9)),
        (b"step 3/9 loss=0.5\nstep 4/9\n", TrainerStatus(step=4, total_steps=9, loss=0.5)),
        (b"step 3/9 loss=0.5 loss=0.4\n", TrainerStatus(step=3, total_steps=9, loss=0.4)),
        (b"loss: 0.5\nstep 4\nsaving\n", TrainerStatus(step=4, loss=0.5)),
        (b"step 4\nloss: 0.7\nloss: 0.5\n", TrainerStatus(step=4, loss=0.5)),
        (b"step 1,200\n", TrainerStatus(step=1200)),
        (b"step 4\nloss=nan\n", TrainerStatus(step=4)),
        (b"\rstep 1\rstep 2\rstep 3", TrainerStatus(step=2)),
        (b"\xff\xfe step 4\n\xff\n", TrainerStatus(step=4)),
    ],
)
def test_last_match_of_each_group_counts(log: bytes, expected: TrainerStatus) -> None:
    assert read(PATTERN, log) == expected


@pytest.mark.parametrize("log", [b"", b"step 12", b"\n", b"loss=0.5\n", b"steps\n", b"\0" * 100])
def test_log_without_a_complete_line_with_a_step_is_unknown(log: bytes) -> None:
    assert read(PATTERN, log) is None


def test_line_without_its_beginning_is_ignored() -> None:
    end = b"00 steps done\n"
    assert read(r"(?P<step>\d+) steps", b"12" + end) == TrainerStatus(step=1200)
    cut = end + b"x" * (LOG_END_BYTES - len(end) - 1) + b"\n"
    assert read(r"(?P<step>\d+) steps", cut) is None


@pytest.mark.parametrize("text", ["twelve", "1.5", "-3", "9" * 400, "inf"])
def test_invalid_step_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessageError, match="step"):
        read(r"step=(?P<step>\S+)", f"step={text}\n".encode())


def test_end_of_a_very_long_line_is_not_searched() -> None:
    assert read(PATTERN, b"x" * 1100 + b"step 4\n") is None
    assert read(r"(?P<step>\d)", b"1234567890\n") == TrainerStatus(step=8)


def test_any_pattern_takes_little_time_on_the_worst_log() -> None:
    worst = r"(?:.?.?){190}(?P<step>\d+)[XY]$"
    log = (b"ab" * 500 + b"\n") * (LOG_END_BYTES // 1001)
    began = time.process_time()
    assert read(worst, log) is None
    assert time.process_time() - began < 10  # a tenth of a second; backtracking would never end
