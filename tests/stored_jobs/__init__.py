"""Jobs as operators of before have left them in the API server: status, spec and pods.

They were written by those operators' own code, over the tests' cluster in memory, before their
status had a bookkeeping: replaced, a pod has taken another one's place; replacing, it is to, and a
quota keeps it out; restarted, all pods have started anew; resumed, after a suspension.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from ddp_operator.ports import Key

_FOLDER = Path(__file__).parent


class StoredJob(NamedTuple):
    """A job and its pods, each as stored."""

    manifest: dict[str, Any]
    pods: dict[Key, dict[str, Any]]

    @property
    def status(self) -> dict[str, Any]:
        """The job's status."""
        found: dict[str, Any] = self.manifest["status"]
        return found


NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def load(name: str) -> StoredJob:
    """Read one of them."""
    stored = json.loads((_FOLDER / f"{name}.json").read_text())
    pods = {
        Key(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in stored["pods"]
    }
    return StoredJob(stored["job"], pods)
