"""Serves a pod's status over HTTP: GET /status, /metrics; POST /stacks, /profile, /trace,
/dump-stacks, /checkpoint, /rank-0, and from within the pod /trainjob-status.

It runs in a thread of the launcher, which trains nothing and so always has time to answer. What can
go wrong here is no reason to end a training. Anybody may read; only the job's own pods and the
operator may tell it something.
"""

from __future__ import annotations

import io
import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs

from ddp_trainer.launcher import trainjob
from ddp_trainer.launcher.trainjob import TrainJobStatus
from ddp_trainer.membership import admission, announcement
from ddp_trainer.membership.announcement import AnnouncedAddress
from ddp_trainer.settings.environment import Placement
from ddp_trainer.system.logs import Complaints
from ddp_trainer.telemetry import profile, prometheus
from ddp_trainer.telemetry.profile import ProfileError, ProfileFiles
from ddp_trainer.telemetry.request import CheckpointRequest
from ddp_trainer.telemetry.stacks import ask_for_stacks, listening, read_stacks
from ddp_trainer.telemetry.status import Status, StatusFile
from ddp_trainer.telemetry.wire import to_json

_REQUEST_SECONDS = 5.0
"""For a client that connects and says nothing, or that says it one letter at a time."""
_AT_ONCE = 64
"""More connections are closed unheard: they take threads and files, which ranks need to start."""

_logger = logging.getLogger(__name__)


class Pod(Protocol):
    """What the server asks the launcher for, from another thread."""

    @property
    def rank_restarts(self) -> int:
        """Ranks that were started again."""

    def rank_processes(self) -> Mapping[int, int]:
        """Process IDs by rank."""


def serve_status(
    port: int, path: Path, pod: Pod, placement: Placement, *, trainjob_token: str = ""
) -> None:
    """Serve the status file at `path` from a thread, to the end of this process.

    `trainjob_token`: of scripts that report as in a TrainJob; empty: none does.
    A port that cannot be had is logged, and nothing is served.
    """
    try:
        server = _listen(port, path, pod, placement, trainjob_token)
    except OSError as error:
        _logger.warning("cannot serve /status on port %d: %s", port, error)
        return
    if admission.placed_by_earlier_operator(placement):
        _logger.warning("without DDP_TOKEN, anybody may send POST requests to port %d", port)
    threading.Thread(target=server.serve_forever, name="status", daemon=True).start()


