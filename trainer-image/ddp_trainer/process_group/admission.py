"""Who may tell a pod's launcher to do something: whoever knows the job's token.

Else any neighbour in the cluster could lead a pod's ranks to a rank 0 of its own. A request is
signed with the token and does not carry it: an address may be another pod's by now.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from dataclasses import dataclass
from http.client import HTTPConnection
from ipaddress import IPv6Address, ip_address

from ddp_trainer.settings.environment import Placement

REFUSAL = "only signed with this job's token ($DDP_TOKEN), by a clock that is right"
SCHEME = "DDP-HMAC-SHA256"
WINDOW_SECONDS = 600
"""How far the clock of the sender may differ, and for how long a request may be sent again."""
_SIGNED = re.compile(SCHEME + r" (?P<time>\d{1,12}):(?P<signature>[0-9a-f]{64})")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is signed of a request."""

    method: str
    target: str
    """The path, with the query."""
    body: bytes = b""

    def signature(self, token: str, at: int) -> str:
        """Return the signature; `at`: a time, in seconds since 1970."""
        body = hashlib.sha256(self.body).hexdigest()
        text = f"{self.method}\n{self.target}\n{at}\n{body}"
        return hmac.digest(token.encode(), text.encode(errors="replace"), "sha256").hex()


def credentials(placement: Placement, request: Request) -> dict[str, str]:
    """The header of a request from one of the job's pods to another."""
    if not placement.token:
        return {}
    at = int(time.time())
    return {"Authorization": f"{SCHEME} {at}:{request.signature(placement.token, at)}"}


def send(connection: HTTPConnection, placement: Placement, request: Request) -> None:
    """Send a signed request from one of the job's pods to another."""
    headers = credentials(placement, request)
    connection.request(request.method, request.target, request.body, headers)


def is_signed(authorization: str | None) -> bool:
    """Whether the body of a request counts."""
    return authorization is not None and authorization.startswith(f"{SCHEME} ")


def admits(
    placement: Placement, request: Request, *, authorization: str | None, client: str
) -> bool:
    """Whether a pod does what a request asks.

    The token itself is as good as a signature: operators of earlier versions send it, and programs
    in the pod.

    Args:
        authorization: its header of that name.
        client: the address that it comes from.
    """
    if not placement.token:
        return placed_by_earlier_operator(placement) or is_loopback(client)
    if found := _SIGNED.fullmatch(authorization or ""):
        at = int(found["time"])
        expected = request.signature(placement.token, at)
        is_recent = abs(time.time() - at) <= WINDOW_SECONDS
        return is_recent and hmac.compare_digest(found["signature"], expected)
    expected = f"Bearer {placement.token}"
    return hmac.compare_digest((authorization or "").encode(), expected.encode())


def placed_by_earlier_operator(placement: Placement) -> bool:
    """Whether an operator that knew no tokens yet has made the pod, and asks it without one."""
    return bool(placement.job_uid and not placement.token)


def is_loopback(client: str) -> bool:
    """Whether a request comes from the pod itself."""
    address = ip_address(client)
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.is_loopback
