"""Serves a pod's status over HTTP: GET /status, /metrics, /world, /traces; PUT /world; POST
/stacks, /profile, /trace, /dump-stacks, /checkpoint, /rank-0, /failures, and from within the pod
/trainjob-status; and requests about snapshots in memory, below /memory.

It runs in a thread of the launcher, which does not train and so always has time to answer. Errors
here never end a training. Anyone may read the status and metrics; only the job's own pods and the
operator may send other requests. A request may be overheard and repeated. So each one only moves a
state forward (a higher generation, a newer step), or has no second effect.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qs

from ddp_protocol.message import to_json
from ddp_protocol.world import FAILURES_PATH, WORLD_PATH, FailureReport, GroupAssignment

from ddp_trainer.launcher.code import PodCode
from ddp_trainer.launcher.port_conflicts import taken
from ddp_trainer.launcher.status_server import trainjob
from ddp_trainer.launcher.status_server.bounded_http import (
    BoundedHandler,
    BoundedServer,
    RefusedError,
)
from ddp_trainer.launcher.status_server.trainjob import TrainJobStatus
from ddp_trainer.launcher.world.requests import WorldRequests
from ddp_trainer.process_group import admission
from ddp_trainer.process_group.rendezvous import announcement
from ddp_trainer.process_group.rendezvous.announcement import AnnouncedAddress
from ddp_trainer.settings.environment import Placement
from ddp_trainer.system.logs import DistinctErrors
from ddp_trainer.telemetry import prometheus
from ddp_trainer.telemetry.requests import profile, traces
from ddp_trainer.telemetry.requests.checkpoint import CheckpointRequest
from ddp_trainer.telemetry.requests.profile import ProfileError, ProfileFiles
from ddp_trainer.telemetry.requests.stacks import (
    RankStacks,
    ask_for_stacks,
    listening,
    read_stacks,
)
from ddp_trainer.telemetry.requests.traces import RankTrace
from ddp_trainer.telemetry.status import Status, StatusFile

if TYPE_CHECKING:  # it takes memory that only jobs with snapshots in memory need
    from ddp_trainer.launcher.memory.protocol.requests import MemoryRequests

_COMMANDS = 256
"""Signed commands to remember. They come a few times an hour, and are valid for minutes."""
_SMALL_BYTES = max(GroupAssignment.MAX_BYTES, FailureReport.MAX_BYTES, announcement.MAX_BYTES)
_TURN_SECONDS = 12.0
"""How long a request for stacks waits for its turn; the one before it takes ten seconds."""
_STACKS_AT_ONCE = 4
"""Requests for stacks that run or wait. Others are refused, so that threads remain for polls."""
_POLL_SECONDS = 3600.0
"""How often the server checks for its shutdown, which never happens. A waiting pod stays asleep."""
_logger = logging.getLogger(__name__)


class Pod(Protocol):
    """The launcher's data that the server reads from its own thread."""

    @property
    def rank_restarts(self) -> int:
        """Number of ranks that were restarted."""

    def rank_processes(self) -> Mapping[int, int]:
        """Return the process IDs of running ranks, by rank."""

    def rank_ends(self) -> Mapping[int, int]:
        """Return the exit codes of ranks that ended and will not be restarted, by rank."""


def serve_status(
    port: int,
    path: Path,
    pod: Pod,
    placement: Placement,
    *,
    trainjob_token: str = "",
    world: WorldRequests | None = None,
    memory: MemoryRequests | None = None,
    code: PodCode | None = None,
) -> bool:
    """Serve the status file at `path` from a thread, to the end of this process.

    `trainjob_token`: token of scripts that report as in a TrainJob; empty: none does.
    `world`: handles requests about the pod's assignment; None: the assignment cannot change.
    `memory`: handles requests about snapshots in memory; None: the job keeps none.
    `code`: the pod's code, which the status names; None: it cannot change.
    Returns False if the port is not available, which is logged.
    """
    try:
        server = _listen(port, path, pod, placement, trainjob_token)
    except OSError as error:
        _logger.warning("cannot serve /status: %s", taken(port, error))
        return False
    server.world, server.memory, server.code = world, memory, code
    serve = partial(server.serve_forever, poll_interval=_POLL_SECONDS)
    threading.Thread(target=serve, name="launcher: serves the status", daemon=True).start()
    return True


def _listen(port: int, path: Path, pod: Pod, placement: Placement, token: str) -> _Server:
    """Listen on IPv6 and IPv4, or only on IPv4 if there is no IPv6."""
    try:
        return _Server(socket.AF_INET6, port, path, pod, placement, token)
    except OSError:
        return _Server(socket.AF_INET, port, path, pod, placement, token)


