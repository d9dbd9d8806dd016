"""A rank without torch that saves and restores snapshots as `ddp_trainer.memory` does.

    python -m tests.trainer.memory.stand_in FOLDER ADDRESS

ADDRESS is its launcher's. It saves each step up to the number in the file `target`, and then waits.
Its state is a chain of hashes, so a state that was not restored to the bit is never right again.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import socket
import sys
import time
from pathlib import Path

from ddp_trainer.memory.volume import Key, SnapshotName, Volume
from ddp_trainer.process_group.admission import Request, send
from ddp_trainer.settings.environment import Environment

from tests.trainer.launcher.memory.files import save

SIZE = 20_000


def next_state(state: bytes, step: int) -> bytes:
    """Return the state after a step."""
    return hashlib.shake_128(step.to_bytes(8, "big") + state).digest(SIZE)


def state_at(rank: int, step: int) -> bytes:
    """Return a rank's state after a step, as without any loss."""
    state = rank.to_bytes(8, "big")
    for each in range(1, step + 1):
        state = next_state(state, each)
    return state


def restored(environment: Environment, address: str) -> Path | None:
    """Return the snapshot to resume from."""
    placement = environment.placement
    body = json.dumps({"rank": environment.rank, "generation": placement.generation}).encode()
    while True:
        connection = http.client.HTTPConnection(address, placement.status_port, timeout=60)
        with contextlib.closing(connection), contextlib.suppress(OSError):
            send(connection, placement, Request(method="POST", target="/memory/restore", body=body))
            response = connection.getresponse()
            text = response.read()
            if response.status == 200:
                path = json.loads(text).get("path")
                return Path(path) if path else None
            if response.status != 202:
                sys.exit(f"rank {environment.rank} got no snapshot: {text.decode()}")
        time.sleep(0.05)


def main(folder: Path, address: str) -> None:
    """Train until the launcher ends the process."""
    environment, volume = Environment.from_env(os.environ), Volume.from_env(os.environ)
    assert volume is not None
    rank, placement = environment.rank, environment.placement
    path, step, state = restored(environment, address), 0, state_at(rank, 0)
    if path is not None:
        name = SnapshotName.parse(path.name)
        assert name is not None
        assert name.rank == rank
        step, state = name.key.step, path.read_bytes()
    line = {"step": step, "pid": os.getpid(), "right": state == state_at(rank, step)}
    began = folder / f"{rank}.{placement.generation}"
    began.with_suffix(".new").write_text(json.dumps(line))
    began.with_suffix(".new").rename(began)
    while True:
        time.sleep(0.01)
        if step >= int((folder / "target").read_text()):
            continue
        step, state = step + 1, next_state(state, step + 1)
        name = SnapshotName(
            key=Key(placement.generation, step),
            rank=rank,
            world_size=placement.world_size,
            replicated=False,
        )
        report = {"rank": rank, "generation": name.key.generation, "step": step, "saved": False}
        report["saved"] = save(volume, environment.local_rank, name, content=state)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(json.dumps(report).encode(), str(volume.socket))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
