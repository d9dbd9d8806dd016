"""Each record is one line, with any text of users and pods."""

import json
import logging
import signal

import pytest
from ddp_operator.__main__ import main
from ddp_operator.process import run
from ddp_operator.process.logs import JsonFormatter, OneLineFormatter, one_line
from hypothesis import given
from hypothesis import strategies as st

FORGED = "boom\n2026-01-01 00:00:00,000 INFO ddp_operator: all is well\r\x1b[2K\u2028\u202e"


def record(message: str, *args: object, failing: bool = False) -> logging.LogRecord:
    error = ValueError("one\ntwo") if failing else None
    exc_info = (ValueError, error, None) if error else None
    return logging.LogRecord("name", logging.INFO, "file", 1, message, args, exc_info)


def test_line_breaks_and_control_characters_are_escaped() -> None:
    line = OneLineFormatter().format(record("%s: %s", "pod-0", FORGED))
    assert line.endswith(
        "INFO name: pod-0: boom\\n2026-01-01 00:00:00,000 INFO ddp_operator: all is well"
        "\\r\\x1b[2K\\u2028\\u202e"
    )
    line = OneLineFormatter().format(record("failed", failing=True))
    assert line.endswith("name: failed\\nValueError: one\\ntwo")
    for text in ("naïve «Größe» 漢字 🙂", "step 3/10, loss 0.5", ""):
        assert one_line(text) == text


def test_record_has_a_limited_length() -> None:
    assert one_line("x" * 10**6).startswith("x" * 1000)
    assert len(one_line("x" * 10**6)) < 17_000
    assert one_line("x" * 10**6).endswith(f"({10**6 - 16 * 1024} more characters)")


@given(st.text(st.characters()))
def test_any_text_becomes_one_encodable_line(text: str) -> None:
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    line.encode()


def test_json_record_escapes_forged_lines() -> None:
    logged = record("%s: %s", "pod-0", FORGED)
    logged.created = 1795440184.25
    line = JsonFormatter().format(logged)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == {
        "time": "2026-11-23T13:23:04.250Z",
        "severity": "INFO",
        "logger": "name",
        "message": f"pod-0: {FORGED}",
    }
    traced = json.loads(JsonFormatter().format(record("failed", failing=True)))
    assert traced["message"] == "failed\nValueError: one\ntwo"


@pytest.mark.parametrize("character", ["x", "\n", "ß", "🙂"])
@pytest.mark.parametrize("count", [1365, 10**6])
def test_json_record_has_a_limited_length(character: str, count: int) -> None:
    line = JsonFormatter().format(record("%s", character * count))
    assert len(line) < 16_600
    message = json.loads(line)["message"]
    kept = len(message) - len(message.lstrip(character))
    cut = f"… ({count - kept} more characters)" if kept < count else ""
    assert message == character * kept + cut
    if cut:
        assert len(json.dumps(message[:kept])) > 16_300  # as much as fits


@pytest.mark.parametrize(
    ("log_format", "formatter"), [("text", OneLineFormatter), ("json", JsonFormatter)]
)
def test_log_format_selects_the_formatter(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    log_format: str,
    formatter: type,
) -> None:
    chosen: dict[str, list[logging.Handler]] = {}
    with monkeypatch.context() as patched:
        patched.setattr(logging, "basicConfig", lambda **given: chosen.update(given))
        patched.setattr(logging, "getLogger", logging.Logger)  # log levels are global
        patched.setattr(signal, "signal", lambda *_: None)
        patched.setattr(run, "run", lambda _: 0)
        assert main(["run", "--log-format", log_format]) == 0
    [handler] = chosen["handlers"]
    assert type(handler.formatter) is formatter
    assert main(["run", "--log-format", "xml"]) == 64
    assert "'xml'" in capsys.readouterr().err