class _Server(BoundedServer):
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
        self.stacks_places = threading.BoundedSemaphore(_STACKS_AT_ONCE)
        self.stacks = threading.Lock()
        """Held during a request for stacks: each process has a single file for its answers."""
        self.trainjob = TrainJobStatus(self._file, trainjob_token) if trainjob_token else None
        self.world: WorldRequests | None = None
        self.memory: MemoryRequests | None = None
        self.code: PodCode | None = None
        self._errors = DistinctErrors(_logger, "cannot read the status file")
        self._commands: deque[str] = deque(maxlen=_COMMANDS)
        self._commands_lock = threading.Lock()
        super().__init__(family, port, _Handler)

    def status(self) -> Status | None:
        """Return the training's status, if there is a valid one; log an error once."""
        # The file is removed before the code changes. So if it changes just now, newer numbers may
        # get the name of the code before, but never older ones that of new code.
        try:
            code_id = self.code.id if self.code is not None else None
            status = self._file.read()
        except (OSError, ValueError) as error:
            self._errors.log(error)
            return None
        return replace(status, code=code_id) if status is not None else None

    def is_repeated(self, authorization: str) -> bool:
        """Return True if a command with this signature was here before; remember it."""
        if admission.signed_digest(authorization) is None:
            return False
        with self._commands_lock:
            if authorization in self._commands:
                return True
            self._commands.append(authorization)
        return False


