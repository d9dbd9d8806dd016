"""One record, one line, whatever users and pods have written."""

import logging

import pytest
from ddp_operator.logs import OneLineFormatter, one_line
from hypothesis import given
from hypothesis import strategies as st

FORGED = "boom\n2026-01-01 00:00:00,000 INFO ddp_operator: all is well\r\x1b[2K\u2028\u202e"


def record(message: str, *args: object, failing: bool = False) -> logging.LogRecord:
    error = ValueError("one\ntwo") if failing else None
    exc_info = (ValueError, error, None) if error else None
    return logging.LogRecord("name", logging.INFO, "file", 1, message, args, exc_info)


def test_what_would_look_like_another_record_is_escaped() -> None:
    line = OneLineFormatter().format(record("%s: %s", "pod-0", FORGED))
    assert line.endswith(
        "INFO name: pod-0: boom\\n2026-01-01 00:00:00,000 INFO ddp_operator: all is well"
        "\\r\\x1b[2K\\u2028\\u202e"
    )


def test_a_traceback_is_one_line_as_well() -> None:
    line = OneLineFormatter().format(record("failed", failing=True))
    assert line.endswith("name: failed\\nValueError: one\\ntwo")


@pytest.mark.parametrize("text", ["naïve «Größe» 漢字 🙂", "step 3/10, loss 0.5", ""])
def test_what_people_write_stays(text: str) -> None:
    assert one_line(text) == text


def test_no_record_is_without_end() -> None:
    assert one_line("x" * 10**6).startswith("x" * 1000)
    assert len(one_line("x" * 10**6)) < 17_000
    assert one_line("x" * 10**6).endswith(f"({10**6 - 16 * 1024} more characters)")


@given(st.text(st.characters()))
def test_any_text_becomes_one_line_that_can_be_written(text: str) -> None:
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    line.encode()
