"""Tests of the table of known error texts: each entry's example, class, words and place."""

import ast
import re
import sys
from pathlib import Path

import pytest
from ddp_client.views.job.known_errors import known_error
from ddp_operator.job.failure.symptoms import (
    is_of_another_rank,
    is_of_command,
    is_of_command_line,
    is_of_device,
    is_of_node,
    is_of_service,
)
from ddp_protocol import error_texts
from ddp_protocol.error_texts import KNOWN, TOPICS, WITH_REASON, Class, Known

from tests.unit.job.failure.test_symptoms import CLOSED, OWN, TEARDOWN, TORCHRUN, of_rank

ALL = [entry for texts in TOPICS.values() for entry in texts]
CONSEQUENCES = (Class.GLOO, Class.PEER)
WORDS = 200
"""The most characters of a meaning or a remedy."""


CASES = [("", entry) for entry in KNOWN]
CASES += [(reason, entry) for reason, texts in WITH_REASON.items() for entry in texts]
"""Each entry with the reason that its text needs."""


def named(value: object) -> str | None:
    return value.example[:60] if isinstance(value, Known) else None


@pytest.mark.parametrize(("reason", "entry"), CASES, ids=named)
def test_example_is_found_as_its_own_entry(reason: str, entry: Known) -> None:
    assert known_error(entry.example, reason) is entry
    assert re.search(entry.pattern, entry.example), "the trainer uses Python's engine"


@pytest.mark.parametrize("entry", KNOWN, ids=named)
def test_class_of_an_entry_is_the_decision(entry: Known) -> None:
    decided = (
        is_of_device(entry.example),
        is_of_node(entry.example),
        is_of_another_rank(entry.example),
        is_of_command(entry.example),
        is_of_command_line(entry.example),
        is_of_service(entry.example),
    )
    assert decided == (
        entry.class_ is Class.DEVICE,
        entry.class_ in (Class.DEVICE, Class.NODE),
        entry.class_ in CONSEQUENCES,
        entry.class_ is Class.COMMAND,
        entry.class_ is Class.MISTAKE,
        entry.class_ is Class.SERVICE,
    )


def test_example_is_found_in_a_traceback() -> None:
    for entry in KNOWN:
        # Only the last line of a traceback counts, except of broken nodes.
        if re.match(r"[\w.]*(Error|Exception): ", entry.example):
            assert known_error(of_rank(3, entry.example)) is entry


def test_there_are_texts_of_all_topics_and_none_twice() -> None:
    assert len(ALL) > 200
    assert all(TOPICS.values())
    for part in ("pattern", "meaning", "example"):
        parts = [getattr(entry, part) for entry in ALL]
        assert len(set(parts)) == len(parts), part


@pytest.mark.parametrize("entry", ALL, ids=named)
def test_meaning_and_remedy_are_short_half_sentences(entry: Known) -> None:
    for words in (entry.meaning, entry.remedy):
        assert 10 < len(words) <= WORDS
        assert words == " ".join(words.split())
        assert not words.endswith((".", ";", ","))
    assert re.match(r"[a-z/]|[A-Z]\w*[A-Z]|[A-Z][a-z]+ (?:&|Hugging)|DNS|NVIDIA", entry.meaning)
    assert entry.remedy[0].islower() or entry.remedy.startswith("PYTORCH")
    assert "\n" not in entry.example


def test_own_failures_come_before_consequences() -> None:
    """So the text that is explained is the one that decided."""
    classes = [entry.class_ for entry in KNOWN]
    first = min(map(classes.index, CONSEQUENCES))
    assert not {Class.CUDA, Class.OWN, Class.DEVICE, Class.NODE} & set(classes[first:])


def test_patterns_are_safe() -> None:
    for entry in ALL:
        assert not re.search(r"\(\?[imsx]+\)", entry.pattern), "flags of the whole pattern"
        assert not re.search(r"[*+]\)[*+]", entry.pattern), "nested repetition"
        assert re.compile(entry.pattern).groups == 0
        assert not re.search(entry.pattern, "")
        assert not re.search(entry.pattern, "step 17 of 300, loss 0.31, all ranks are ready")


def test_table_imports_only_the_standard_library() -> None:
    files = Path(error_texts.__file__).parent.glob("*.py")
    trees = [ast.parse(file.read_text()) for file in files]
    found = {
        name.split(".")[0]
        for tree in trees
        for node in ast.walk(tree)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else []
        )
    }  # fmt: skip
    assert len(trees) > 5
    assert found <= {"ddp_protocol", *sys.stdlib_module_names}


class TestTextThatCounts:
    def test_unknown_text(self) -> None:
        assert known_error("") is None
        assert known_error(OWN) is None

    def test_own_exception_hides_lost_peers_around_it(self) -> None:
        assert known_error(of_rank(0, OWN) + TEARDOWN) is None
        assert known_error(of_rank(0, CLOSED) + of_rank(1, OWN)) is None

    def test_torchrun_report_without_tracebacks_explains_nothing(self) -> None:
        assert known_error("peer.cc: Connection closed by peer\n" + TORCHRUN) is None

    def test_broken_node_counts_in_the_log_before_an_exception(self) -> None:
        found = known_error(
            "NVRM: GPU at PCI:0000:10:1c.0 has fallen off the bus\n" + of_rank(0, OWN)
        )
        assert found is not None
        assert found.class_ is Class.DEVICE

    def test_memory_held_by_another_process(self) -> None:
        own = known_error("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
        shared = known_error(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
            "total capacity of 79.11 GiB of which 2.93 GiB is free. Process 7 has 70.27 GiB memory "
            "in use. Including non-PyTorch memory, this process has 5.45 GiB memory in use."
        )
        assert own
        assert shared
        assert "smaller batches" in own.remedy
        assert "other processes" in shared.meaning

    @pytest.mark.parametrize("text", ['secret "a" not found', "tag unknown", "access denied"])
    def test_words_of_the_kubelet_need_its_reason(self, text: str) -> None:
        assert known_error(text) is None
        assert known_error(text, "Error") is None

    def test_scheduler_with_several_reasons_is_not_explained(self) -> None:
        mixed = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 Insufficient cpu."
        assert known_error(mixed) is None
