"""The rank of a hang is named from launchers' answers, and only if they show it."""

import base64
import contextlib
import json
import pickle
import sys
import tracemalloc
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from ddp_operator.hang.evidence import TooMuchError, explain_answers
from ddp_operator.hang.result import NOTHING_KNOWN, Hang, HangKind
from ddp_trainer.flight_recorder.dump import reduce_dump
from ddp_trainer.telemetry.requests import traces
from ddp_trainer.telemetry.requests.frames import parse
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hang.traces.recorder import BEGIN_NS, Call, Entry, Form, Ranks

WAITS = ("/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce")
STEP = ("/app/train.py", 20, "step")
LOADS = ("/app/data.py", 7, "load")
INNER = ("/usr/lib/python3.11/threading.py", 327, "wait")


def shown(rank: int, *frames: tuple[str, int, str], **more: Any) -> dict[str, Any]:
    """Return a rank's part of an answer, as its launcher reduces it."""
    lines = [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    text = "\n".join(["Current thread 0x00007f (most recent call first):", *lines])
    trace = more.pop("trace", None)
    return {
        "rank": rank,
        "process": 7,
        **traces.place(parse(text)[0]),
        "trace": reduce_dump(trace.encode()) if trace else None,
        **more,
    }


def answer(*ranks: dict[str, Any]) -> bytes:
    return json.dumps({"ranks": ranks}).encode()


def of_all(run: Ranks, *frames: tuple[str, int, str]) -> bytes:
    """Return the answer of ranks with these dumps, each a frame deeper than the one before."""
    dumps = {rank: run.dump(rank, Form(as_json=True)).decode() for rank in run.programs}
    return answer(
        *(shown(rank, *frames[: rank + 1], LOADS, trace=dump) for rank, dump in dumps.items())
    )


def dumps(missing: int, ranks: int = 4) -> list[str]:
    """Return the dumps of ranks that all run two collectives, and one of them only the first."""
    program = [Call("0")] * 2
    run = Ranks.same({"0": tuple(range(ranks))}, program)
    run.hosts = {missing: 1}
    run.run()
    return [run.dump(rank, Form(as_json=True)).decode() for rank in range(ranks)]


def test_dumps_name_the_rank_and_its_stack_the_place() -> None:
    shown_by = dumps(missing=3)
    ranks = [shown(rank, WAITS, STEP, trace=shown_by[rank]) for rank in range(3)]
    late = shown(3, INNER, LOADS, STEP, trace=shown_by[3])
    found = explain_answers([((0, 1), answer(*ranks[:2])), ((2, 3), answer(ranks[2], late))])
    assert found.ranks == (3,)
    assert found.sentence.startswith("rank 3 did not enter all_reduce 2 of the default group; 3 ra")
    assert found.sentence.endswith("; it is in wait, at data.py:7 in load")


SILENT = "no answer within 5 s: it "


@pytest.mark.parametrize(
    ("said", "end", "kind"),
    [
        (answer(), "its process has ended", "ended"),
        (
            answer(shown(3, problem="its process has ended with exit code 0", cause="ended")),
            "its process has ended with exit code 0",
            "ended",
        ),
        (b"{", "its launcher's answer is invalid", "unknown"),
        ("10.0.0.1:29501: no answer in 15 s", "its launcher did not answer", "unreachable"),
        (
            answer(shown(3, problem=f"{SILENT}is stopped", cause="stopped")),
            "it is stopped",
            "stopped",
        ),
        (answer(shown(3, problem=f"{SILENT}waits", cause="kernel")), "it waits", "kernel"),
        (
            answer(shown(3, LOADS, problem="a call in C holds its GIL", cause="gil")),
            "GIL, at data.py:7 in load",
            "gil",
        ),
        (
            answer(shown(3, LOADS, cause="of a later release")),
            "it is at data.py:7 in load",
            "script",
        ),
    ],
)
def test_a_rank_that_shows_nothing_is_named_with_the_reason(
    said: bytes | str, end: str, kind: HangKind
) -> None:
    shown_by = dumps(missing=3)
    ranks = [shown(rank, WAITS, STEP, trace=shown_by[rank]) for rank in range(3)]
    found = explain_answers([((0, 1, 2), answer(*ranks)), ((3,), said)])
    assert found.ranks == (3,)
    assert found.sentence.startswith("rank 3 did not come; 3 ranks wait in all_reduce 2 of the def")
    assert found.sentence.endswith(end)
    assert found.kind == kind


def test_wait_of_all_ranks_is_the_network_or_the_script() -> None:
    """All are in the same collective: the network. They call different ones: the script."""
    run = Ranks.same({"0": (0, 1, 2, 3)}, [Call("0")] * 2).run()
    for entries in run.entries.values():
        entries[-1].done = False
    found = explain_answers([(range(4), of_all(run))])
    assert (found.ranks, found.kind) == ((), "network")
    run.programs[1][1] = Call("0", size=8)
    found = explain_answers([(range(4), of_all(run.run()))])
    assert (found.ranks, found.kind) == ((1,), "script")


def test_a_device_that_stopped_is_not_the_script() -> None:
    run = Ranks.same({"0": (0, 1, 2, 3)}, [Call("0")] * 4, ahead=2)
    run.blind = {2: 1}
    found = explain_answers([(range(4), of_all(run.run()))])
    assert (found.ranks, found.kind) == ((2,), "device")
    assert "GPU stopped" in found.sentence


def test_wait_without_a_record_is_found_by_stacks() -> None:
    """Such as that of torch.distributed.new_group."""
    run = Ranks.same({"0": (0, 1, 2, 3)}, [Call("0")]).run()
    shown_by = [run.dump(rank, Form(as_json=True)).decode() for rank in range(4)]
    ranks = [shown(rank, WAITS, STEP, trace=shown_by[rank]) for rank in range(3)]
    found = explain_answers([(range(4), answer(*ranks, shown(3, LOADS, trace=shown_by[3])))])
    assert (found.ranks, found.kind) == ((3,), "script")


def test_different_causes_are_of_unknown_kind() -> None:
    shown_by = dumps(missing=3)
    waiting = [shown(rank, WAITS, STEP, trace=shown_by[rank]) for rank in range(2)]
    stopped = shown(2, problem="it is stopped", cause="stopped")
    for other, kind in ((stopped | {"rank": 3}, "stopped"), (shown(3, LOADS), "unknown")):
        found = explain_answers([(range(4), answer(*waiting, stopped, other))])
        assert (found.ranks, found.kind) == ((2, 3), kind)


@given(st.integers(1, 4), st.lists(st.sampled_from([STEP, LOADS, INNER]), min_size=1))
def test_without_a_wait_nobody_is_named(calls: int, stack: list[tuple[str, int, str]]) -> None:
    """Ranks that have completed all collectives, wherever each of them is."""
    run = Ranks.same({"0": (0, 1, 2, 3)}, [Call("0")] * calls).run()
    found = explain_answers([(range(4), of_all(run, *stack))])
    assert (found.ranks, found.kind) == ((), "unknown")


def test_stacks_name_the_rank_if_most_wait() -> None:
    waiting = [shown(rank, WAITS, STEP) for rank in range(3)]
    found = explain_answers([(range(4), answer(*waiting, shown(3, LOADS, STEP)))])
    assert (found.ranks, found.kind) == ((3,), "script")
    assert "rank 3 is elsewhere, at data.py:7 in load" in found.sentence
    # One rank that waits for three is no majority.
    loading = [shown(rank, LOADS, STEP) for rank in range(1, 4)]
    found = explain_answers([(range(4), answer(waiting[0], *loading))])
    assert found.ranks == ()
    assert "Ranks 1-3 are at data.py:7 in load" in found.sentence


def test_older_or_missing_launcher_names_nobody() -> None:
    waiting = answer(*(shown(rank, WAITS, STEP) for rank in range(3)))
    for status in (404, 409):
        refused = (3,), f"HTTP status {status}"
        assert explain_answers([(range(3), waiting), refused]) == NOTHING_KNOWN
    assert explain_answers([((0,), "refused"), ((1,), "refused")]) == NOTHING_KNOWN
    assert explain_answers([]) == NOTHING_KNOWN


@contextlib.contextmanager
def at_most(megabytes: float) -> Iterator[None]:
    """Limit the memory of a block."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes * 2**20
    finally:
        tracemalloc.stop()


def test_answer_with_a_pickle_is_not_expanded() -> None:
    """An answer of 6 KB needed a gigabyte: its lists refer to each other."""
    sizes = [[1] * 16] * 4096
    entries = [
        {"record_id": number, "process_group": ("0", "d"), "input_sizes": sizes, "state": "started"}
        for number in range(100)
    ]
    bomb = zlib.compress(pickle.dumps({"version": "2.10", "pg_status": {}, "entries": entries}, 2))
    told = {"rank": 0, "dump": base64.b64encode(bomb).decode()}
    with at_most(2):
        assert explain_answers([(range(1), answer(told))]) == NOTHING_KNOWN


PODS, RANKS_OF_POD = 256, 8
WORLD = PODS * RANKS_OF_POD
CALLS = [
    {"name": name, "dtypes": "Float", "shapes": "1", "elements": 1}
    for name in ("all_reduce", "recv", "broadcast")
]


def group(name: object, ranks: object, ops: list[list[int]], *, sent: bool = False) -> Any:
    which = "transfers" if sent else "collectives"
    return {"name": str(name), "description": "default_pg", "ranks": ranks, which: ops}


def hostile(rank: int, kind: str) -> list[Any]:
    """Return groups that let each rank wait in operations of its own, for all others."""
    everyone = [[0, 1, WORLD]]
    match kind:
        case "sequence numbers":
            return [group(0, everyone, [[rank, 0, 0, 0, 2]])]
        case "groups":
            return [group(f"{rank}.{at}", everyone, [[1, at, 0, 0, 0]]) for at in range(8)]
        case "groups without ranks":
            return [group(f"{rank}.{at}", [], [[1, at, 0, 0, 0]]) for at in range(8)]
        case "spans":
            return [group(0, [[0, 1, 65_536]] * 8, [[1, 0, 0, 0, 0]])]
        case "receives":
            peers = [(rank * 7 + 31 * at) % WORLD for at in range(8)]
            ops = [[at, at, 0, 0, 1, peer] for at, peer in enumerate(peers)]
            return [group(0, everyone, ops, sent=True)]
        case "operations":
            return [group(0, everyone, [[at, at, 0, 0, 0] for at in range(256)])]
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind",
    [
        *("receives", "operations", "groups"),
        *(
            pytest.param(kind, marks=pytest.mark.nightly)
            for kind in ("sequence numbers", "groups without ranks", "spans")
        ),
    ],
)
def test_complex_waits_of_all_ranks_are_refused(kind: str) -> None:
    answers = []
    for pod in range(PODS):
        ranks = range(pod * RANKS_OF_POD, (pod + 1) * RANKS_OF_POD)
        told = [
            {
                "rank": rank,
                "trace": {"groups": hostile(rank, kind), "calls": CALLS, "complete": False},
            }
            for rank in ranks
        ]
        answers.append((ranks, json.dumps({"ranks": told}).encode()))
    with at_most(32), pytest.raises(TooMuchError):
        explain_answers(answers)


def calls_to_explain(count: int, missing: Sequence[int]) -> tuple[int, Hang]:
    """Return how many functions run for so many ranks in groups of eight, and the verdict."""
    groups = {"0": tuple(range(count))}
    groups |= {str(1 + at // 8): tuple(range(at, at + 8)) for at in range(0, count, 8)}
    program = [Call(name) for name in groups] * 2
    run = Ranks.same(groups, program)
    for rank in range(count):
        own = [
            Entry(call, 1 + at // 2, BEGIN_NS + at) for at, call in enumerate(run.programs[rank])
        ]
        run.entries[rank] = own[: 2 if rank in missing else 3]
        for entry in run.entries[rank][:2]:
            entry.done = True
    answers = []
    for ranks in (range(at, at + 8) for at in range(0, count, 8)):
        told = [
            shown(each, WAITS, trace=run.dump(each, Form(as_json=True)).decode()) for each in ranks
        ]
        answers.append((ranks, answer(*told)))
    calls = 0

    def count_call(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count_call)
    try:
        hang = explain_answers(answers)
    finally:
        sys.setprofile(None)
    return calls, hang


@pytest.mark.parametrize("missing", [[1], range(64)])
def test_work_is_linear_in_the_ranks(missing: Sequence[int]) -> None:
    few, _ = calls_to_explain(128, missing)
    many, hang = calls_to_explain(512, missing)
    assert hang.ranks == tuple(missing)
    assert many < 4.5 * few


VALUES = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
RANKS = st.fixed_dictionaries(
    {"rank": st.integers(0, 2)},
    optional={"stack": VALUES, "trace": VALUES, "problem": VALUES, "waits": VALUES},
)


@given(st.lists(RANKS | VALUES, max_size=4) | VALUES)
def test_any_answer_is_read(ranks: object) -> None:
    found = explain_answers([((0, 1), json.dumps({"ranks": ranks}).encode()), ((2,), b"[]")])
    assert len(found.sentence) <= 165
