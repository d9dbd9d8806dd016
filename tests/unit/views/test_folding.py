from collections import Counter

import pytest
from ddp_client.views.folding import fold, spans
from hypothesis import given
from hypothesis import strategies as st

LINES = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abc")), max_size=60)


@given(LINES)
def test_lines_of_each_writer_keep_their_order(lines: list[tuple[int, str]]) -> None:
    folded = fold(lines)
    for writer in range(5):
        again = [text for text, writers in folded for one in writers if one == writer]
        assert again == [text for one, text in lines if one == writer]
    assert sum(len(writers) for _, writers in folded) == len(lines)
    assert max((max(Counter(writers).values()) for _, writers in folded), default=1) == 1


@given(st.lists(st.sampled_from("abc"), max_size=20), st.integers(1, 5), st.booleans())
def test_equal_lines_of_all_writers_are_folded(
    texts: list[str], writers: int, by_writer: bool
) -> None:
    lines = [(writer, text) for text in texts for writer in range(writers)]
    if by_writer:
        lines.sort(key=lambda line: line[0])
    assert fold(lines) == [(text, [*range(writers)]) for text in texts]


def test_folded_line_never_overtakes_another_of_its_writer() -> None:
    lines = [(0, "a"), (1, "b"), (1, "a"), (0, "b")]
    assert fold(lines) == [("a", [0]), ("b", [1, 0]), ("a", [1])]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ([range(2, 3), range(1), range(1, 2)], "0-2"),
        ([range(8, 16), range(8), range(32, 33)], "0-15,32"),
        ([range(rank, rank + 1) for rank in range(0, 12, 2)], "0,2,4,6,..."),
    ],
)
def test_spans_of_ranks(own: list[range], said: str) -> None:
    assert spans(own) == said
