"""An HTTP server with limits on the time, size and number of requests."""

from __future__ import annotations

import io
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

_REQUEST_SECONDS = 5.0
"""Limit for clients that connect and send nothing, or one byte at a time."""
_AT_ONCE = 64
"""Further connections are closed at once: they take threads and files that ranks need to start."""

_logger = logging.getLogger(__name__)


class BoundedServer(socketserver.ThreadingTCPServer):
    """Answers each request in its own thread, up to a limit of threads."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, family: socket.AddressFamily, port: int, handler: type[BoundedHandler]
    ) -> None:
        """Listen on all addresses of a family; IPv6 includes IPv4.

        Raises:
            OSError: the port is not available.
        """
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        self.address_family = family
        super().__init__(("", port), handler)

    def server_bind(self) -> None:
        """Accept IPv4 on IPv6 sockets, too."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the request, or close it when there are too many."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()  # no thread could be started
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle the request in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """Log the error at debug level: usually the client has disconnected."""
        _logger.debug("a request from %s failed", client_address, exc_info=True)


class _Incoming(io.RawIOBase):
    """Reads a request within its time limit; the answer may use the remaining time."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._ends_at = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError("a request took too long")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class BoundedHandler(BaseHTTPRequestHandler):
    """Handles one request."""

    timeout = _REQUEST_SECONDS
    wbufsize = io.DEFAULT_BUFFER_SIZE
    """Headers and body are sent together: the time limit could end between two writes."""

    _content: bytes | None = None
    """The body, once it is read."""

    def setup(self) -> None:
        """Start the time limit of the request."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Incoming(self.connection, _REQUEST_SECONDS))

    def content(self, *, most: int) -> bytes | None:
        """Return the body of at most `most` bytes; None: it was invalid and is refused."""
        if self._content is not None and len(self._content) <= most:
            return self._content
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > most:
            self.refuse(HTTPStatus.BAD_REQUEST, f"at most {most} bytes of JSON")
            return None
        self._content = self.rfile.read(int(length))
        return self._content

    def refuse(self, code: HTTPStatus, reason: str) -> None:
        """Answer with an error and a reason in plain text."""
        self.answer(code, f"{reason}\n", "text/plain; charset=utf-8")

    def answer(
        self,
        code: HTTPStatus,
        content: str | bytes,
        content_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send the whole answer."""
        body = content.encode() if isinstance(content, str) else content
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
