"""The open connections of a port."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

_T = TypeVar("_T", bound=Hashable)


class Connections(Generic[_T]):
    """A table of connections. When it is full, another one leaves for a new one.

    It is the oldest connection of the address that has most. So one client, or a few, cannot shut
    out the others. Not thread-safe.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._addresses: dict[_T, str] = {}
        """By connection, the oldest first."""

    def add(self, connection: _T, address: str) -> tuple[_T, str] | None:
        """Add a connection; return the one that must be closed for it, with its address."""
        self._addresses[connection] = address
        if len(self._addresses) <= self._most:
            return None
        [(busiest, _)] = Counter(self._addresses.values()).most_common(1)
        oldest = next(each for each, of in self._addresses.items() if of == busiest)
        del self._addresses[oldest]
        return oldest, busiest

    def remove(self, connection: _T) -> bool:
        """Remove a connection; return False if it was not, or is no longer, in the table."""
        return self._addresses.pop(connection, None) is not None
