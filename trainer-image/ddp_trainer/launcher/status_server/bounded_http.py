"""An HTTP server with limits on the time, size and number of requests.

Clients that have not shown the job's token share a small table of connections, and cannot make
those wait that have.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import select
import socket
import socketserver
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from ddp_protocol.server.connections import Connections
from ddp_protocol.server.refusals import RefusalLog

_STRANGERS = 32
"""Connections that have not shown the token. Each takes a thread and files, which ranks need, too.
"""
_STRANGER_SECONDS = 2.0
"""Limit for the headers of a request, and for an answer that needs no token."""
_STRANGER_BYTES = 8 * 1024
"""Limit for all headers together."""
_ADMITTED = 64
"""Connections that have shown the token. Further ones are closed; their clients retry."""
_ADMITTED_SECONDS = 5.0
"""Limit for the body of a request with the token, and for sending the answer."""
_ADMITTED_BYTES = 1 << 30
"""Each request has its own limit."""
_LOGGED = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.REQUEST_URI_TOO_LONG,
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    HTTPStatus.NOT_IMPLEMENTED,
}
"""Refusals that no launcher, rank or operator causes in normal operation."""

_logger = logging.getLogger(__name__)


class RefusedError(Exception):
    """A request is refused; the text says why."""

    def __init__(self, code: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class BoundedServer(socketserver.ThreadingTCPServer):
    """Answers each request in its own thread, up to a limit of threads."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 512

    def __init__(
        self, family: socket.AddressFamily, port: int, handler: type[BoundedHandler]
    ) -> None:
        """Listen on all addresses of a family; IPv6 includes IPv4.

        Raises:
            OSError: the port is not available.
        """
        self.refusals = RefusalLog()
        self._lock = threading.Lock()
        """Held while connections enter or leave a table. Those in a table are open."""
        self._strangers = Connections[socket.socket](_STRANGERS)
        self._admitted: set[socket.socket] = set()
        self.address_family = family
        super().__init__(("", port), handler)

    def server_bind(self) -> None:
        """Accept IPv4 on IPv6 sockets, too."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the request; the thread of a connection without room ends."""
        with self._lock:
            closed = self._strangers.add(request, address_of(client_address))
            if closed:
                with contextlib.suppress(OSError):
                    closed[0].shutdown(socket.SHUT_RDWR)
        if closed:
            self._refuse(closed[1], "too many connections without the token")
        super().process_request(request, client_address)

    def _refuse(self, address: str, reason: str) -> None:
        self.refusals.add(address, 0, "a connection", reason)

    def admit(self, connection: socket.socket, address: str) -> None:
        """Move a connection to those that have shown the token.

        Raises:
            ConnectionError: there are too many of them, or it was closed.
        """
        with self._lock:
            if not self._strangers.remove(connection):
                raise ConnectionAbortedError("the connection was closed")
            is_full = len(self._admitted) >= _ADMITTED
            if not is_full:
                self._admitted.add(connection)
        if is_full:
            self._refuse(address, "too many connections with the token")
            raise ConnectionAbortedError("too many connections")

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._strangers.remove(request)
            self._admitted.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """Log the error at debug level: usually the client has disconnected."""
        _logger.debug("a request from %s failed", client_address, exc_info=True)


class _Incoming(io.RawIOBase):
    """Reads a request within its limits of time and size; the answer may use the remaining time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.allow(_STRANGER_BYTES, _STRANGER_SECONDS)

    def allow(self, size: int, seconds: float) -> None:
        """Set the limits from now on."""
        self._left = size
        self._ends_at = time.monotonic() + seconds
        self._connection.settimeout(seconds)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds = self._ends_at - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("a request took too long")
        if not self._left:
            reason = f"headers: at most {_STRANGER_BYTES} bytes"
            raise RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason)
        self._connection.settimeout(seconds)
        size = self._connection.recv_into(buffer, min(len(buffer), self._left))
        self._left -= size
        return size


class BoundedHandler(BaseHTTPRequestHandler):
    """Handles one request."""

    server: BoundedServer
    wbufsize = io.DEFAULT_BUFFER_SIZE
    """Headers and body are sent together: the time limit could end between two writes."""
    # An answer to a request that cannot be parsed needs these, too.
    requestline = ""
    request_version = "HTTP/1.0"
    command = ""
    path = ""

    _digest: str | None = None
    """SHA-256 that the body must have; None: any."""

    def setup(self) -> None:
        """Start the time limit of the request."""
        super().setup()
        self.rfile.close()
        self._incoming = _Incoming(self.connection)
        self.rfile = io.BufferedReader(self._incoming)

    def handle(self) -> None:
        """Handle the request, and answer if it is refused."""
        try:
            super().handle()
        except RefusedError as refused:
            self.refuse(refused.code, str(refused))

    def admit(self, *, digest: str | None = None) -> None:
        """Treat the request as one that has shown the token from now on.

        `digest`: SHA-256 of the body that the token signs; None: it signs none.

        Raises:
            ConnectionError: there are too many of them.
        """
        self.server.admit(self.connection, self.client)
        self._digest = digest
        self._incoming.allow(_ADMITTED_BYTES, _ADMITTED_SECONDS)

    @property
    def client(self) -> str:
        """The address that the request comes from."""
        return address_of(self.client_address)

    @property
    def has_hung_up(self) -> bool:
        """True if the client has closed the connection, so that no answer reaches it."""
        poller = select.poll()
        poller.register(self.connection, select.POLLRDHUP)
        return bool(poller.poll(0))

    def content(self, *, most: int) -> bytes:
        """Return the body of at most `most` bytes.

        Raises:
            RefusedError: it has no valid length, or is not the signed one.
            OSError: it did not arrive in time.
        """
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > len(str(most)) or int(length) > most:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"at most {most} bytes of JSON")
        content = self.rfile.read(int(length))
        if len(content) < int(length):
            raise ConnectionAbortedError("the request ended early")
        if self._digest not in (None, hashlib.sha256(content).hexdigest()):
            raise RefusedError(HTTPStatus.FORBIDDEN, "the body is not the signed one")
        return content

    def refuse(self, code: HTTPStatus, reason: str) -> None:
        """Answer with an error and a reason in plain text."""
        self.answer(code, f"{reason}\n", "text/plain; charset=utf-8")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is no valid HTTP."""
        self.refuse(HTTPStatus(code), message or explain or HTTPStatus(code).phrase)

    def answer(
        self,
        code: HTTPStatus,
        content: str | bytes,
        content_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send the whole answer."""
        body = content.encode() if isinstance(content, str) else content
        if code in _LOGGED:
            request = f"{self.command} {self.path}" if self.command else "a request"
            self.server.refusals.add(self.client, code, request, body.decode(errors="replace"))
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: polls are not worth a log line."""


def address_of(client_address: Any) -> str:
    """Return the address of a client; of an IPv4 client on an IPv6 socket, its IPv4 address."""
    return str(client_address[0]).removeprefix("::ffff:")
