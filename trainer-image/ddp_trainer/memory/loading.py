"""Loads the snapshot that this rank's group resumes from.

The launchers of all pods agree on one step, and fetch what a pod lacks from another one. A rank
that cannot load its snapshot fails: with a state of its own choice it would train on with ranks of
another step.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import mmap
import os
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from ddp_protocol.message import from_json

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.memory.file_format import DamagedSnapshotError, decode
from ddp_trainer.memory.progress import StatusFileWriter
from ddp_trainer.memory.volume import DIRECTORY_VARIABLE, SnapshotName, Volume
from ddp_trainer.process_group.admission import Request, send
from ddp_trainer.settings.environment import Environment, Placement

PATH = "/memory/restore"
_DEADLINE_SECONDS = 120.0
_CALL_SECONDS = 30.0
"""The launcher answers after at most 20 seconds."""
_PAUSE_SECONDS = 0.1
_LOG_SECONDS = 10.0
_MAX_BYTES = 64 * 1024
_LOOPBACK = "127.0.0.1"

_logger = logging.getLogger(__name__)


class NoSnapshotError(RuntimeError):
    """The group resumes from a snapshot that this rank cannot load."""


@dataclass(frozen=True, kw_only=True)
class LoadDecision:
    """The launcher's answer."""

    path: str | None = None
    """None: there is nothing to resume from."""
    step: int = 0
    generation: int = 0
    reason: str = ""


def load(into: Any = None) -> tuple[int, Any] | None:
    """Load this rank's snapshot of the newest step that all ranks have; all ranks call it.

    It waits until the pods agree on a step and this pod has the snapshot. All calls in one process
    return the same step.

    Args:
        into: A state of the same structure, such as that of a new model and optimizer. Its tensors
            receive the values and are in the returned state. A part without tensors, such as the
            state of an optimizer before its first step, is replaced in the returned state.
            Snapshots with DTensors need it. None: the state gets new tensors on the CPU.

    Returns:
        The step and the state; None if there is no snapshot in memory. Then use the checkpoint.

    Raises:
        NoSnapshotError: the other ranks resume from a snapshot that this one does not get.
        MismatchError: the snapshot does not fit `into`.
        ConfigurationError: a variable that the launcher sets is missing or malformed.
    """
    found = find()
    return None if found is None else (found.step, found.read(into))


@dataclass(frozen=True, kw_only=True)
class FoundSnapshot:
    """The snapshot that this rank resumes from; it can be read in several parts."""

    step: int
    replicated: bool
    """True if it was saved as a state that is the same in all ranks."""
    volume: Volume
    environment: Environment
    path: Path

    def read(self, into: Any = None) -> Any:
        """Return its state, as `load` does; parts that are `LEFT_OUT` in `into` become None.

        Raises:
            NoSnapshotError: the file is not this rank's snapshot, or damaged, or gone.
            MismatchError: it does not fit `into`.
        """
        state = read(self.volume, self.environment, self.path, into)
        if progress := StatusFileWriter.of(self.environment, os.environ):
            progress.resumed(self.step)
        return state


def find() -> FoundSnapshot | None:
    """Find the snapshot that `load` would load, and wait for it as `load` does.

    Raises:
        NoSnapshotError: the other ranks resume from a snapshot that this one does not get.
        ConfigurationError: a variable that the launcher sets is missing or malformed.
    """
    volume = Volume.from_env(os.environ)
    if volume is None:
        return None
    environment = Environment.from_env(os.environ)
    answer = ask(environment)
    if answer.path is None:
        _logger.info("no snapshot in memory: %s", answer.reason)
        return None
    path = Path(answer.path)
    name = SnapshotName.parse(path.name)
    return FoundSnapshot(
        step=answer.step,
        replicated=name is not None and name.replicated,
        volume=volume,
        environment=environment,
        path=path,
    )


def ask(environment: Environment, *, seconds: float = _DEADLINE_SECONDS) -> LoadDecision:
    """Ask this pod's launcher which snapshot to load, and wait until it is there.

    Raises:
        NoSnapshotError: it is not there in time, or never will be.
        ConfigurationError: the launcher has no status port.
    """
    placement = environment.placement
    if placement.status_port is None:
        raise ConfigurationError(
            f"DDP_STATUS_PORT is not set, but {DIRECTORY_VARIABLE} is: the operator sets both"
        )
    body = json.dumps({"rank": environment.rank, "generation": placement.generation}).encode()
    request = Request(method="POST", target=PATH, body=body)
    began = said_at = time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        try:
            status, text = _call(placement, placement.status_port, request)
            why = _reason(text)
            if status == HTTPStatus.OK:
                return from_json(LoadDecision, text)
            if status != HTTPStatus.ACCEPTED:  # a launcher that is not ready waits itself
                raise ValueError(why)
        except (OSError, http.client.HTTPException) as error:
            why = f"the launcher does not answer: {error or type(error).__name__}"
            time.sleep(_PAUSE_SECONDS)
        except ValueError as error:
            message = f"rank {environment.rank} got no snapshot: {error!s:.200}"
            raise NoSnapshotError(message) from error
        if now - said_at >= _LOG_SECONDS:
            said_at = now
            _logger.warning("waiting for a snapshot in memory for %.0f s: %s", now - began, why)
    raise NoSnapshotError(
        f"rank {environment.rank} got no snapshot within {seconds:.0f} s: {why or 'not ready'}"
    )


def _call(placement: Placement, port: int, request: Request) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(_LOOPBACK, port, timeout=_CALL_SECONDS)
    with contextlib.closing(connection):
        send(connection, placement, request)
        response = connection.getresponse()
        return response.status, response.read(_MAX_BYTES)


def _reason(text: bytes) -> str:
    """Return the reason in an answer, which may also be plain text."""
    try:
        reason = json.loads(text)["reason"]
    except (ValueError, TypeError, KeyError):
        reason = text.decode(errors="replace").strip()
    return f"{reason:.200}"


def read(volume: Volume, environment: Environment, path: Path, into: Any = None) -> Any:
    """Return the state in a snapshot file of the rank with this environment.

    Raises:
        NoSnapshotError: the file is not this rank's snapshot, or damaged, or gone.
        MismatchError: it does not fit `into`.
    """
    # A rank that only asks for the decision does not need torch yet.
    from ddp_trainer.memory.restoration import MismatchError, Restoration  # noqa: PLC0415

    placement = environment.placement
    try:
        if not path.is_relative_to(volume.directory):
            raise DamagedSnapshotError(f"it is not in {volume.directory}")
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
            header, payload = decode(memoryview(memory))
            name = header.name
            if str(name) != path.name or header.job_uid != placement.job_uid:
                raise DamagedSnapshotError(f"it is {name} of job {header.job_uid:.40}")
            if not name.replicated and (name.rank, name.world_size) != (
                environment.rank,
                placement.world_size,
            ):
                raise DamagedSnapshotError("it is of another rank or world size")
            restoration = Restoration(header, memoryview(memory)[payload:])
            state = restoration.state() if into is None else restoration.state(into)
            # A file that is renamed may be overwritten by the next save of another rank.
            if os.stat(path).st_ino != os.fstat(file.fileno()).st_ino:
                raise DamagedSnapshotError("it was replaced while it was read")
    except MismatchError:
        raise
    except (OSError, ValueError) as error:
        raise NoSnapshotError(f"rank {environment.rank} cannot load {path}: {error}") from error
    return state
