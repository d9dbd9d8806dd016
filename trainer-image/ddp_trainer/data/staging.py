"""Brings data to each node's own storage once, before training reads it many times.

Either one rank of each node copies it (or builds from it what the workload reads), or rank 0 alone
does and sends the result to all nodes. What is there stays there: a rank that starts anew, or a pod
that comes back to its node, finds it.

The ranks of a node wait for each other at a lock beside the data rather than in a process group. A
lock needs no group to be formed first, serves several pods on one node too, and is set free by the
death of whoever holds it, so that another rank takes the work over.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ddp_trainer.collectives.group import Group
from ddp_trainer.exit_codes import ConfigurationError, LostPeerError

Build = Callable[[Path, Path], None]
"""(source, target) → nothing; makes the file or folder `target`."""

_POLL_SECONDS = 0.1
_LOG_SECONDS = 30.0
_CHUNK_BYTES = 16 << 20

_logger = logging.getLogger(__name__)


def copy(source: Path, target: Path) -> None:
    """Copy a file or a folder as it is."""
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


class Stage:
    """A folder on this node for data from elsewhere."""

    def __init__(self, folder: Path, *, local_rank: int, timeout_seconds: float) -> None:
        """`timeout_seconds`: how long to wait for another rank of this node."""
        self._folder = folder
        self._local_rank = local_rank
        self._timeout_seconds = timeout_seconds

    def bring(self, source: Path, *, build: Build = copy) -> Path:
        """Where `source` lies on this node, once one rank of the node has built it there.

        Raises:
            ConfigurationError: there is no such source.
            LostPeerError: the rank that builds took longer than the timeout.
            OSError: it could not be read or written.
        """
        target = self._folder / _name(source)
        self._once(target, lambda new: build(source, new))
        return target

    def receive(self, group: Group, source: Path, *, build: Build = copy) -> Path:
        """The same, except that rank 0 alone reads the source; a collective.

        Nothing is sent when all nodes have it.
        """
        listing, mine = b"", None
        if group.rank == 0:
            try:
                mine = self.bring(source, build=build)
                listing = _listing(mine)
            except (ConfigurationError, OSError) as error:
                group.broadcast(json.dumps({"error": str(error)}).encode())
                raise
        message = json.loads(group.broadcast(listing))
        if "error" in message:
            raise LostPeerError(f"rank 0 could not stage {source}: {message['error']}")
        target = self._folder / str(message["name"])
        has_it = _mark(target).exists()
        if group.sum(float(not has_it))[0] > 0:
            self._transfer(group, target, message["files"], origin=mine)
        return target

    def _transfer(
        self, group: Group, target: Path, files: list[tuple[str, int]], *, origin: Path | None
    ) -> None:
        # One rank of each pod writes; of several pods on a node the first to be ready keeps its.
        own = target.with_name(f"{target.name}.rank-{group.rank}")
        keeps = self._local_rank == 0 and not _mark(target).exists()
        _remove(own)
        begin = time.monotonic()
        for name, size in files:
            path = own / name if name else own
            if keeps:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            for first in range(0, size, _CHUNK_BYTES):
                chunk = b""
                if origin is not None:
                    with (origin / name if name else origin).open("rb") as file:
                        file.seek(first)
                        chunk = file.read(min(_CHUNK_BYTES, size - first))
                chunk = group.broadcast(chunk)
                if keeps:
                    with path.open("ab") as file:
                        file.write(chunk)
        if keeps:
            self._once(target, own.rename)
            _remove(own)
        group.barrier()
        if group.rank == 0:
            _logger.info(
                "sent %s, %.1f MB, to all nodes in %.1f s",
                target.name,
                sum(size for _, size in files) / 1e6,
                time.monotonic() - begin,
            )

    def _once(self, target: Path, build: Callable[[Path], object]) -> None:
        """Build `target` unless it is there, or wait for the one who does."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._lock(target):
            if _mark(target).exists():
                return
            begin = time.monotonic()
            new = target.with_name(f"{target.name}.new")
            _remove(new)
            _remove(target)
            build(new)
            new.rename(target)
            _mark(target).touch()
            _logger.info("staged %s in %.1f s", target, time.monotonic() - begin)

    @contextmanager
    def _lock(self, target: Path) -> Iterator[None]:
        begin = said = time.monotonic()
        with target.with_name(f"{target.name}.lock").open("w") as file:
            while not _try_lock(file.fileno()):
                now = time.monotonic()
                if now - begin > self._timeout_seconds:
                    raise LostPeerError(
                        f"waited {self._timeout_seconds:g} s for another rank of this node to "
                        f"stage {target} (--stage-timeout-seconds sets how long)"
                    )
                if now - said > _LOG_SECONDS:
                    said = now
                    _logger.info("another rank of this node stages %s: waiting", target)
                time.sleep(_POLL_SECONDS)
            yield  # closing the file sets the lock free


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _name(source: Path) -> str:
    """A name for what is staged, another one when the source has changed."""
    try:
        seen = source.stat()
    except FileNotFoundError:
        raise ConfigurationError(f"--data {source} is not there: mount it, or correct it") from None
    identity = f"{source.resolve()}/{seen.st_mtime_ns}/{seen.st_size}"
    return f"{source.name}-{hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()}"


def _mark(target: Path) -> Path:
    """A file that says that `target` is complete."""
    return target.with_name(f"{target.name}.complete")


def _listing(staged: Path) -> bytes:
    """Name of what is staged and its files with their sizes, as JSON; '' is the target itself."""
    paths = [staged] if staged.is_file() else sorted(p for p in staged.rglob("*") if p.is_file())
    files = [
        (os.path.relpath(path, staged) if path != staged else "", path.stat().st_size)
        for path in paths
    ]
    return json.dumps({"name": staged.name, "files": files}).encode()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
