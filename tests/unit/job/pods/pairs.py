"""All-pairs combinations, which cover a matrix with a fraction of its cells."""

from collections.abc import Callable, Iterable
from itertools import combinations, product

Cell = tuple[str, ...]
"""One value of each dimension."""


def all_pairs(*dimensions: Iterable[str], valid: Callable[..., bool]) -> list[Cell]:
    """Return valid cells in which each pair of two dimensions' values occurs.

    Pairs that occur in no valid cell are left out. The result is always the same.
    """
    candidates = [cell for cell in product(*dimensions) if valid(*cell)]
    missing = {pair for cell in candidates for pair in pairs_of(cell)}
    chosen = []
    while missing:
        best = max(candidates, key=lambda cell: len(missing & pairs_of(cell)))
        chosen.append(best)
        missing -= pairs_of(best)
    return chosen


def pairs_of(cell: Cell) -> set[tuple[tuple[int, str], tuple[int, str]]]:
    """Return the pairs of values in a cell, each value with the number of its dimension."""
    return set(combinations(enumerate(cell), 2))