class _Handler(BoundedHandler):
    server: _Server

    def do_GET(self) -> None:  # noqa: N802 - so it is called
        status = self.server.status()
        if self.path == "/metrics":
            text = prometheus.render(status, rank_restarts=self.server.pod.rank_restarts)
            self.answer(HTTPStatus.OK, text, prometheus.CONTENT_TYPE)
        elif self.path == "/status" and status is not None:
            text = to_json(replace(status, measurements=None))
            self.answer(HTTPStatus.OK, text, "application/json")
        elif self.path == "/status":
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "nothing to report yet")
        elif self._path() == WORLD_PATH and self.server.world is not None:
            self._if_admitted(partial(self.server.world.get_news, self))
        elif self.path == traces.PATH:
            self._if_admitted(self._show_traces)
        elif not self._handle_memory():
            self._refuse_path()

    def do_PUT(self) -> None:  # noqa: N802 - so it is called
        if self._path() == WORLD_PATH and self.server.world is not None:
            self._if_admitted(partial(self.server.world.put_assignment, self))
        elif not self._handle_memory():
            self._refuse_path()

    def do_POST(self) -> None:  # noqa: N802 - so it is called
        if self.path == trainjob.PATH and self.server.trainjob is not None:
            self._take_progress(self.server.trainjob)
            return
        told = {
            "/stacks": self._show_stacks,
            "/profile": self._ask_for_profile,
            "/trace": self._show_trace,
            "/dump-stacks": self._dump_stacks,
            "/checkpoint": self._ask_for_checkpoint,
        }.get(self._path())
        if told is not None:
            self._if_admitted(partial(self._once, told))
        elif self._path() == announcement.PATH:
            self._if_admitted(self._take_announcement)
        elif self._path() == FAILURES_PATH and self.server.world is not None:
            self._if_admitted(partial(self.server.world.post_failure, self))
        elif not self._handle_memory():
            self._refuse_path()

    def _handle_memory(self) -> bool:
        """Answer a request about snapshots in memory; return False if it is none."""
        memory = self.server.memory
        if memory is None or not memory.serves(self._path()):
            return False
        self._if_admitted(partial(memory.handle, self))
        return True

    def _path(self) -> str:
        return self.path.partition("?")[0]

    def _if_admitted(self, do: Callable[[], None]) -> None:
        authorization = self.headers.get("Authorization")
        if admission.admits(
            self.server.placement,
            method=self.command,
            target=self.path,
            authorization=authorization,
            client=self.client,
        ):
            self.admit(digest=admission.signed_digest(authorization))
            do()
        else:
            self._forbid(admission.REFUSAL)

    def _forbid(self, reason: str) -> None:
        with suppress(RefusedError, OSError):  # closing with unread data would discard the answer
            self.content(most=_SMALL_BYTES)
        self.refuse(HTTPStatus.FORBIDDEN, reason)

    def _once(self, do: Callable[[], None]) -> None:
        """Run a command, but not when a signed request is repeated."""
        if self.server.is_repeated(self.headers.get("Authorization", "")):
            self.answer(HTTPStatus.ACCEPTED, "", "text/plain; charset=utf-8")
        else:
            do()

    def _show_stacks(self) -> None:
        self._ask_ranks(read_stacks)

    def _show_traces(self) -> None:
        def read(ranks: Mapping[int, int], path: Path) -> Sequence[RankTrace]:
            found = traces.read_traces(ranks, path)
            ended = traces.of_ended(self.server.pod.rank_ends())
            return traces.with_dumps([*found, *ended], path)

        self._ask_ranks(read)

    def _ask_ranks(
        self, read: Callable[[Mapping[int, int], Path], Sequence[RankStacks | RankTrace]]
    ) -> None:
        places, turn = self.server.stacks_places, self.server.stacks
        has_place = places.acquire(blocking=False)
        has_turn = has_place and turn.acquire(timeout=_TURN_SECONDS)
        try:
            found = read(self.server.pod.rank_processes(), self.server.path) if has_turn else None
        finally:
            if has_turn:
                turn.release()
            if has_place:
                places.release()
        if found is None:
            self.refuse(HTTPStatus.CONFLICT, "other requests for stacks are running: try again")
            return
        body = {"ranks": [each.to_json() for each in found]}
        self.answer(HTTPStatus.OK, json.dumps(body), "application/json")

    def _ask_for_profile(self) -> None:
        try:
            ranks, steps = profile.wanted(self._query())
            for rank in ranks:
                self._files(rank).ask(steps)
        except (ValueError, ProfileError) as error:
            self.refuse(HTTPStatus.BAD_REQUEST, str(error))
        except OSError as error:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"cannot ask for it: {error}")
        else:
            self.answer(HTTPStatus.ACCEPTED, "", "text/plain; charset=utf-8")

    def _show_trace(self) -> None:
        try:
            [rank], _ = profile.wanted(self._query())
            files = self._files(rank)
            trace = files.answer()
        except (ValueError, ProfileError) as error:
            self.refuse(HTTPStatus.BAD_REQUEST, str(error))
        except OSError as error:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"cannot read it: {error}")
        else:
            if trace is None:
                self.answer(HTTPStatus.ACCEPTED, "", "text/plain; charset=utf-8")
            else:
                self.answer(HTTPStatus.OK, trace, "application/gzip")
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
            self.answer(HTTPStatus.ACCEPTED, json.dumps(body), "application/json")
            ask_for_stacks(ranks)
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "no rank handles SIGUSR1")

    def _ask_for_checkpoint(self) -> None:
        try:
            asked = self.server.checkpoint.make()
        except OSError as error:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"cannot ask for it: {error}")
            return
        if asked:
            self.answer(HTTPStatus.ACCEPTED, "", "text/plain; charset=utf-8")
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "no rank of this pod saves on request")

    def _take_announcement(self) -> None:
        content = self.content(most=announcement.MAX_BYTES)
        try:
            told = announcement.Announcement.parse(content)
            if not told.concerns(self.server.placement):
                self.refuse(HTTPStatus.CONFLICT, "this pod belongs to another job or attempt")
            elif self.server.rank_0.read(generation=told.generation + 1):
                self.refuse(HTTPStatus.CONFLICT, "another pod is rank 0 by now")
            else:
                self.server.rank_0.write(told)
                self.answer(HTTPStatus.OK, "", "text/plain; charset=utf-8")
        except ValueError as error:
            self.refuse(HTTPStatus.BAD_REQUEST, str(error))
        except OSError as error:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"cannot keep it: {error}")

    def _take_progress(self, script: TrainJobStatus) -> None:
        inside = admission.is_loopback(self.client)
        if not inside or not script.admits(self.headers.get("Authorization")):
            self._forbid(f"only for this pod's own script, with the token in ${trainjob.TOKEN}")
            return
        self.admit()
        content = self.content(most=trainjob.MAX_BYTES)
        try:
            script.take(content)
        except ValueError as error:
            self.refuse(HTTPStatus.BAD_REQUEST, str(error))
        except OSError as error:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"cannot keep it: {error}")
        else:
            self.answer(HTTPStatus.OK, "{}", "application/json")

    def _refuse_path(self) -> None:
        told = ["/stacks", "/profile", "/trace", "/dump-stacks", "/checkpoint", announcement.PATH]
        known = [
            "GET /status",
            "GET /metrics",
            f"GET {traces.PATH}",
            *(f"POST {path}" for path in told),
        ]
        if self.server.world is not None:
            known += [
                f"GET {WORLD_PATH}",
                f"PUT {WORLD_PATH}",
                f"POST {FAILURES_PATH}",
            ]
        if any(self._path() == path for _, path in (each.split() for each in known)):
            self.refuse(HTTPStatus.METHOD_NOT_ALLOWED, f"method {self.command} is not allowed")
        else:
            self.refuse(HTTPStatus.NOT_FOUND, f"unknown path; known are {', '.join(known)}")
