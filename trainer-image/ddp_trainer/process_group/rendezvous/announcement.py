"""Rank 0 announces its address to the other pods, because DNS may take half a minute to change.

A pod that replaces rank 0's has the same name and another address. Name servers, and caches on the
nodes, still return the old address, or answer that the name does not exist. The names of the other
pods have not changed, so rank 0 looks them up and calls them. Each pod's launcher receives the call
on its status port and writes the address to a file that the pod's ranks read.
"""

from __future__ import annotations

import http.client
import logging
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from ddp_protocol.message import from_json, to_json

from ddp_trainer.process_group.admission import Request, send
from ddp_trainer.settings.environment import Placement
from ddp_trainer.telemetry.status import STATUS_FILE_VARIABLE, replace_file

PATH = "/rank-0"
"""Path at which the launchers' status servers receive it."""
MAX_BYTES = 1024
_EVERY_SECONDS = 1.0
_CALL_SECONDS = 2.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """The address of rank 0 in one attempt."""

    job_uid: str
    attempt: int
    address: str
    """Numeric."""
    generation: int = 0
    """Generation of the group: a former rank 0 may not know yet that it has been replaced."""

    @classmethod
    def parse(cls, text: bytes) -> Announcement:
        """Parse an announcement that an `Announcer` sent.

        Raises:
            ValueError: the text is no valid announcement; the message says why.
        """
        announcement = from_json(cls, text)
        ip_address(announcement.address)
        return announcement

    def concerns(self, placement: Placement) -> bool:
        """Return whether it is for the job and attempt of this pod."""
        return (self.job_uid, self.attempt) == (placement.job_uid, placement.attempt)


class AnnouncedAddress:
    """The file in which the launcher passes the last announcement to the ranks of its pod."""

    def __init__(self, status_file: Path) -> None:
        """The file is beside the pod's status file."""
        self._path = status_file.with_name(f".{status_file.name}.rank-0")

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> AnnouncedAddress | None:
        """Find the file of this rank's pod; None if no launcher runs there."""
        path = env.get(STATUS_FILE_VARIABLE)
        return cls(Path(path)) if path else None

    def write(self, announcement: Announcement) -> None:
        """Replace the announcement in the file.

        Raises:
            OSError: the file cannot be written.
        """
        replace_file(self._path, to_json(announcement))

    def read(self, *, generation: int) -> str | None:
        """Return rank 0's address in this generation of the group or a later one.

        None if there is no such announcement or it cannot be read.
        """
        try:
            known = Announcement.parse(self._path.read_bytes())
        except (OSError, ValueError):
            return None
        return known.address if known.generation >= generation else None


class Announcer:
    """Announces the address of rank 0, on rank 0."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._calls: threading.Thread | None = None
        self._next = 0.0

    def tell(self, node_ranks: Collection[int]) -> None:
        """Call these pods in a thread, at most once a second.

        A pod that cannot be called must find rank 0 by its name.
        """
        port, now = self._placement.status_port, time.monotonic()
        if port is None or now < self._next or (self._calls and self._calls.is_alive()):
            return
        self._next = now + _EVERY_SECONDS
        hosts = [self._placement.host_of(node_rank) for node_rank in node_ranks]
        others = [host for host in hosts if host not in (None, self._placement.master_addr)]
        if others:
            self._calls = threading.Thread(
                target=self._call_all,
                args=(others, port),
                name="ddp: announces rank 0",
                daemon=True,
            )
            self._calls.start()

    def _call_all(self, hosts: list[str], port: int) -> None:
        for host in hosts:
            connection = http.client.HTTPConnection(host, port, timeout=_CALL_SECONDS)
            try:
                connection.connect()
                announcement = Announcement(
                    job_uid=self._placement.job_uid,
                    attempt=self._placement.attempt,
                    address=connection.sock.getsockname()[0],
                    generation=self._placement.generation,
                )
                body = to_json(announcement).encode()
                request = Request(method="POST", target=PATH, body=body)
                send(connection, self._placement, request)
                connection.getresponse().read()
            except (OSError, http.client.HTTPException) as error:
                _logger.debug("cannot announce rank 0's address to %s: %s", host, error)
            finally:
                connection.close()
