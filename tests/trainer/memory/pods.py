"""A pod's volume and environment, as the operator and the launcher give them to a rank."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddp_trainer.memory.volume import Volume

from tests.trainer.support.pods import contract


def variables(
    directory: Path, *, rank: int = 0, ranks: int = 1, generation: int = 1, size: int = 64 << 20
) -> dict[str, str]:
    """Return the variables of a rank in a pod that has all ranks."""
    return {
        **contract(local_world_size=ranks),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "DDP_GENERATION": str(generation),
        "DDP_MEMORY_DIR": str(directory),
        "DDP_MEMORY_BYTES": str(size),
        "DDP_MEMORY_COPIES": "1",
    }


class Launcher:
    """Receives the reports of ranks."""

    def __init__(self, receiver: socket.socket) -> None:
        self._receiver = receiver

    def reports(self) -> list[Mapping[str, Any]]:
        """Return the reports since the last call."""
        found = []
        while True:
            try:
                found.append(json.loads(self._receiver.recv(65536)))
            except BlockingIOError:
                return found


@contextmanager
def listening(volume: Volume) -> Iterator[Launcher]:
    """Listen as the launcher does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(volume.socket))
        receiver.setblocking(False)
        yield Launcher(receiver)
