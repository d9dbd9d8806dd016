"""Rank 0 tells the other pods where it is, since name servers may take half a minute to.

A pod that takes the place of rank 0's has its name and another address. Name servers, and caches on
the nodes, remember the old one, or that for a moment there was none. The names of the other pods
still mean what they meant: rank 0 looks these up, and calls. Each pod's launcher takes the call on
its status port and puts the address where the pod's ranks look for it.
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

from ddp_trainer.process_group.admission import Request, send
from ddp_trainer.settings.environment import Placement
from ddp_trainer.telemetry.status import STATUS_FILE_VARIABLE, replace_file
from ddp_trainer.telemetry.wire import from_json, to_json

PATH = "/rank-0"
"""What the launchers' status servers take it at."""
MAX_BYTES = 1024
_EVERY_SECONDS = 1.0
_CALL_SECONDS = 2.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """Where rank 0 of one attempt is."""

    job_uid: str
    attempt: int
    address: str
    """Numeric."""
    generation: int = 0
    """Of the group: who is rank 0 no more may not know it yet."""

    @classmethod
    def parse(cls, text: bytes) -> Announcement:
        """Read what an `Announcer` sends.

        Raises:
            ValueError: it is something else; the message says what is wrong.
        """
        announcement = from_json(cls, text)
        ip_address(announcement.address)
        return announcement

    def concerns(self, placement: Placement) -> bool:
        """Whether it is of the job and attempt that a pod belongs to."""
        return (self.job_uid, self.attempt) == (placement.job_uid, placement.attempt)


class AnnouncedAddress:
    """The last announcement, from the launcher to the ranks of its pod."""

    def __init__(self, status_file: Path) -> None:
        """It is kept in a file beside the pod's status."""
        self._path = status_file.with_name(f".{status_file.name}.rank-0")

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> AnnouncedAddress | None:
        """As a rank finds it; None where no launcher listens."""
        path = env.get(STATUS_FILE_VARIABLE)
        return cls(Path(path)) if path else None

    def write(self, announcement: Announcement) -> None:
        """Replace the one before.

        Raises:
            OSError: it cannot be written.
        """
        replace_file(self._path, to_json(announcement))

    def read(self, *, generation: int) -> str | None:
        """The address of rank 0 of this generation of the group, or a later one; None where none
        has come, or none that can be read.
        """
        try:
            known = Announcement.parse(self._path.read_bytes())
        except (OSError, ValueError):
            return None
        return known.address if known.generation >= generation else None


class Announcer:
    """Rank 0's end."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._calls: threading.Thread | None = None
        self._next = 0.0

    def tell(self, node_ranks: Collection[int]) -> None:
        """Call these pods, unless they have just been called; does not wait for it.

        Who cannot be called will have to ask for rank 0 by name.
        """
        port, now = self._placement.status_port, time.monotonic()
        if port is None or now < self._next or (self._calls and self._calls.is_alive()):
            return
        self._next = now + _EVERY_SECONDS
        hosts = [self._placement.host_of(node_rank) for node_rank in node_ranks]
        others = [host for host in hosts if host not in (None, self._placement.master_addr)]
        if others:
            self._calls = threading.Thread(
                target=self._call_all, args=(others, port), name="announcement", daemon=True
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
                _logger.debug("cannot tell %s where rank 0 is: %s", host, error)
            finally:
                connection.close()
