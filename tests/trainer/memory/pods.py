"""A pod's volume and environment, as the operator and the launcher give them to a rank."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ddp_trainer.memory.volume import Volume
from ddp_trainer.process_group import admission
from ddp_trainer.settings.environment import Environment

from tests.trainer.support.pods import contract


def variables(
    directory: Path, *, rank: int = 0, ranks: int = 1, generation: int = 1, size: int = 64 << 20
) -> dict[str, str]:
    """Return the variables of a rank in a pod that has all ranks."""
    return {
        **contract(local_world_size=ranks),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "DDP_GENERATION": str(generation),
        "DDP_MEMORY_DIR": str(directory),
        "DDP_MEMORY_BYTES": str(size),
        "DDP_MEMORY_COPIES": "1",
    }


class Reports:
    """The reports of ranks to their launcher."""

    def __init__(self, receiver: socket.socket) -> None:
        self._receiver = receiver

    def read(self) -> list[Mapping[str, Any]]:
        """Return the reports since the last call."""
        found = []
        while True:
            try:
                found.append(json.loads(self._receiver.recv(65536)))
            except BlockingIOError:
                return found


@contextmanager
def listening(volume: Volume) -> Iterator[Reports]:
    """Listen as the launcher does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(volume.socket))
        receiver.setblocking(False)
        yield Reports(receiver)


@dataclass
class Launcher:
    """Answers as a launcher's status server: with its answers in turn, and then with the last."""

    environment: Environment
    answers: list[tuple[int, Any]]
    requests: list[Mapping[str, Any]] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a request, or refuse one that is not signed."""
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        self.requests.append(json.loads(body))
        status, document = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if handler.path != "/memory/restore" or not admission.admits(
            self.environment.placement,
            method=handler.command,
            target=handler.path,
            authorization=handler.headers["Authorization"],
            client="192.0.2.1",
        ):
            status, document = 403, "not signed"
        if status == 0:
            return  # the connection ends without an answer
        text = document if isinstance(document, str) else json.dumps(document)
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text.encode())


@contextmanager
def launcher(environment: Environment, *answers: tuple[int, Any]) -> Iterator[Launcher]:
    """Answer at the status port of a pod."""
    found = Launcher(environment, list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    port = environment.placement.status_port
    assert port is not None
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
