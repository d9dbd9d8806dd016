"""A rank without torch: it resumes from a snapshot, and saves the steps that a test orders.

    python -m tests.trainer.launcher.memory.rank FOLDER ADDRESS

ADDRESS is its launcher's. It saves step N once `save-N` exists in the folder, if N is later than
the step that it resumes from.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from ddp_trainer.memory.volume import Key, SnapshotName, Volume
from ddp_trainer.process_group.admission import Request, send
from ddp_trainer.settings.environment import Environment

from tests.trainer.launcher.memory.files import content_of, save


def restored(environment: Environment, address: str) -> dict[str, Any]:
    """Ask the launcher as `memory.load` does."""
    placement = environment.placement
    body = json.dumps({"rank": environment.rank, "generation": placement.generation}).encode()
    while True:
        connection = HTTPConnection(address, placement.status_port, timeout=30)
        request = Request(method="POST", target="/memory/restore", body=body)
        try:
            send(connection, placement, request)
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        except ConnectionError:
            continue
        if response.status == 200:
            return answer
        if response.status != 202:
            sys.exit(7)


def main(folder: Path, address: str) -> int:
    environment = Environment.from_env(os.environ)
    volume = Volume.from_env(os.environ)
    assert volume is not None
    placement, local_rank = environment.placement, environment.local_rank
    me = f"{os.environ['DDP_POD']}.{local_rank}"
    line: dict[str, Any] = restored(environment, address)
    if line["path"]:
        name = SnapshotName.parse(Path(line["path"]).name)
        assert name is not None
        assert Path(line["path"]).read_bytes() == content_of(name)
        line["rank"] = name.rank
    line |= {"resumed": line["generation"], "generation": placement.generation}
    with (folder / f"{me}.began").open("a") as began:
        began.write(json.dumps(line) + "\n")
    done = set(range((line["step"] or 0) + 1))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
        while True:
            for each in (f"{me}.{placement.generation}", "all"):
                if (folder / each).exists():
                    return int((folder / each).read_text())
            for order in folder.glob("save-*"):
                step = int(order.name.removeprefix("save-"))
                if step in done:
                    continue
                done.add(step)
                report = {
                    "rank": environment.rank,
                    "generation": placement.generation,
                    "step": step,
                }
                of_rank = SnapshotName(
                    key=Key(placement.generation, step),
                    rank=environment.rank,
                    world_size=placement.world_size,
                    replicated=False,
                )
                report["saved"] = save(volume, local_rank, of_rank)
                reports.sendto(json.dumps(report).encode(), str(volume.socket))
            time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
