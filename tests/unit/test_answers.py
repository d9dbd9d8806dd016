"""Any answer of a pod is read or refused, with little memory."""

import contextlib
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import hypothesis.strategies as st
import pytest
from ddp_client.views.stacks import StacksAnswer
from ddp_operator.hang.evidence import TracesAnswer
from ddp_operator.job.failure.symptoms import last_words
from ddp_protocol.message import Bounds, Count, InvalidMessageError, Message
from ddp_protocol.progress import TrainerStatus
from ddp_protocol.world import LauncherStatus
from hypothesis import given, settings

KINDS = [TrainerStatus, LauncherStatus, TracesAnswer]
MEGABYTES = 8
"""Of an answer of 64 KB."""


@dataclass(frozen=True, kw_only=True)
class Steps(Message):
    step: Count
    steps: Annotated[tuple[Count, ...], Bounds(0, 4)] | None = None


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MEGABYTES * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"step": 1' + b" " * Message.MAX_BYTES + b"}", "more than 65536 bytes"),
        (b"[" * 60_000, "not JSON"),
        (b'{"step": ' * 6_000, "not JSON"),
        (b'{"step": 1' + b"0" * 5_000 + b"}", "not JSON"),
        (b'{"step": 1e999}', "step "),
        (b'{"step": NaN}', "step "),
        (b'{"step": 9007199254740992}', "step "),
        (b'{"step": 1, "steps": [1, 2, 3, 4, 5]}', "steps "),
        (b"\xff", "not JSON"),
        (b"", "not JSON"),
    ],
)
def test_answer_beyond_a_limit_is_refused(content: bytes, said: str) -> None:
    with little_memory(), pytest.raises(InvalidMessageError, match=said):
        Steps.read(content)


def test_last_of_repeated_keys_is_read() -> None:
    assert Steps.read(b'{"step": 1, "step": 2}').step == 2


UNITS = [
    *(b"[],", b"{},", b"0,", b'"",', b"-1e-9,", b"[0,1,2,3,4],", b'{"rank":0},', b"[[0,1,8]],"),
    b'{"name":"0","description":"","ranks":[],"collectives":[[0,0,0,0,0]]},',
    b'{"rank":1,"stack":[["f","1","g"]],"trace":{"groups":[],"calls":[],"complete":true}},',
    b'{"pod":"a","generation":1,"exitCode":1,"time":"2026-01-01T00:00:00Z"},',
]
KEYS = [b"ranks", b"groups", b"failures", b"firstSteps", b"first_steps", b"led", b"trace", b"x"]


@st.composite
def large_answers(draw: st.DrawFn) -> bytes:
    """Answers that consist of one small part, many times."""
    unit = draw(st.sampled_from(UNITS))
    count = draw(st.integers(1, Message.MAX_BYTES)) // len(unit)
    content = b"[" + (unit * max(count, 1))[:-1] + b"]"
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=4)):
        content = b'{"%s":%s,"step":1,"number":1,"generation":1}' % (key, content)
    return content


@given(large_answers(), st.sampled_from(KINDS))
@settings(max_examples=40, deadline=None)
def test_large_answers_take_little_memory(content: bytes, kind: type[Message]) -> None:
    with little_memory(), contextlib.suppress(InvalidMessageError):
        kind.read(content)


@given(st.binary(max_size=300), st.sampled_from([*KINDS, StacksAnswer]))
def test_any_bytes_are_read_or_refused(content: bytes, kind: type[Message]) -> None:
    with contextlib.suppress(InvalidMessageError):
        kind.read(content)


@pytest.mark.parametrize("message", ['{"rank": ' + "9" * 5_000 + "}", '{"a":' * 3_000, "{" * 3_000])
def test_termination_message_that_is_no_report_is_text(message: str) -> None:
    assert last_words(message).text == message
