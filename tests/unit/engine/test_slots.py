"""Slots that many owners share: no owner blocks the others."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from ddp_operator.engine.trainers.slots import FairSlots


class Users:
    """Holders of slots, and waiting owners. Each holds its slot until `release`."""

    def __init__(self, total: int) -> None:
        self.slots: FairSlots[str] = FairSlots(total)
        self.held: Counter[str] = Counter()
        self.order: list[str] = []
        self.tasks: list[tuple[str, asyncio.Task[None], asyncio.Event]] = []

    async def ask(self, owner: str, times: int = 1) -> None:
        for _ in range(times):
            over = asyncio.Event()
            self.tasks.append((owner, asyncio.create_task(self._hold(owner, over)), over))
        await self.settle()

    async def _hold(self, owner: str, over: asyncio.Event) -> None:
        async with self.slots.of(owner):
            self.held[owner] += 1
            self.order.append(owner)
            try:
                await over.wait()
            finally:
                self.held[owner] -= 1

    async def release(self, owner: str) -> None:
        """Release the slot of the earliest request."""
        holder = next(each for each in self.tasks if each[0] == owner)
        self.tasks.remove(holder)
        holder[2].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def end(self) -> None:
        for _, task, _ in self.tasks:
            task.cancel()
        await asyncio.gather(*(task for _, task, _ in self.tasks), return_exceptions=True)


@contextlib.asynccontextmanager
async def users(total: int) -> AsyncIterator[Users]:
    made = Users(total)
    yield made
    await made.end()
    assert (made.slots.in_use, made.slots.wanted) == (0, 0), "all came back"


async def test_owner_that_wants_all_slots_leaves_most_to_others() -> None:
    async with users(100) as made:
        await made.ask("greedy", 500)
        assert made.held["greedy"] == 40
        await made.ask("modest")
        assert made.held["modest"] == 1


@pytest.mark.parametrize("many", [1, 9])
async def test_new_owner_gets_a_slot_beside_any_number_of_greedy_ones(many: int) -> None:
    async with users(100) as made:
        for number in range(many):
            await made.ask(f"greedy-{number}", 100)
        await made.ask("new")
        assert made.held["new"] == 1


async def test_returned_slots_go_round_among_waiting_owners() -> None:
    async with users(2) as made:
        for owner in ("a", "b", "c", "c", "d"):
            await made.ask(owner)
        assert made.order == ["a", "b"]
        await made.release("a")
        await made.release("b")
        assert made.order == ["a", "b", "c", "d"]
        await made.release("c")
        await made.release("d")
        assert made.order == ["a", "b", "c", "d", "c"]


async def test_owner_that_stops_waiting_keeps_no_slot() -> None:
    async with users(1) as made:
        await made.ask("a")
        await made.ask("b")
        made.tasks.pop()[1].cancel()
        await made.ask("c")
        await made.release("a")
        assert made.order == ["a", "c"]


async def test_owner_cancelled_with_its_slot_passes_it_on() -> None:
    async with users(1) as made:
        for owner in "abc":
            await made.ask(owner)
        (_, _, over), (_, called, _) = made.tasks.pop(0), made.tasks.pop(0)
        over.set()
        await asyncio.sleep(0)
        called.cancel()
        await made.settle()
        assert made.order == ["a", "c"]


async def test_changed_total_takes_effect() -> None:
    async with users(4) as made:
        for owner in "abcdef":
            await made.ask(owner)
        made.slots.resize(2)
        for owner in "ab":
            await made.release(owner)
        assert made.order == ["a", "b", "c", "d"]
        await made.release("c")
        assert made.order[4:] == ["e"]
        made.slots.resize(3)
        await made.settle()
        assert made.order[4:] == ["e", "f"]
