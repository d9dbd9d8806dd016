"""Asks the trainers in pods how far they are.

They are other people's programs at addresses in the cluster, so an answer may be anything, or may
never come: its size and its time are bounded here, it is not followed to another place, and no
proxy stands between.
"""

import os
import socket
from collections.abc import Mapping
from typing import Final

import aiohttp

from ddp_operator import __version__

_SECONDS: Final = 2.0
"""An answer of a few hundred bytes from within the cluster takes milliseconds."""
_LIMIT_BYTES: Final = 64 * 1024
_RECEIVE_BYTES: Final = 8 * 1024
"""That the kernel holds of an answer, and so what is read of it at once: of the smallest chunks, or
of `100 Continue` over and over, parsing a quarter of a megabyte takes a good part of a second."""
_CONNECTIONS: Final = 64
_FAILURES: Final = (aiohttp.ClientError, OSError, ValueError)


class HttpTrainers:
    """Implements `ports.Trainers`; the first question opens it, and `close` ends it."""

    def __init__(self, *, timeout_seconds: float = _SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        self._session: aiohttp.ClientSession | None = None

    async def status(self, address: str) -> bytes | str:
        """See `ports.Trainers`."""
        try:
            async with self._request("GET", f"http://{address}/status") as response:
                if response.status != 200:
                    return f"HTTP status {response.status}"
                content = bytearray()
                async for part in response.content.iter_any():
                    content += part
                    if len(content) > _LIMIT_BYTES:
                        return f"an answer of more than {_LIMIT_BYTES} bytes"
                return bytes(content)
        except aiohttp.ClientConnectorError as error:
            code = error.os_error.errno
            return f"{address}: {os.strerror(code) if code else error.os_error}"
        except TimeoutError:
            return f"{address}: no answer in {self._timeout_seconds:g} s"
        except _FAILURES as error:
            return f"{address}: {error}"

    async def dump_stacks(self, address: str, *, token: str) -> bool:
        """See `ports.Trainers`."""
        return await self._tell(f"http://{address}/dump-stacks", token=token)

    async def checkpoint(self, address: str, *, token: str) -> bool:
        """See `ports.Trainers`."""
        return await self._tell(f"http://{address}/checkpoint", token=token)

    async def close(self) -> None:
        """See `ports.Trainers`."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _tell(self, url: str, *, token: str) -> bool:
        """POST; whether that was accepted."""
        headers = {"Authorization": f"Bearer {token}"}
        try:
            async with self._request("POST", url, headers=headers) as response:
                return response.status == 202
        except (TimeoutError, *_FAILURES):
            return False

    def _request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None
    ) -> "aiohttp.client._RequestContextManager":
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # A connection kept open for ten seconds and more serves nobody.
                connector=aiohttp.TCPConnector(
                    limit=_CONNECTIONS, force_close=True, socket_factory=_socket
                ),
                timeout=aiohttp.ClientTimeout(total=self._timeout_seconds),
                headers={"User-Agent": f"ddp-operator/{__version__}"},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session.request(method, url, headers=headers, allow_redirects=False)


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    return made
