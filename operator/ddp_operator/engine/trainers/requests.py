"""Polls the trainers in pods for their progress.

They are foreign programs at addresses in the cluster, so a response may be anything, or may never
come. Its size and time are limited here, redirects are not followed, and no proxy is used.
"""

import errno
import hashlib
import hmac
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

import aiohttp
from ddp_protocol.message import Message, to_json
from ddp_protocol.world import LEAD_SECONDS, WORLD_PATH, GroupAssignment, WorldAnswer

from ddp_operator import __version__
from ddp_operator.engine.open_files import Share, own_share
from ddp_operator.engine.trainers.slots import FairSlots
from ddp_operator.ports import OutOfFilesError

logger = logging.getLogger(__name__)

_SECONDS: Final = 2.0
"""A response of a few hundred bytes from within the cluster takes milliseconds."""
_TRACES_SECONDS: Final = 25.0
"""A launcher waits twelve seconds until other requests for stacks end, then ten for its ranks."""
_RECEIVE_BYTES: Final = 8 * 1024
"""Size of the kernel's receive buffer, and so of each read. Parsing a quarter of a megabyte of the
smallest chunks, or of repeated `100 Continue`, takes a good part of a second."""
_CONNECTIONS: Final = 64
_FEWEST: Final = 8
"""Fewest launchers to poll at a time, however few files are left."""
_OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE)
_FAILURES: Final = (aiohttp.ClientError, OSError, ValueError)


_For = Literal["requests", "polls", "assignments"]


