"""The address at which the operator may ask a pod's trainer for progress.

Users control part of it: the port may be a variable of theirs. The operator may reach what they
cannot, so it only asks an address that a pod can have, at an unprivileged port. A node's own
address serves everything on that node; a template that sets hostNetwork allows it.
"""

from ipaddress import IPv6Address, ip_address

from ddp_operator.api.constants import ENV_STATUS_PORT
from ddp_operator.ports import Manifest

_LOWEST_PORT, _HIGHEST_PORT = 1024, 65535
"""As `spec.statusPort` may be."""
_MAX_DIGITS = 5


def trainer_address(trainer: str, spec: Manifest, status: Manifest) -> str:
    """Return `ip:port` of the container of this name; empty if it cannot be asked."""
    container: Manifest = next((c for c in spec["containers"] if c.get("name") == trainer), {})
    ip, port = status.get("podIP") or "", told_port(container)
    if port is None or not ip or not _may_be_a_pods(ip):
        return ""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def is_the_nodes(spec: Manifest, status: Manifest) -> bool:
    """Return whether the pod has only its node's address."""
    hosts = {status.get("hostIP"), *(host.get("ip") for host in status.get("hostIPs") or ())}
    return spec.get("hostNetwork") is True or status.get("podIP") in hosts - {None, ""}


def told_port(trainer: Manifest) -> int | None:
    """Return the status port in a container's variables; None if it is missing or invalid."""
    variables = trainer.get("env") or ()
    port = next((str(v.get("value")) for v in variables if v["name"] == ENV_STATUS_PORT), "")
    # Only a number may get into the operator's URL.
    number = int(port) if len(port) <= _MAX_DIGITS and port.isascii() and port.isdigit() else 0
    return number if _LOWEST_PORT <= number <= _HIGHEST_PORT and str(number) == port else None


def _may_be_a_pods(ip: str) -> bool:
    """Return whether a pod can have this address: no node's own, such as a metadata server's."""
    try:
        address = ip_address(ip)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and (address.scope_id or address.ipv4_mapped):
        return False  # other spellings of refused addresses, and zones
    return not (address.is_link_local or address.is_multicast or address.is_unspecified)
