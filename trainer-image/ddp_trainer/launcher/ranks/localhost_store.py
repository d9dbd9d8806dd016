"""Finds a rank 0 whose store the other pods cannot reach, because the script names localhost.

A script that sets MASTER_ADDR=localhost works in one pod. In several, each pod waits at its own
localhost until torch's time-out. Rank 0 then serves its store at all addresses, but reaches it at
localhost itself, and nobody else does. With the right address it connects to the pod's own one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Final

from ddp_trainer.launcher.ranks.early_check import EarlyCheck
from ddp_trainer.system.processes import TcpSocket, below, sockets_of, tcp_table

LOOKS_AT: Final = (20.0, 60.0, 180.0, 600.0)
"""Seconds after the start of the ranks: they import torch, and may load data, before they meet."""
_LOCALHOST: Final = (
    "0100007F",
    "0000000000000000FFFF00000100007F",
    "00000000000000000000000001000000",
)
"""127.0.0.1, the same as an IPv6 address, and ::1, as the kernel writes them."""
_NAMES: Final = (None, "localhost", "127.0.0.1", "::1")
_CONNECTING: Final = ("01", "02")
"""TCP_ESTABLISHED and TCP_SYN_SENT."""
_LISTENS: Final = "0A"


class LocalhostStore(EarlyCheck):
    """Looks a few times until it finds such a store."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        reports_steps: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        """`environment`: of the pod; the ranks' own variables override it.

        `reports_steps`: tells whether a step was reported, so that the ranks have met.
        `say`: receives the remark.
        """
        super().__init__(LOOKS_AT)
        self._environment = environment
        self._reports_steps = reports_steps
        self._say = say

    def find(self, ranks: Mapping[int, int], variables: Mapping[int, Mapping[str, str]]) -> str:
        """Return which rank and port it is; empty: none, or not this pod's."""
        own = {**self._environment, **variables.get(0, {})}
        is_alone = own.get("GROUP_WORLD_SIZE", "1") == "1" or own.get("MASTER_ADDR") in _NAMES
        if 0 not in ranks or is_alone or self._reports_steps():
            return ""
        port = own_store(tcp_table(), _own_sockets(), master_port=int(own.get("MASTER_PORT", 0)))
        if not port:
            return ""
        remark = (
            f"rank 0 listens on port {port} and reaches it at localhost, where no other pod "
            "arrives: remove the line of the script that sets MASTER_ADDR"
        )
        self._say(remark)
        return remark


def own_store(table: list[TcpSocket], own: set[str], *, master_port: int) -> int:
    """Return the port of a store that only this pod's ranks use, at localhost; 0: there is none.

    `table`: sockets of the pod. `own`: inodes of the ranks' sockets. `master_port`: the port at
    which the job's ranks meet.
    """
    ours = [one for one in table if one.inode in own]
    clients = [one for one in ours if one.state in _CONNECTING]
    if any(one.port_there == master_port and one.there not in _LOCALHOST for one in clients):
        return 0
    local = {one.port_here: one.port_there for one in clients if one.there in _LOCALHOST}
    for server in ours:
        if server.state != _LISTENS or server.here.strip("0"):
            continue
        port = server.port_here
        accepted = [one for one in table if one.port_here == port and one.state in _CONNECTING]
        if port in local.values() and all(
            one.there in _LOCALHOST and local.get(one.port_there) == port for one in accepted
        ):
            return port
    return 0


def _own_sockets() -> set[str]:
    children = chain.from_iterable(below(os.getpid()).values())
    return {inode for child in children for inode in sockets_of(child)}