class HttpTrainers:
    """Implements `ports.Trainers`. The first request opens it, and `close` closes it.

    `connections` to launchers: by default as many as this process may open files for.
    """

    def __init__(
        self, *, timeout_seconds: float = _SECONDS, connections: Share | None = None
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._share = connections or own_share()
        self._polls: FairSlots[str] = FairSlots(self._share.polls)
        self._takes_turns = False
        self._sessions: dict[_For, aiohttp.ClientSession] = {}
        """Each purpose has its own connections."""

    async def status(self, address: str) -> bytes | str:
        """See `ports.Trainers`."""
        return await self._get(address, "/status", seconds=self._timeout_seconds)

    async def put_world(
        self, address: str, group: GroupAssignment, *, wait_seconds: int, token: str
    ) -> WorldAnswer | None:
        """See `ports.Trainers`."""
        target, body = f"{WORLD_PATH}?wait={wait_seconds}", to_json(group).encode()
        headers = _signed(token, "PUT", target, body)
        seconds = wait_seconds + self._timeout_seconds
        try:
            async with self._request(
                "PUT",
                f"http://{address}{target}",
                headers=headers,
                data=body,
                seconds=seconds,
                for_="assignments",
            ) as response:
                if response.status not in (200, 409):
                    return None
                answer = WorldAnswer.read(await _content(response))
                return replace(answer, led=response.status == 409 and answer.led)
        except (TimeoutError, *_FAILURES) as error:
            _raise_if_out_of_files(error)
            return None

    async def poll_world(
        self, address: str, *, after: int, wait_seconds: int, lead_seconds: int, token: str
    ) -> bytes | str:
        """See `ports.Trainers`."""
        async with self._polls.of(address):
            wait_seconds = self._poll_seconds(wait_seconds)
            lead_seconds = max(lead_seconds, LEAD_SECONDS if self._takes_turns else 0)
            path = f"{WORLD_PATH}?after={after}&wait={wait_seconds}&lead={lead_seconds}"
            seconds = wait_seconds + self._timeout_seconds
            try:
                headers = _signed(token, "GET", path)
                answer = await self._get(
                    address, path, seconds=seconds, headers=headers, for_="polls"
                )
            except OutOfFilesError:
                # Others have opened files since. Leave some free: a probe must be accepted, too.
                self._polls.resize(max(self._polls.in_use * 3 // 4, _FEWEST))
                raise
            if self._polls.total < self._share.polls:
                self._polls.resize(self._polls.total + 1)
            return answer

    def _poll_seconds(self, wait_seconds: int) -> int:
        """Return how long a launcher may hold a long poll. With more launchers than connections the
        time is shorter, so that each has its turn as often as it would respond by itself.
        """
        wanted, most = self._polls.wanted, self._polls.total
        if (wanted > most) is not self._takes_turns:
            self._takes_turns = wanted > most
            if self._takes_turns:
                logger.warning(
                    "polling the launchers of %d jobs in turns, %d at a time: raise the "
                    "limit of open files (LimitNOFILE of the container runtime)",
                    wanted,
                    most,
                )
        return max(wait_seconds * most // wanted, 1) if wanted > most else wait_seconds

    async def dump_stacks(self, address: str, *, token: str) -> bool:
        """See `ports.Trainers`."""
        return await self._tell(address, "/dump-stacks", token=token)

    async def traces(self, address: str, *, token: str) -> bytes | str:
        """See `ports.Trainers`."""
        return await self._get(
            address,
            "/traces",
            seconds=max(self._timeout_seconds, _TRACES_SECONDS),
            headers=_signed(token, "GET", "/traces"),
        )

    async def checkpoint(self, address: str, *, token: str) -> bool:
        """See `ports.Trainers`."""
        return await self._tell(address, "/checkpoint", token=token)

    async def close(self) -> None:
        """See `ports.Trainers`."""
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.close()

    async def _get(
        self,
        address: str,
        path: str,
        *,
        seconds: float,
        headers: Mapping[str, str] | None = None,
        for_: _For = "requests",
    ) -> bytes | str:
        """Return the content of a response, or a text that says why there is none. Raise
        `OutOfFilesError` only for polls and assignments.
        """
        try:
            async with self._request(
                "GET", f"http://{address}{path}", headers=headers, seconds=seconds, for_=for_
            ) as response:
                if response.status != 200:
                    return f"HTTP status {response.status}"
                return await _content(response)
        except aiohttp.ClientConnectorError as error:
            if for_ != "requests":
                _raise_if_out_of_files(error)
            code = error.os_error.errno
            return f"{address}: {os.strerror(code) if code else error.os_error}"
        except TimeoutError:
            return f"{address}: no answer in {seconds:g} s"
        except _FAILURES as error:
            return f"{address}: {error}"

    async def _tell(self, address: str, path: str, *, token: str) -> bool:
        """POST, and return whether it was accepted."""
        url, headers = f"http://{address}{path}", _signed(token, "POST", path)
        try:
            async with self._request("POST", url, headers=headers) as response:
                return response.status == 202
        except (TimeoutError, *_FAILURES):
            return False

    def _request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        seconds: float | None = None,
        for_: _For = "requests",
    ) -> "aiohttp.client._RequestContextManager":
        # A connection that cannot be made must not hold its place for as long as a response may
        # take.
        timeout = aiohttp.ClientTimeout(
            total=seconds or self._timeout_seconds, sock_connect=self._timeout_seconds
        )
        session = self._sessions.get(for_)
        if session is None:
            most = {"requests": _CONNECTIONS, **self._share._asdict()}
            session = self._sessions[for_] = _session(most[for_])
        return session.request(
            method, url, headers=headers, data=data, timeout=timeout, allow_redirects=False
        )


def _raise_if_out_of_files(error: BaseException) -> None:
    if isinstance(error, OSError) and error.errno in _OUT_OF_FILES:
        raise OutOfFilesError(os.strerror(error.errno)) from None


def _session(connections: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        # Keeping a connection open for ten seconds or more has no benefit.
        connector=aiohttp.TCPConnector(limit=connections, force_close=True, socket_factory=_socket),
        headers={"User-Agent": f"ddp-operator/{__version__}"},
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    )


async def _content(response: aiohttp.ClientResponse) -> bytes:
    """Return the content of a response; of one that is too long, enough to refuse it."""
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > Message.MAX_BYTES:
            break
    return bytes(content)


def _signed(token: str, method: str, target: str, body: bytes = b"") -> dict[str, str]:
    """Return the header by which a launcher recognizes the operator.

    The token signs method, path with query, body and time, but is not sent: the address may belong
    to another pod by now.
    """
    at, digest = int(time.time()), hashlib.sha256(body).hexdigest()
    text = f"{method}\n{target}\n{at}\n{digest}"
    signature = hmac.digest(token.encode(), text.encode(), "sha256").hex()
    return {"Authorization": f"DDP-HMAC-SHA256 {at}:{digest}:{signature}"}


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    return made
