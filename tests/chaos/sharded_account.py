"""Compares the steps of a disturbed sharded training with those of an undisturbed one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.chaos.memory_account import lines

Losses = Mapping[tuple[int, int], set[str]]


def losses(folder: Path) -> Losses:
    """Return all losses that ranks have noted, by rank and step; a step may be taken twice."""
    found: dict[tuple[int, int], set[str]] = {}
    for line in lines(folder, "steps.*"):
        found.setdefault((line["rank"], line["step"]), set()).add(line["loss"])
    return found


def complaints(folder: Path, undisturbed: Path) -> Iterator[str]:
    """Yield what must not be."""
    expected, found = losses(undisturbed), losses(folder)
    for place, values in sorted(found.items()):  # a rank that is lost may not have noted its step
        if expected.get(place) != values:
            yield f"rank and step {place} had losses {values} and not {expected.get(place)}"
    for rank in {rank for rank, _ in expected}:
        first, *later = (line["step"] for line in lines(folder, f"starts.{rank}"))
        if first or not all(later):
            yield f"rank {rank} started at steps {[first, *later]}"
    ends, wanted = (
        sorted((line["rank"], line["digest"]) for line in lines(each, "ends.*"))
        for each in (folder, undisturbed)
    )
    if ends != wanted:
        yield f"ranks ended with {ends} and not with {wanted}"
