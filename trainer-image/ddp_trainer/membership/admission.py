"""Who may tell a pod's launcher to do something: whoever has the job's token.

Else any neighbour in the cluster could lead a pod's ranks to a rank 0 of its own.
"""

from __future__ import annotations

import hmac
from ipaddress import IPv6Address, ip_address

from ddp_trainer.settings.environment import Placement

REFUSAL = "only with this job's token: Authorization: Bearer $DDP_TOKEN"


def credentials(placement: Placement) -> dict[str, str]:
    """The header of a request from one of the job's pods to another."""
    return {"Authorization": f"Bearer {placement.token}"} if placement.token else {}


def admits(placement: Placement, *, authorization: str | None, client: str) -> bool:
    """Whether a pod does what a request asks.

    Args:
        authorization: its header of that name.
        client: the address that it comes from.
    """
    if placement.token:
        expected = f"Bearer {placement.token}"
        return hmac.compare_digest((authorization or "").encode(), expected.encode())
    return placed_by_earlier_operator(placement) or is_loopback(client)


def placed_by_earlier_operator(placement: Placement) -> bool:
    """Whether an operator that knew no tokens yet has made the pod, and asks it without one."""
    return bool(placement.job_uid and not placement.token)


def is_loopback(client: str) -> bool:
    """Whether a request comes from the pod itself."""
    address = ip_address(client)
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.is_loopback