def _listen(port: int, path: Path, pod: Pod, placement: Placement, token: str) -> _Server:
    """On IPv6 and IPv4, or on IPv4 alone where that is all there is."""
    try:
        return _Server(socket.AF_INET6, port, path, pod, placement, token)
    except OSError:
        return _Server(socket.AF_INET, port, path, pod, placement, token)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        family: socket.AddressFamily,
        port: int,
        path: Path,
        pod: Pod,
        placement: Placement,
        trainjob_token: str,
    ) -> None:
        self.pod = pod
        self.placement = placement
        self.path = path
        self._file = StatusFile(path)
        self.rank_0 = AnnouncedAddress(path)
        self.checkpoint = CheckpointRequest(path)
        self.stacks = threading.Lock()
        """Held by who asks for them: each process has one file for its answers."""
        self.trainjob = TrainJobStatus(self._file, trainjob_token) if trainjob_token else None
        self._complaints = Complaints(_logger, "the status file is of no use")
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        self.address_family = family
        super().__init__(("", port), _Handler)

    def server_bind(self) -> None:
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

    def status(self) -> Status | None:
        """What the training says; what it says wrong is logged once."""
        try:
            return self._file.read()
        except (OSError, ValueError) as error:
            self._complaints.of(error)
            return None


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


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_SECONDS

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Incoming(self.connection, _REQUEST_SECONDS))

    def do_GET(self) -> None:
        status = self.server.status()
        if self.path == "/metrics":
            text = prometheus.render(status, rank_restarts=self.server.pod.rank_restarts)
            self._answer(HTTPStatus.OK, text, prometheus.CONTENT_TYPE)
        elif self.path == "/status" and status is not None:
            text = to_json(replace(status, measurements=None))
            self._answer(HTTPStatus.OK, text, "application/json")
        elif self.path == "/status":
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "nothing to report yet")
        else:
            self._refuse_path()

    def do_POST(self) -> None:
        if self.path == trainjob.PATH and self.server.trainjob is not None:
            self._take_progress(self.server.trainjob)
            return
        told = {
            "/stacks": self._show_stacks,
            "/profile": self._ask_for_profile,
            "/trace": self._show_trace,
            "/dump-stacks": self._dump_stacks,
            "/checkpoint": self._ask_for_checkpoint,
            announcement.PATH: self._take_announcement,
        }.get(self.path.partition("?")[0])
        if told is None:
            self._refuse_path()
        elif self._is_admitted():
            told()
        else:
            self._refuse(HTTPStatus.FORBIDDEN, admission.REFUSAL)

    def _is_admitted(self) -> bool:
        return admission.admits(
            self.server.placement,
            authorization=self.headers.get("Authorization"),
            client=self.client_address[0],
        )

    def _show_stacks(self) -> None:
        if not self.server.stacks.acquire(blocking=False):
            self._refuse(HTTPStatus.CONFLICT, "somebody else is asking for them: try again")
            return
        try:
            found = read_stacks(self.server.pod.rank_processes(), self.server.path)
        finally:
            self.server.stacks.release()
        body = {"ranks": [each.to_json() for each in found]}
        self._answer(HTTPStatus.OK, json.dumps(body), "application/json")

    def _ask_for_profile(self) -> None:
        try:
            ranks, steps = profile.wanted(self._query())
            for rank in ranks:
                self._files(rank).ask(steps)
        except (ValueError, ProfileError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except OSError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"cannot ask for it: {error}")
        else:
            self._answer(HTTPStatus.ACCEPTED, "", "text/plain; charset=utf-8")

    def _show_trace(self) -> None:
        try:
            [rank], _ = profile.wanted(self._query())
            files = self._files(rank)
            trace = files.answer()
        except (ValueError, ProfileError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except OSError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"cannot read it: {error}")
        else:
            if trace is None:
                self._answer(HTTPStatus.ACCEPTED, "", "text/plain; charset=utf-8")
            else:
                self._answer(HTTPStatus.OK, trace, "application/gzip")
                files.forget()

    def _query(self) -> dict[str, list[str]]:
        return parse_qs(self.path.partition("?")[2], max_num_fields=4)

    def _files(self, rank: int) -> ProfileFiles:
        if rank not in self.server.pod.rank_processes():
            raise ProfileError(f"rank {rank} does not run in this pod")
        return ProfileFiles(self.server.path, rank)

    def _dump_stacks(self) -> None:
        ranks = listening(self.server.pod.rank_processes())
        if ranks:
            body = {"ranks": list(ranks)}
            self._answer(HTTPStatus.ACCEPTED, json.dumps(body), "application/json")
            ask_for_stacks(ranks)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "no rank handles SIGUSR1")

    def _ask_for_checkpoint(self) -> None:
        try:
            asked = self.server.checkpoint.make()
        except OSError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"cannot ask for it: {error}")
            return
        if asked:
            self._answer(HTTPStatus.ACCEPTED, "", "text/plain; charset=utf-8")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "no rank of this pod saves when it is asked to")

    def _take_announcement(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > announcement.MAX_BYTES:
            self._refuse(HTTPStatus.BAD_REQUEST, f"at most {announcement.MAX_BYTES} bytes of JSON")
            return
        try:
            told = announcement.Announcement.parse(self.rfile.read(int(length)))
            if told.concerns(self.server.placement):
                self.server.rank_0.write(told.address)
                self._answer(HTTPStatus.OK, "", "text/plain; charset=utf-8")
            else:
                self._refuse(HTTPStatus.CONFLICT, "this pod is of another job or attempt")
        except ValueError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except OSError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"cannot keep it: {error}")

    def _take_progress(self, script: TrainJobStatus) -> None:
        inside = admission.is_loopback(self.client_address[0])
        if not inside or not script.admits(self.headers.get("Authorization")):
            words = f"only for this pod's own script, with the token in ${trainjob.TOKEN}"
            self._refuse(HTTPStatus.FORBIDDEN, words)
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > trainjob.MAX_BYTES:
            self._refuse(HTTPStatus.BAD_REQUEST, f"at most {trainjob.MAX_BYTES} bytes of JSON")
            return
        try:
            script.take(self.rfile.read(int(length)))
        except ValueError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except OSError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"cannot keep it: {error}")
        else:
            self._answer(HTTPStatus.OK, "{}", "application/json")

    def _refuse_path(self) -> None:
        told = ("/stacks", "/profile", "/trace", "/dump-stacks", "/checkpoint", announcement.PATH)
        known = ("/status", "/metrics", *told)
        if self.path.partition("?")[0] in known:
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, f"not by {self.command}")
        else:
            self._refuse(
                HTTPStatus.NOT_FOUND,
                f"there are GET /status, GET /metrics, {', '.join(f'POST {p}' for p in told)}",
            )

    def _refuse(self, code: HTTPStatus, reason: str) -> None:
        self._answer(code, f"{reason}\n", "text/plain; charset=utf-8")

    def _answer(self, code: HTTPStatus, content: str | bytes, content_type: str) -> None:
        body = content.encode() if isinstance(content, str) else content
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Polls are no news."""
