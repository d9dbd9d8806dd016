"""Lines stay whole when several processes print."""

from __future__ import annotations

import math
import random

import pytest
from ddp_trainer.launcher.output.lines import LONGEST_BYTES, LineMerger, Writer

LONG = 10.0
"""Seconds after which all output is due."""


class Log:
    """A log with writers `a`, `b`, and so on."""

    def __init__(self, *, prefixed: bool = False) -> None:
        self.now = 100.0
        self.text = ""
        self.lines = LineMerger()
        self.writers = {
            name: Writer(f"[{name}]: ".encode() if prefixed else b"") for name in "abcd"
        }

    def print(self, name: str, text: str) -> None:
        self.lines.feed(self.writers[name], text.encode(), now=self.now)

    def wait(self, seconds: float) -> str:
        """Let time pass, take output when it is due, and return it."""
        until, before = self.now + seconds, len(self.text)
        while (due := max(self.lines.next_due, self.now)) <= until:
            self.now = due
            self.text += self.lines.take(now=self.now).decode()
        self.now = until
        assert self.lines.take(now=self.now) == b""  # or somebody would have to poll
        return self.text[before:]

    def end(self, name: str) -> str:
        self.lines.end(self.writers[name])
        return self.lines.take(now=self.now).decode()


def test_pieces_of_lines_do_not_mix() -> None:
    log = Log()
    for piece in ("rank", " ", "1", "\n"):
        for name in "abcd":
            log.print(name, piece)
        log.wait(0.01)
    log.wait(LONG)
    assert log.text == "rank 1\n" * 4
    assert log.lines.next_due == math.inf


@pytest.mark.parametrize("seed", range(10))
def test_random_pieces_of_lines_do_not_mix(seed: int) -> None:
    chance = random.Random(seed)
    log = Log()
    # Only pauses of seconds cut lines.
    pauses = (0.0, 0.001, 0.04, 3.0) if seed % 2 else (0.0, 0.001, 0.04)
    lines = {name: [name * chance.randrange(1, 20) for _ in range(100)] for name in log.writers}
    left = {name: "".join(f"{line}\n" for line in expected) for name, expected in lines.items()}
    while any(left.values()):
        name = chance.choice([name for name, text in left.items() if text])
        size = chance.randrange(1, 40)
        log.print(name, left[name][:size])
        left[name] = left[name][size:]
        log.wait(chance.choice(pauses))
    log.wait(LONG)
    shown = log.text.splitlines()
    assert all(len(set(line)) == 1 for line in shown)
    for name, expected in lines.items():
        own = [line for line in shown if line[0] == name]
        assert "".join(own) == "".join(expected)
        assert own == expected or 3.0 in pauses


def test_lines_without_a_pause_stay_together() -> None:
    log = Log()
    for line in range(5):
        for name in "ab":
            log.print(name, f"{name}{line}\n")
        log.wait(0.01)
    log.wait(LONG)
    assert log.text == "".join(f"{name}{line}\n" for name in "ab" for line in range(5))


def test_endless_lines_without_a_pause_are_shown_soon() -> None:
    log = Log()
    for _ in range(100):
        log.print("a", "line\n")
        log.wait(0.01)
    assert log.text.count("line\n") >= 80


def test_the_start_of_a_line_is_shown_after_a_while() -> None:
    log = Log()
    log.print("a", "loading")
    assert log.wait(0.1) == ""
    assert log.wait(1) == "loading"
    log.print("a", ".")
    assert log.wait(0) == "."
    log.print("b", "b\n")
    assert log.wait(1) == "\nb\n"
    log.print("a", " done\n")
    assert log.wait(1) == " done\n"
    assert log.lines.next_due == math.inf


def test_the_start_of_a_line_waits_longer_while_others_print() -> None:
    log = Log()
    log.print("a", "rank ")
    for _ in range(15):
        log.print("b", "b\n")
        log.wait(0.1)
    log.print("a", "1\n")
    log.wait(LONG)
    assert sorted(log.text.splitlines()) == ["b"] * 15 + ["rank 1"]
    log.print("a", "hangs")
    for _ in range(25):
        log.print("b", "b\n")
        log.wait(0.1)
    assert "hangs\nb\n" in log.text


def test_progress_bar_is_shown_at_once_and_other_lines_begin_after_it() -> None:
    log = Log()
    log.print("a", "\r 10%")
    assert log.wait(0.1) == "\r 10%"
    log.print("a", "\r 20%")
    assert log.wait(0) == "\r 20%"
    log.print("b", "line\n")
    assert log.wait(0.1) == "\nline\n"
    log.print("a", "\r100%")
    assert log.wait(0.1) == "\r100%"
    log.print("b", "line\n")
    log.wait(0.1)
    log.print("a", "\n")  # by which it would have ended the bar
    assert log.wait(LONG) == ""
    log.print("a", "done\n")
    assert log.wait(LONG) == "done\n"


def test_carriage_return_and_newline_end_one_line() -> None:
    log = Log()
    log.print("a", "one\r")
    log.wait(LONG)
    log.print("a", "\ntwo\r\n")
    log.wait(LONG)
    assert log.text == "one\r\ntwo\r\n"


def test_the_end_of_a_process_ends_its_line() -> None:
    log = Log()
    log.print("a", "whole\nhalf")
    log.print("b", "not yet")
    assert log.end("a") == "whole\nhalf\n"
    log.wait(LONG)
    assert log.end("b") == "\n"
    assert log.end("c") == ""
    log.print("a", "its child\n")
    assert log.wait(LONG) == "its child\n"
    assert log.lines.next_due == math.inf


def test_too_long_line_is_passed_on_in_pieces() -> None:
    log = Log()
    piece = "x" * (LONGEST_BYTES // 4)
    for _ in range(10):
        log.print("a", piece)
        log.wait(0)
        assert len(log.writers["a"].held) < LONGEST_BYTES
    log.print("a", "\n")
    log.print("b", "b\n")
    log.wait(LONG)
    assert log.text == piece * 10 + "\nb\n"


def test_lines_begin_with_their_prefix_once() -> None:
    log = Log(prefixed=True)
    log.print("a", "one\n\n[a]: by itself\nth")
    log.wait(LONG)
    log.print("a", "ree\nfour")
    log.wait(LONG)
    log.print("b", "b\n")
    log.wait(LONG)
    log.print("a", "five\n")
    log.wait(LONG)
    expected = "[a]: one\n[a]: \n[a]: by itself\n[a]: three\n[a]: four\n[b]: b\n[a]: five\n"
    assert log.text == expected
