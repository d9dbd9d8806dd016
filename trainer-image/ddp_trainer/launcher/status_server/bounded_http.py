"""HTTP that is bounded in a request's time and size, and in how many there are at once."""

from __future__ import annotations

import io
import logging
import socket
import socketserver
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

_REQUEST_SECONDS = 5.0
"""For a client that connects and says nothing, or that says it one letter at a time."""
_AT_ONCE = 64
"""More connections are closed unheard: they take threads and files, which ranks need to start."""

_logger = logging.getLogger(__name__)


class BoundedServer(socketserver.ThreadingTCPServer):
    """Answers each request in a thread of its own, while there are few."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, family: socket.AddressFamily, port: int, handler: type[BoundedHandler]
    ) -> None:
        """On all addresses of a family; that of IPv6 takes IPv4 in.

        Raises:
            OSError: the port cannot be had.
        """
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        self.address_family = family
        super().__init__(("", port), handler)

    def server_bind(self) -> None:
        """Take IPv4 in."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, while there are few."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()  # no thread could be started
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The whole life of a request's thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """A client that went away, as a rule."""
        _logger.debug("a request from %s failed", client_address, exc_info=True)


class _Incoming(io.RawIOBase):
    """A request, as far as it comes within its time; what is left of that, its answer may take."""

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
    """One request."""

    timeout = _REQUEST_SECONDS
    wbufsize = io.DEFAULT_BUFFER_SIZE
    """An answer's head and body go out together: between two writes, a request's time may end."""

    _content: bytes | None = None
    """The body, once it has been read."""

    def setup(self) -> None:
        """Give the request its time."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Incoming(self.connection, _REQUEST_SECONDS))

    def content(self, *, most: int) -> bytes | None:
        """The body of at most so many bytes; None for another, which is refused."""
        if self._content is not None and len(self._content) <= most:
            return self._content
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > most:
            self.refuse(HTTPStatus.BAD_REQUEST, f"at most {most} bytes of JSON")
            return None
        self._content = self.rfile.read(int(length))
        return self._content

    def refuse(self, code: HTTPStatus, reason: str) -> None:
        """Answer with words for whoever asked."""
        self.answer(code, f"{reason}\n", "text/plain; charset=utf-8")

    def answer(self, code: HTTPStatus, content: str | bytes, content_type: str) -> None:
        """Answer, and be done."""
        body = content.encode() if isinstance(content, str) else content
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Polls are no news."""
