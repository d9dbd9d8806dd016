"""Restarts a job's group from the launcher of node rank 0 while the operator is away.

All processes restart in the existing pods. First each launcher ends its processes and confirms it;
then all may start. No pod joins, leaves or changes its node rank: only the operator decides that.
The operator later accepts the generations that it finds, and counts them.

A launcher that has another generation from the operator refuses. So a former node rank 0 that does
not know of its replacement cannot lead the group.
"""

from __future__ import annotations

import http.client
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus
from typing import NamedTuple

from ddp_protocol.message import to_json
from ddp_protocol.world import WORLD_PATH, WorldAnswer

from ddp_trainer.launcher.world.state import GroupState
from ddp_trainer.process_group.admission import Request, send
from ddp_trainer.process_group.assignment import Assignment
from ddp_trainer.settings.environment import Placement

_GRACE_SECONDS = 15
"""How long processes may take to save and end; 0 is used if node rank 0 itself has failed, since
then no rank saves."""
_WAIT_SECONDS = 5
"""How long a launcher may wait for its processes to end before it answers."""
_CALL_SECONDS = 2.0
_AGAIN_SECONDS = 1.0
"""Delay before another call to a launcher that did not answer, or has running processes."""
_REFUSED_SECONDS = 30.0
_AT_ONCE = 32
_MASTER = re.compile(r"(?P<stem>[^.]*-)\d+(?P<domain>(\..*)?)")
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")

_logger = logging.getLogger(__name__)


class PutResponse(NamedTuple):
    """The answer of a launcher."""

    knows: bool
    """True: it accepts the generation. False: it has it from the operator, or has a later one."""
    ended: bool = False
    """True: no process of an earlier generation runs in its pod."""


def host_of(master_addr: str, slot: int) -> str | None:
    """Return the host name of a pod; None if MASTER_ADDR does not have the operator's form."""
    master = _MASTER.fullmatch(master_addr)
    return f"{master['stem']}{slot}{master['domain']}" if master else None


def _label(host: str) -> str:
    """Return a pod's own host name; empty if `host` is an IP address."""
    label = host.partition(".")[0]
    return "" if label.isdecimal() else label


def slots_of(members: str) -> list[int]:
    """Parse the operator's list of slots, such as `0-2,5`.

    Raises:
        ValueError: the text has another form.
    """
    found: list[int] = []
    for part in members.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"members: {part!r} is neither a slot nor a range of slots")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found


def hosts_of(assignment: Assignment) -> list[str]:
    """Return the hosts of the group's pods, by node rank.

    Raises:
        ValueError: node rank 0 does not know them.
    """
    if assignment.nodes == 1:
        return [assignment.master_addr]
    slots = slots_of(assignment.members)
    hosts = [host for slot in slots if (host := host_of(assignment.master_addr, slot))]
    if len(hosts) != assignment.nodes:
        address = assignment.master_addr
        raise ValueError(f"no host names for slots {assignment.members} with MASTER_ADDR {address}")
    return hosts


def call(
    host: str, placement: Placement, told: Assignment, *, wait_seconds: int
) -> PutResponse | None:
    """Send a launcher its assignment; None: it did not answer."""
    seconds = wait_seconds + _CALL_SECONDS
    connection = http.client.HTTPConnection(host, placement.status_port, timeout=seconds)
    try:
        path, body = f"{WORLD_PATH}?wait={wait_seconds}", to_json(told).encode()
        send(connection, placement, Request(method="PUT", target=path, body=body))
        response = connection.getresponse()
        answer = WorldAnswer.read(response.read(told.MAX_BYTES))
        if response.status == HTTPStatus.CONFLICT:
            return PutResponse(knows=False)
        return PutResponse(knows=True, ended=answer.ended) if response.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


Call = Callable[[str, Assignment, int], PutResponse | None]
"""Called with the host, its assignment, and how long it may wait for its processes to end."""


class Leader:
    """Leads the group from node rank 0, in its own thread; sleeps while the operator decides."""

    def __init__(
        self,
        world: GroupState,
        placement: Placement,
        *,
        pod: str,
        call: Call | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`pod`: name of this pod."""
        self._world = world
        self._placement = placement
        self._pod = pod
        self._call = call or self._call_over_http
        self._sleep = sleep

    def start(self) -> None:
        """Start the thread, which leads whenever it is needed."""
        threading.Thread(target=self._run, name="launcher: leads restarts", daemon=True).start()

    def _run(self) -> None:
        while True:
            if not self.lead(self._world.wait_to_lead()):
                self._sleep(_REFUSED_SECONDS)

    def lead(self, present: Assignment) -> bool:
        """Begin the next generation, unless the operator begins one meanwhile.

        Returns:
            False: this pod cannot lead.
        """
        others = self._others(present)
        if others is None:
            return False
        failed_here = any(one.node_rank == 0 for one in self._world.failures)
        held = replace(
            present,
            generation=present.generation + 1,
            start=False,
            grace_seconds=0 if failed_here else _GRACE_SECONDS,
            broken=False,
            leader=self._pod,
            led=True,
        )
        _logger.warning(
            "generation %d: no decision from the operator: restarting the group",
            held.generation,
        )
        # This pod's own processes end last: if another launcher refuses, none were ended in vain.
        if not self._tell(others, held, present, wait_seconds=0, until_ended=False):
            return self._world.assignment is not present
        if not self._world.accept(held):
            return True
        held = self._world.assignment
        if not self._tell(others, held, held, wait_seconds=_WAIT_SECONDS, until_ended=True):
            return self._world.assignment is not held
        while not self._world.is_ready_for(held, wait_seconds=_WAIT_SECONDS):
            if self._world.assignment is not held:
                return True
        started = replace(held, start=True)
        if self._world.assignment is held and self._world.accept(started):
            now = self._world.assignment
            self._tell(others, now, now, wait_seconds=0, until_ended=False)
        return True

    def _others(self, present: Assignment) -> Mapping[int, str] | None:
        """Return the hosts of the other pods, by node rank; None if they are not known."""
        try:
            hosts = hosts_of(present)
        except ValueError as error:
            _logger.warning("cannot restart the group: %s", error)
            return None
        return dict(enumerate(hosts[1:], 1))

    def _tell(
        self,
        others: Mapping[int, str],
        what: Assignment,
        known: Assignment,
        *,
        wait_seconds: int,
        until_ended: bool,
    ) -> bool:
        """Send assignments to all other launchers until all answer, while `known` is current.

        Returns:
            True: all have accepted. False: there is another assignment, or one of them refused.
        """
        left = dict(others)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="launcher: asks other pods") as pool:
            while left:
                if self._world.assignment is not known:
                    return False
                answers = pool.map(
                    lambda each: self._call(
                        each[1],
                        replace(
                            what,
                            node_rank=each[0],
                            members="",
                            copy_order="",
                            host=_label(each[1]),
                        ),
                        wait_seconds,
                    ),
                    left.items(),
                )
                for rank, answer in zip(list(left), list(answers), strict=True):
                    if answer is not None and not answer.knows:
                        _logger.warning(
                            "generation %d: node rank %d has another generation; not restarting",
                            what.generation,
                            rank,
                        )
                        return False
                    if answer is not None and (answer.ended or not until_ended):
                        del left[rank]
                if left:
                    self._sleep(_AGAIN_SECONDS)
        return True

    def _call_over_http(self, host: str, told: Assignment, wait_seconds: int) -> PutResponse | None:
        return call(host, self._placement, told, wait_seconds=wait_seconds)
