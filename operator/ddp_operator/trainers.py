"""Asks the trainers in pods how far they are.

They are other people's programs at addresses in the cluster, so an answer may be anything, or may
never come: its size and its time are bounded here, it is not followed to another place, and no
proxy stands between.
"""

import os
import socket
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import orjson

from ddp_operator import __version__
from ddp_operator.ports import Told

_SECONDS: Final = 2.0
"""An answer of a few hundred bytes from within the cluster takes milliseconds."""
_LIMIT_BYTES: Final = 64 * 1024
_RECEIVE_BYTES: Final = 8 * 1024
"""That the kernel holds of an answer, and so what is read of it at once: of the smallest chunks, or
of `100 Continue` over and over, parsing a quarter of a megabyte takes a good part of a second."""
_CONNECTIONS: Final = 64
_WAITING: Final = 4096
"""Answers that are waited for at a time, one for each job that has something to tell, and those of
launchers that are told something; a process may have some more files open as a rule."""
_FAILURES: Final = (aiohttp.ClientError, OSError, ValueError)


class HttpTrainers:
    """Implements `ports.Trainers`; the first question opens it, and `close` ends it."""

    def __init__(self, *, timeout_seconds: float = _SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        self._session: aiohttp.ClientSession | None = None
        self._waiting: aiohttp.ClientSession | None = None

    async def status(self, address: str) -> bytes | str:
        """See `ports.Trainers`."""
        return await self._get(address, "/status", seconds=self._timeout_seconds)

    async def tell_world(
        self, address: str, document: Mapping[str, Any], *, wait_seconds: int, token: str
    ) -> Told | None:
        """See `ports.Trainers`."""
        url, body = f"http://{address}/world?wait={wait_seconds}", orjson.dumps(document)
        seconds = wait_seconds + self._timeout_seconds
        try:
            async with self._request(
                "PUT", url, headers=_bearer(token), data=body, seconds=seconds, waits=True
            ) as response:
                if response.status not in (200, 409):
                    return None
                answer = orjson.loads(await _content(response))
                known = answer.get("generation") if isinstance(answer, dict) else None
                if type(known) is not int or known < 0:
                    return None
                led = response.status == 409 and answer.get("led") is True
                return Told(known, answer.get("ended") is True, led)
        except (TimeoutError, *_FAILURES):
            return None

    async def hear_world(
        self, address: str, *, after: int, wait_seconds: int, token: str
    ) -> bytes | str:
        """See `ports.Trainers`."""
        path = f"/world?after={after}&wait={wait_seconds}"
        seconds = wait_seconds + self._timeout_seconds
        return await self._get(address, path, seconds=seconds, headers=_bearer(token), waits=True)

    async def dump_stacks(self, address: str, *, token: str) -> bool:
        """See `ports.Trainers`."""
        return await self._tell(f"http://{address}/dump-stacks", token=token)

    async def checkpoint(self, address: str, *, token: str) -> bool:
        """See `ports.Trainers`."""
        return await self._tell(f"http://{address}/checkpoint", token=token)

    async def close(self) -> None:
        """See `ports.Trainers`."""
        for session in (self._session, self._waiting):
            if session is not None:
                await session.close()
        self._session = self._waiting = None

    async def _get(
        self,
        address: str,
        path: str,
        *,
        seconds: float,
        headers: Mapping[str, str] | None = None,
        waits: bool = False,
    ) -> bytes | str:
        try:
            async with self._request(
                "GET", f"http://{address}{path}", headers=headers, seconds=seconds, waits=waits
            ) as response:
                if response.status != 200:
                    return f"HTTP status {response.status}"
                return await _content(response)
        except aiohttp.ClientConnectorError as error:
            code = error.os_error.errno
            return f"{address}: {os.strerror(code) if code else error.os_error}"
        except TimeoutError:
            return f"{address}: no answer in {seconds:g} s"
        except _FAILURES as error:
            return f"{address}: {error}"

    async def _tell(self, url: str, *, token: str) -> bool:
        """POST; whether that was accepted."""
        try:
            async with self._request("POST", url, headers=_bearer(token)) as response:
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
        waits: bool = False,
    ) -> "aiohttp.client._RequestContextManager":
        """`waits`: the answer may take as long as nothing happens, and no place from others."""
        # Where nobody may connect, no place is held for as long as an answer may take.
        timeout = aiohttp.ClientTimeout(
            total=seconds or self._timeout_seconds, sock_connect=self._timeout_seconds
        )
        if waits:
            self._waiting = session = self._waiting or _session(_WAITING)
        else:
            self._session = session = self._session or _session(_CONNECTIONS)
        return session.request(
            method, url, headers=headers, data=data, timeout=timeout, allow_redirects=False
        )


def _session(connections: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        # A connection kept open for ten seconds and more serves nobody.
        connector=aiohttp.TCPConnector(limit=connections, force_close=True, socket_factory=_socket),
        headers={"User-Agent": f"ddp-operator/{__version__}"},
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    )


async def _content(response: aiohttp.ClientResponse) -> bytes:
    """The whole answer.

    Raises:
        ValueError: it is longer than any should be.
    """
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > _LIMIT_BYTES:
            raise ValueError(f"an answer of more than {_LIMIT_BYTES} bytes")
    return bytes(content)


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    return made
