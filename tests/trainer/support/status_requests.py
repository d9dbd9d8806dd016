"""Requests to a launcher's status server."""

from __future__ import annotations

import urllib.error
import urllib.request


def ask(
    port: int,
    path: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    token: str | None = None,
) -> tuple[int, bytes]:
    """Return status code and body; (0, b"") if nobody listens."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=body,
        headers={} if token is None else {"Authorization": f"Bearer {token}"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read()
    except urllib.error.URLError:
        return 0, b""
