"""The few requests that the cluster's own code makes, with nothing but the standard library."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from tests.cluster.errors import ClusterError


@dataclass(frozen=True)
class ApiClient:
    """One user's access to an API server."""

    server: str
    certificate: Path
    token: str

    def request(
        self,
        method: str,
        path: str,
        body: object | None = None,
        *,
        content_type: str = "application/json",
        timeout_s: float = 10,
    ) -> bytes:
        """Send one request and return the answer's body; raises OSError (HTTPError included)."""
        with self._open(
            method, path, body, content_type=content_type, timeout_s=timeout_s
        ) as response:
            answer: bytes = response.read()
            return answer

    def lines(self, path: str, *, timeout_s: float) -> Iterator[bytes]:
        """Yield the lines of an answer that does not end, such as a watch, as they come.

        Raises OSError when it breaks, or is silent for ``timeout_s``.
        """
        with self._open("GET", path, timeout_s=timeout_s) as response:
            yield from response

    def _open(
        self,
        method: str,
        path: str,
        body: object | None = None,
        *,
        content_type: str = "application/json",
        timeout_s: float,
    ) -> HTTPResponse:
        request = urllib.request.Request(
            self.server + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": content_type},
        )
        context = ssl.create_default_context(cafile=str(self.certificate))
        # No proxy: the server is on this machine.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        response: HTTPResponse = opener.open(request, timeout=timeout_s)
        return response

    def get(self, path: str) -> Any:
        """Return the decoded JSON object at ``path``."""
        return json.loads(self.request("GET", path))

    def ready(self) -> bool:
        """Tell whether the server says it is ready to serve."""
        try:
            return self.request("GET", "/readyz", timeout_s=2) == b"ok"
        except OSError:
            return False


def wait_until(
    condition: Callable[[], bool],
    *,
    what: str,
    deadline_s: float,
    interval_s: float = 0.05,
    failed: Callable[[], str | None] = lambda: None,
) -> None:
    """Poll ``condition`` until it holds.

    Raises ClusterError at the deadline, or as soon as ``failed`` returns a reason to give up.
    """
    end = time.monotonic() + deadline_s
    while not condition():
        if reason := failed():
            raise ClusterError(f"{what}: {reason}")
        if time.monotonic() > end:
            raise ClusterError(f"{what}: not within {deadline_s:.0f} s")
        time.sleep(interval_s)
