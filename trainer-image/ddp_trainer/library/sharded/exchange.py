"""Exchanges snapshots, and lists of them, with other ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent import futures

import torch
from torch import Tensor

from ddp_trainer.collectives.group import Group
from ddp_trainer.library.sharded import packing
from ddp_trainer.library.sharded.agreement import Inventory
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
