import json

import pytest
from ddp_client.views.stacks import Found, StacksAnswer, read, shown
from ddp_operator.hang.stacks import Stack, in_spans

from tests.unit.cli.jobs import ESCAPES

MAIN = ("/app/train.py", "20", "main")
WAITS: Stack = (("/lib/torch/distributed_c10d.py", "2501", "all_reduce"), MAIN)
LOADS: Stack = (("/app/data.py", "7", "load"), MAIN)


def at(stack: Stack, *ranks: int) -> list[Found]:
    return [Found(rank, f"digits-0-{rank}", 7, (stack,)) for rank in ranks]


def test_minority_is_named_first_and_common_frames_once() -> None:
    lines = shown([*at(WAITS, 0, 1, 2, 4), *at(LOADS, 3)], 80)
    assert lines == [
        "Ranks 0-2,4 are at distributed_c10d.py:2501 in all_reduce; rank 3 is elsewhere,",
        "at data.py:7 in load.",
        "",
        "ranks 0-2,4",
        "  /lib/torch/distributed_c10d.py:2501 in all_reduce",
        "  /app/train.py:20 in main",
        "",
        "rank 3",
        "  /app/data.py:7 in load",
        "  called as in ranks 0-2,4, from train.py:20 in main",
    ]


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (at(WAITS, 0), "The only rank is at distributed_c10d.py:2501 in all_reduce."),
        (at(LOADS, 0, 1), "All 2 ranks are at data.py:7 in load."),
        (at((), 0, 1), "All 2 ranks are at no Python frame."),
        (
            [*at(LOADS, 0), Found(1, "p", problem="it is away")],
            "The 1 rank is at data.py:7 in load. 1 rank did not answer.",
        ),
        ([Found(0, "p", problem="it is away")], "None of 1 rank answered."),
        (
            [each for rank in range(9) for each in at((("a.py", f"{rank}", "f"),), rank)],
            "Rank 0 is at a.py:0 in f, others at 8 places.",
        ),
    ],
)
def test_summary_sentence(found: list[Found], sentence: str) -> None:
    assert shown(found, 200)[0] == sentence


def test_a_thousand_different_ranks_fit_on_a_few_screens() -> None:
    deep = [tuple((f"{rank}.py", f"{depth}", "f") for depth in range(100)) for rank in range(1000)]
    lines = shown([each for rank in range(1000) for each in at(deep[rank], rank)], 80)
    assert len(lines) < 500
    assert "and 984 more places: see -o json" in lines
    assert "  and 76 more frames" in lines


def test_long_paths_keep_their_ends() -> None:
    [*_, line] = shown(at(((f"/{'x' * 200}/train.py", "20", "main"),), 0), 80)
    assert len(line) <= 80
    assert line.endswith("x/train.py:20 in main")


def test_silent_ranks_are_grouped_by_reason() -> None:
    lines = shown([Found(rank, f"p-{rank}", problem="it is away") for rank in (1, 0)], 80)
    assert lines[-1] == "ranks 0-1, such as pod p-0: it is away"


def test_hostile_answers_are_harmless() -> None:
    frame = ["a.py", "1", "f"]
    malformed: list[object] = [
        *(3, {"ranks": 3}, {"ranks": [3]}, {"ranks": [{"rank": []}]}),
        {"ranks": [{"rank": 0, "threads": [[frame] * 129]}]},
        {"ranks": [{"rank": 0, "threads": [[["x" * 301, "1", "f"]]]}]},
    ]
    texts = ["no JSON", "[" * 100_000, " " * (StacksAnswer.MAX_BYTES + 1)]
    for answer in (*map(json.dumps, malformed), *texts):
        found = read(answer.encode(), "p", range(2))
        assert {each.problem for each in found} == {"its launcher's answer is invalid"}
    ranks = [
        {"rank": 0, "process": 7, "threads": [[[ESCAPES, "1", ESCAPES]]]},
        {"rank": 1, "problem": ESCAPES},
    ]
    found = read(json.dumps({"ranks": ranks}).encode(), "p", range(2))
    assert [bool(each.threads) for each in found] == [True, False]
    assert all(line.isprintable() for line in shown(found, 80))


def test_spans_of_ranks() -> None:
    assert in_spans([5]) == "rank 5"
    assert in_spans([0, 1, 2, 4, 6, 7]) == "ranks 0-2,4,6-7"
    assert in_spans(range(0, 40, 2)) == "ranks 0,2,4,6,8,10,12,14 and 12 more spans"
