"""A launcher's status server in a process of its own, with the environment of a pod.

python -m tests.trainer.support.status_server PORT FOLDER
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from ddp_trainer.launcher.status_server.server import serve_status
from ddp_trainer.settings.environment import Placement


class Pod:
    """A launcher without ranks."""

    rank_restarts = 0

    def rank_processes(self) -> Mapping[int, int]:
        return {}

    def rank_ends(self) -> Mapping[int, int]:
        return {}


if __name__ == "__main__":
    _, port, folder = sys.argv
    placement = Placement.from_env(os.environ)
    assert serve_status(int(port), Path(folder) / "status.json", Pod(), placement)
    print("ready", flush=True)
    threading.Event().wait()
