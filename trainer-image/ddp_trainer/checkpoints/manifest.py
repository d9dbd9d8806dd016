"""The small files of a checkpoint: what it consists of, and how well its model did.

Each carries its own checksum, and is either what was written or damaged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
SCORE = "score.json"
FORMAT_VERSION = 1


class DamagedError(OSError):
    """A checkpoint is incomplete or not what was written; the message says in which way."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a complete checkpoint consists of."""

    format_version: int
    step: int
    saved_at: str
    """ISO 8601, with the offset from UTC."""
    state_bytes: int
    state_sha256: str

    @property
    def time(self) -> datetime:
        """When it was written."""
        return datetime.fromisoformat(self.saved_at)

    def encode(self) -> bytes:
        """The content of its file."""
        return _seal(asdict(self))

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """The manifest of the checkpoint in `directory`.

        Raises:
            DamagedError: there is none, or it is not what was written.
            OSError: it cannot be read.
        """
        try:
            body = _unseal(directory / MANIFEST)
        except FileNotFoundError:
            raise DamagedError(f"{MANIFEST} is missing, so it was never completed") from None
        try:
            if body["format_version"] != FORMAT_VERSION:
                raise DamagedError(
                    f"format version {body['format_version']} is not {FORMAT_VERSION}, "
                    "the only one that this trainer reads"
                )
            manifest = cls(**body)
            manifest.time  # noqa: B018 - checks it
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedError(f"{MANIFEST} cannot be read: {error}") from error
        return manifest


def encode_score(score: float) -> bytes:
    """The content of a score's file."""
    return _seal({"score": score})


def read_score(directory: Path) -> float | None:
    """The score of the checkpoint in `directory`; None if it has none that can be trusted."""
    try:
        return float(_unseal(directory / SCORE)["score"])
    except (OSError, KeyError, TypeError, ValueError):
        return None


def _seal(body: Mapping[str, Any]) -> bytes:
    return json.dumps({"content": body, "sha256": _digest(body)}, indent=2).encode()


def _unseal(path: Path) -> dict[str, Any]:
    try:
        sealed: Any = json.loads(path.read_bytes())
        body: dict[str, Any] = sealed["content"]
        digest = sealed["sha256"]
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"{path.name} cannot be read: {error}") from error
    if digest != _digest(body):
        raise DamagedError(f"the checksum of {path.name} does not match")
    return body


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
