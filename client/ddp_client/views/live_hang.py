"""Where the ranks of a job are now, and for which of them the others wait.

A training job that works looks like one that hangs if it is seen once: some rank is always the
last. So a rank is named only if two looks show the same wait.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ddp_operator.api.values.text import clean, counted
from ddp_operator.hang.evidence import RankEvidence, explain, place
from ddp_operator.hang.result import Hang
from ddp_operator.hang.stacks import in_spans

from ddp_client.text import columns, folded

_MOST_ROWS: Final = 24
_WHERE: Final = 120
"""Most characters of a place."""


@dataclass(frozen=True)
class PodAnswer:
    """What a pod's launcher showed of its ranks."""

    pod: str
    node: str
    ranks: Sequence[RankEvidence]
    not_asked: str = ""
    """Why its launcher could not be asked: then its ranks are not known to be absent."""


@dataclass(frozen=True)
class Row:
    """Where one rank is."""

    rank: int
    pod: str
    node: str
    where: str


@dataclass(frozen=True)
class LiveHang:
    """The answer: who keeps the others waiting, and where all ranks are."""

    hang: Hang
    rows: Sequence[Row]

    def to_json(self) -> dict[str, Any]:
        """Return the object of `-o json`."""
        return {
            "sentence": self.hang.sentence,
            "named_ranks": self.hang.ranks,
            "kind": self.hang.kind,
            "class": self.hang.class_ if self.hang.ranks or self.hang.kind != "unknown" else None,
            "ranks": [asdict(row) for row in self.rows],
        }

    def lines(self, width: int) -> list[str]:
        """Return the text: a sentence, whether a restart is charged, and a table of ranks."""
        text = folded(self.hang.sentence, width)
        if self.hang.kind != "unknown":
            free = self.hang.class_ == "Infrastructure"
            charged = "not charged at first" if free else "charged"
            text += ["", f"kind: {self.hang.kind} ({self.hang.class_}); a restart is {charged}"]
        named = {*self.hang.ranks}
        rows = sorted(self.rows, key=lambda row: (row.rank not in named, row.rank))
        shown = [(str(row.rank), row.pod, row.node, row.where) for row in rows[:_MOST_ROWS]]
        text += ["", *columns([("RANK", "POD", "NODE", "WHERE"), *shown])]
        if len(rows) > len(shown):
            text.append(f"and {counted(len(rows) - len(shown), 'more rank')}: see -o json")
        return text


def first_look(answers: Sequence[PodAnswer]) -> Hang:
    """Return what one look shows; it names no rank if some launchers could not be asked."""
    unknown = [each for each in answers if each.not_asked]
    if unknown:
        ranks = in_spans([rank.rank for each in unknown for rank in each.ranks])
        return Hang(
            sentence=clean(
                f"{ranks} could not be asked, so no rank is named: {unknown[0].not_asked}"
            )
        )
    hang = explain([rank for each in answers for rank in each.ranks])
    return hang if hang.sentence else Hang(sentence="no rank shows a wait, so no rank is named")


def second_look(first: Hang, answers: Sequence[PodAnswer], seconds: float) -> LiveHang:
    """Return the answer of two looks, `seconds` apart."""
    second = first_look(answers)
    if first.ranks and first.wait != second.wait:
        moved = f"the ranks moved within {seconds:g} s, so no rank is named"
        second = Hang(sentence=moved)
    return LiveHang(second, [*_rows(answers)])


def _rows(answers: Iterable[PodAnswer]) -> Iterable[Row]:
    for each in answers:
        for rank in each.ranks:
            where = clean(each.not_asked or place(rank) or "no Python frame", _WHERE)
            yield Row(rank.rank, clean(each.pod, 253), clean(each.node, 253), where)
