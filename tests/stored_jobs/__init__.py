"""Jobs as an earlier operator left them in the API server: status, spec and pods.

That operator's own code wrote them, with the tests' cluster in memory.

- replacing: a quota refuses the new pod.
- resumed: the job was suspended before.
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
