"""Shares a fixed number of slots among many owners, so that no owner blocks the others."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from typing import Final, Generic, TypeVar

_KEPT: Final = 5
"""One in so many slots is reserved for owners that hold none."""

OwnerT = TypeVar("OwnerT", bound=Hashable)


class FairSlots(Generic[OwnerT]):
    """Slots, each held by one owner at a time.

    - An owner may hold as many slots as are free besides: alone, two in five. A fifth is reserved
      for owners that hold none, one slot for each, so that they need not wait for others to finish.
    - Waiting owners take turns, and the requests of each owner keep their order.

    Belongs to the event loop that it is used in.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.in_use = 0
        self.wanted = 0
        """Slots that are held or waited for."""
        self._held: Counter[OwnerT] = Counter()
        self._waiting: dict[OwnerT, dict[asyncio.Future[None], None]] = {}
        """Owners in the order of their turns, each with its requests in order."""

    @contextlib.asynccontextmanager
    async def of(self, owner: OwnerT) -> AsyncIterator[None]:
        """Hold a slot during the block, once one is free."""
        self.wanted += 1
        try:
            await self._take(owner)
            try:
                yield
            finally:
                self._give_back(owner)
        finally:
            self.wanted -= 1

    def resize(self, total: int) -> None:
        """Change the number of slots; fewer take effect as slots are released."""
        self.total = total
        self._wake()

    async def _take(self, owner: OwnerT) -> None:
        if owner not in self._waiting and self._may_have(owner):
            self._count(owner, 1)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, {})[turn] = None
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(owner, turn)
            else:  # it was woken, but does not take the slot
                self._give_back(owner)
            raise

    def _leave(self, owner: OwnerT, turn: "asyncio.Future[None]") -> None:
        turns = self._waiting.get(owner, {})
        turns.pop(turn, None)
        if not turns:
            self._waiting.pop(owner, None)

    def _give_back(self, owner: OwnerT) -> None:
        self._count(owner, -1)
        self._wake()

    def _wake(self) -> None:
        """Wake the requests that may have a slot now."""
        while owner := next((each for each in self._waiting if self._may_have(each)), None):
            turns = self._waiting.pop(owner)
            turn = next(iter(turns))
            del turns[turn]
            if turns:
                self._waiting[owner] = turns  # behind the others
            if not turn.cancelled():
                turn.set_result(None)
                self._count(owner, 1)

    def _may_have(self, owner: OwnerT) -> bool:
        held, free = self._held[owner], self.total - self.in_use
        return free > 0 and (held == 0 or held < free - self.total // _KEPT)

    def _count(self, owner: OwnerT, change: int) -> None:
        self.in_use += change
        self._held[owner] += change
        if not self._held[owner]:
            del self._held[owner]
