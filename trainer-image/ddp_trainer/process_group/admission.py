"""Decides which requests a pod's launcher accepts: those signed with the job's token.

The headers of a request suffice for the decision. They name the hash of the body, so that the
launcher reads no body of a client without the token.

Without the token, any pod in the cluster could direct a pod's ranks to a rank 0 of its own. A
request is signed with the token and does not contain it, because the address that it goes to may
belong to another pod by now.
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

REFUSAL = (
    "the request is not signed with this job's token ($DDP_TOKEN), or the sender's clock is wrong"
)
SCHEME = "DDP-HMAC-SHA256"
ANSWER_HEADER = "DDP-Answer-HMAC-SHA256"
"""Header with the signature of an answer."""
WINDOW_SECONDS = 600
"""How far the sender's clock may differ, and how long a signed request remains valid."""
_SIGNED = re.compile(
    SCHEME + r" (?P<time>\d{1,12}):(?P<digest>[0-9a-f]{64}):(?P<signature>[0-9a-f]{64})"
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The signed parts of a request."""

    method: str
    target: str
    """Path and query."""
    body: bytes = b""


def credentials(placement: Placement, request: Request) -> dict[str, str]:
    """Return the headers of a request from one of the job's pods to another."""
    if not placement.token:
        return {}
    at, digest = int(time.time()), hashlib.sha256(request.body).hexdigest()
    signature = _signature(placement.token, request.method, request.target, at, digest)
    return {"Authorization": f"{SCHEME} {at}:{digest}:{signature}"}


def _signature(token: str, method: str, target: str, at: int, digest: str) -> str:
    """`at`: the time, in seconds since 1970. `digest`: SHA-256 of the body."""
    text = f"{method}\n{target}\n{at}\n{digest}"
    return hmac.digest(token.encode(), text.encode(errors="replace"), "sha256").hex()


def send(connection: HTTPConnection, placement: Placement, request: Request) -> None:
    """Send a signed request from one of the job's pods to another."""
    headers = credentials(placement, request)
    connection.request(request.method, request.target, request.body, headers)


def answer_signature(
    placement: Placement, authorization: str | None, status: int, body: bytes
) -> str:
    """Return the signature of an answer; empty if there is no token.

    It proves that the answer is from a pod of this job, and belongs to this request.

    `authorization`: the request's header of that name.
    """
    if not placement.token:
        return ""
    text = f"{authorization}\n{status}\n{hashlib.sha256(body).hexdigest()}"
    return hmac.digest(placement.token.encode(), text.encode(errors="replace"), "sha256").hex()


def signed_digest(authorization: str | None) -> str | None:
    """Return the SHA-256 of the body that a signature covers; None: there is no signature."""
    found = _SIGNED.fullmatch(authorization or "")
    return found["digest"] if found else None


def admits(
    placement: Placement, *, method: str, target: str, authorization: str | None, client: str
) -> bool:
    """Return whether a pod accepts a request, provided that its body has the signed digest.

    From the pod itself, the token is accepted like a signature, because programs in it may send it.

    Args:
        target: path and query.
        authorization: the request's header of that name.
        client: the address that the request comes from.
    """
    if not placement.token:
        return is_loopback(client)
    if found := _SIGNED.fullmatch(authorization or ""):
        at = int(found["time"])
        expected = _signature(placement.token, method, target, at, found["digest"])
        is_recent = abs(time.time() - at) <= WINDOW_SECONDS
        return is_recent and hmac.compare_digest(found["signature"], expected)
    expected = f"Bearer {placement.token}"
    is_token = hmac.compare_digest((authorization or "").encode(), expected.encode())
    return is_token and is_loopback(client)


def is_loopback(client: str) -> bool:
    """Return whether a request comes from the pod itself."""
    address = ip_address(client)
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.is_loopback
