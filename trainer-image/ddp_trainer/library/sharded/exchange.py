"""Exchanges snapshots, and lists of them, with other ranks, and holds the copies of theirs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent import futures
from functools import partial

import torch
from torch import Tensor

from ddp_trainer.collectives.group import Group
from ddp_trainer.library.sharded import packing
from ddp_trainer.library.sharded.agreement import Inventory
from ddp_trainer.library.sharded.copy_holders import Round
from ddp_trainer.library.sharded.verified_step import VerifiedStep
from ddp_trainer.memory.volume import Key
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.system.threads import start_thread

_PIECE_BYTES = 32 << 20
"""The group's timeout applies to each piece of a snapshot that is sent."""
_LENGTH, _PIECE = 0, 1
"""Tags of messages."""


def gathered(
    group: Group,
    *,
    own: Iterable[Key],
    copies: Iterable[tuple[int, Key]],
    shard: int | None = None,
) -> list[Inventory]:
    """Return the inventories of all ranks; a collective."""
    inventories = []
    for told in group.gather(json.dumps([sorted(own), sorted(copies), shard]).encode()):
        keys, others, its_shard = json.loads(told)
        inventories.append(
            Inventory(
                own=[Key(*key) for key in keys],
                copies=[(rank, Key(*key)) for rank, key in others],
                shard=its_shard,
            )
        )
    return inventories


def share_progress(run: TrainState, group: Group) -> None:
    """Give all ranks the progress within the step, such as answers, of the furthest one."""
    told = [json.loads(each) for each in group.gather(json.dumps(run.progress()).encode())]
    most = max(told)
    if min(told) != most:
        source = told.index(most)
        is_source = group.rank == source
        own = json.dumps(run.progress_dict()).encode() if is_source else None
        run.load_progress_dict(json.loads(group.broadcast(own, source=source)))


def started(work: Callable[[], None]) -> futures.Future[None]:
    """Begin work in a thread; return the future of its end."""
    ended: futures.Future[None] = futures.Future()

    def run() -> None:
        try:
            work()
        except Exception as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    start_thread("ddp: copies a snapshot", run)
    return ended


def send(memory: Tensor, group: Group, *, to: int) -> None:
    """Send a snapshot to another rank."""
    group.start_send(torch.tensor([len(memory)]), to=to, tag=_LENGTH)()
    for piece in torch.split(memory, _PIECE_BYTES):
        group.start_send(piece, to=to, tag=_PIECE)()


def receive(memory: Tensor | None, group: Group, *, source: int) -> Tensor:
    """Receive a snapshot, in this memory if it has room."""
    length = torch.zeros(1, dtype=torch.int64)
    group.start_receive(length, source=source, tag=_LENGTH)()
    memory = packing.resized(memory, int(length))
    for piece in torch.split(memory, _PIECE_BYTES):
        group.start_receive(piece, source=source, tag=_PIECE)()
    return memory


class HeldCopies:
    """One rank's copies of other ranks' snapshots: two of each, and one of the verified step."""

    def __init__(self, verified: VerifiedStep) -> None:
        self._verified = verified
        self._group: Group | None = None
        self._parts: dict[tuple[int, int], Tensor] = {}
        """By rank and step."""
        self._lock = threading.Lock()
        """Held to change the above: a thread may still copy in a group that broke."""

    def enter(self, group: Group | None) -> None:
        """Accept copies that come through this group only."""
        with self._lock:
            self._group = group

    def listed(self) -> Sequence[tuple[int, int]]:
        """Return the ranks and steps of all copies."""
        return [*self._parts]

    def get(self, rank: int, step: int) -> Tensor | None:
        """Return the copy of a rank's snapshot of a step, if there is one."""
        return self._parts.get((rank, step))

    def add(self, step: int, parts: Mapping[int, Tensor]) -> None:
        """Hold snapshots of a step, by rank."""
        with self._lock:
            self._parts.update({(rank, step): part for rank, part in parts.items()})

    def drop_after(self, step: int) -> None:
        """Release the copies of later steps."""
        with self._lock:
            self._parts = {key: part for key, part in self._parts.items() if key[1] <= step}

    def drop_moved(self, step: int, sources: Collection[int]) -> None:
        """Release copies that other ranks hold since this step, which is complete.

        `sources`: ranks whose copies stay here.
        """
        with self._lock:
            for rank, at in [*self._parts]:
                if at < step and rank not in sources and at not in self._verified.kept:
                    del self._parts[rank, at]

    def exchange(
        self,
        step: int,
        own: Tensor,
        group: Group,
        known: Sequence[Collection[int]],
        rounds: Sequence[Round],
    ) -> None:
        """Send a snapshot to other ranks, and receive those of others, where they lack."""
        for target, source in rounds:
            sending = []
            if group.rank not in known[target]:
                sending.append(started(partial(send, own, group, to=target)))
            if source not in known[group.rank]:
                self._receive(source, step, group)
            for sent in sending:
                sent.result()

    def _receive(self, source: int, step: int, group: Group) -> None:
        with self._lock:
            if group is not self._group:
                return
            steps = (at for rank, at in self._parts if rank == source)
            old = [self._parts.pop((source, at)) for at in self._verified.replaceable(steps)]
        memory = receive(old[0] if old else None, group, source=source)
        with self._lock:
            if group is self._group:
                self._parts[source, step] = memory
