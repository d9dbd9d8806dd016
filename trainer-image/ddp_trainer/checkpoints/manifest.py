"""The small files of a checkpoint: its manifest and the score of its model.

Each contains its own checksum, so damage is detected.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ddp_trainer.checkpoints.storage import Content

MANIFEST = "manifest.json"
SCORE = "score.json"
FORMAT_VERSION, FROZEN_FORMAT_VERSION = 1, 2
"""Without and with a file of frozen weights."""
_FROZEN_NAME = re.compile(r"frozen-[0-9a-f]{16}\.pt")


class DamagedError(OSError):
    """A checkpoint is incomplete or damaged; the message says how."""


@dataclass(frozen=True, kw_only=True)
class FrozenFile:
    """A file beside the checkpoints with weights that several of them share."""

    name: str
    size_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if not self.is_name(self.name):
            raise ValueError(f"{self.name!r} is not the name of a file of frozen weights")

    @staticmethod
    def is_name(name: str) -> bool:
        """Return whether this is the name of a file of frozen weights."""
        return _FROZEN_NAME.fullmatch(name) is not None

    @classmethod
    def of(cls, content: Content) -> FrozenFile:
        """Return the file with this content."""
        name = f"frozen-{content.sha256[:16]}.pt"
        return cls(name=name, size_bytes=content.size, sha256=content.sha256)

    @property
    def content(self) -> Content:
        """Size and hash of the file."""
        return Content(size=self.size_bytes, sha256=self.sha256)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of a complete checkpoint."""

    format_version: int
    step: int
    saved_at: str
    """ISO 8601, with the offset from UTC."""
    state_bytes: int
    state_sha256: str
    frozen: FrozenFile | None = None
    """File of the weights that are not in the state; None: all are in the state."""

    @property
    def time(self) -> datetime:
        """Time at which it was written."""
        return datetime.fromisoformat(self.saved_at)

    @property
    def state(self) -> Content:
        """Size and hash of the state's file."""
        return Content(size=self.state_bytes, sha256=self.state_sha256)

    def encode(self) -> bytes:
        """Return the content of its file."""
        body = asdict(self)
        if self.frozen is None:  # version 1 does not have this field
            del body["frozen"]
        return _seal(body)

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Return the manifest of the checkpoint in `directory`.

        Raises:
            DamagedError: it is missing or damaged.
            OSError: it cannot be read.
        """
        try:
            body = _unseal(directory / MANIFEST)
        except FileNotFoundError:
            raise DamagedError(f"{MANIFEST} is missing, so it was never completed") from None
        try:
            if body["format_version"] not in (FORMAT_VERSION, FROZEN_FORMAT_VERSION):
                raise DamagedError(
                    f"this trainer does not read format version {body['format_version']}, only "
                    f"{FORMAT_VERSION} and {FROZEN_FORMAT_VERSION}"
                )
            frozen = body.pop("frozen", None)
            manifest = cls(**body, frozen=FrozenFile(**frozen) if frozen is not None else None)
            manifest.time  # noqa: B018 - checks it
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedError(f"{MANIFEST} cannot be read: {error}") from error
        return manifest


def encode_score(score: float) -> bytes:
    """Return the content of the file with the score."""
    return _seal({"score": score})


def read_score(directory: Path) -> float | None:
    """Return the score of the checkpoint in `directory`; None if missing or damaged."""
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
