"""Launchers that restart their group without a decision of the operator, step by step.

Between two steps anything may happen: another launcher refuses, is lost or cannot be reached, the
operator decides as well, or its late orders arrive.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ddp_operator.api.constants import LABEL_ATTEMPT, LABEL_SERVING
from ddp_operator.job.membership.world import read_slots
from ddp_operator.ports import Manifest
from ddp_protocol.world import LEAD_SECONDS

from tests.simulation.world.kubelet import is_deleting, is_running, node_of
from tests.simulation.world.launchers import Launchers, has_launcher, restarts_in_place
from tests.simulation.world.server import owner_of

_ALL_STEPS = 100
_SOON_SECONDS = 5.0
"""How soon the operator promises to ask again."""


@dataclass
class _Restart:
    """A restart that a launcher leads."""

    generation: int
    holds: bool = False
    """True: the leader itself has ended its processes for it."""
    informed: set[int] = field(default_factory=set)
    """Node ranks that have accepted it."""
    ended: set[int] = field(default_factory=set)
    """Those of them in which no earlier process runs."""


class Leaders:
    """The launchers of node rank 0 of all groups, old ones included."""

    def __init__(self, launchers: Launchers) -> None:
        self._launchers = launchers
        self.obey_timers = False
        """False: they restart failed groups at any time, as if polls could come however late."""
        self.completed = 0
        """Restarts after which processes run."""
        self._restarts: dict[str, _Restart] = {}
        """By the UIDs of the leaders' pods."""

    def lead(self, steps: int = _ALL_STEPS) -> list[str]:
        """Let each leader take so many steps; return the names of those that took any."""
        led: list[str] = []
        for pod in list(self._launchers.server.pods.values()):
            if is_running(pod) and restarts_in_place(pod) and not is_deleting(pod):
                taken = 0
                while taken < steps and self._step(pod):
                    taken += 1
                if taken:
                    led.append(pod["metadata"]["name"])
        return led

    def _step(self, pod: Manifest) -> bool:
        """Take one step; return False if there is none."""
        uid, one = pod["metadata"]["uid"], self._launchers.of(pod)
        restart = self._restarts.get(uid)
        if restart is None:
            if not self._may_lead(pod):
                return False
            one.reported = self._launchers.failures(pod)
            restart = self._restarts[uid] = _Restart(one.generation + 1)
        if one.generation != restart.generation - (not restart.holds):
            del self._restarts[uid]  # the operator has decided meanwhile
            return False
        if not restart.holds:
            return self._announce(pod, restart)
        return self._end(pod, restart)

    def _may_lead(self, pod: Manifest) -> bool:
        one = self._launchers.of(pod)
        if one.node_rank != 0 or not one.members or one.polled_at is None:
            return False
        if len(read_slots(one.members)) > 1 and self._launchers.saved_in_pod(pod):
            return False
        silence = self._launchers.clock.seconds - one.polled_at
        if self._launchers.failures(pod):
            return silence >= _SOON_SECONDS or not self.obey_timers
        # The operator waits for the end of replaced pods, which the leader does not know.
        return silence >= LEAD_SECONDS and not (one.start or one.is_led)

    def _announce(self, pod: Manifest, restart: _Restart) -> bool:
        """Tell one more launcher of the restart, the leader's own last."""
        for node_rank, other in self._others(pod):
            if node_rank not in restart.informed:
                if other is None:
                    return False
                return self._tell(pod, restart, node_rank, other, start=False)
        restart.holds = True
        return self._tell(pod, restart, 0, pod, start=False)

    def _end(self, pod: Manifest, restart: _Restart) -> bool:
        """Ask one more launcher whether its processes have ended; start all once none runs."""
        for node_rank, other in (*self._others(pod), (0, pod)):
            if node_rank not in restart.ended:
                if other is None:
                    return False
                return self._tell(pod, restart, node_rank, other, start=False)
        del self._restarts[pod["metadata"]["uid"]]
        self.completed += 1
        for node_rank, other in ((0, pod), *self._others(pod)):
            if other is not None:
                self._launchers.take_led(other, pod, restart.generation, node_rank, start=True)
        return False

    def _tell(
        self, pod: Manifest, restart: _Restart, node_rank: int, other: Manifest, *, start: bool
    ) -> bool:
        ended = self._launchers.take_led(other, pod, restart.generation, node_rank, start=start)
        if ended is None:
            del self._restarts[pod["metadata"]["uid"]]  # it has another group
            return False
        restart.informed.add(node_rank)
        if ended and restart.holds:
            restart.ended.add(node_rank)
        return True

    def _others(self, pod: Manifest) -> Iterator[tuple[int, Manifest | None]]:
        """Yield the other pods of its group by node rank; None: it does not reach that pod."""
        slots = read_slots(self._launchers.of(pod).members)
        stem = pod["spec"]["hostname"].rpartition("-")[0]
        for node_rank, slot in enumerate(slots[1:], 1):
            yield node_rank, self._at(pod, f"{stem}-{slot}")

    def _at(self, leader: Manifest, host: str) -> Manifest | None:
        labels = leader["metadata"]["labels"]
        pods = [
            pod
            for pod in self._launchers.server.pods.values()
            if pod["spec"]["hostname"] == host
            and owner_of(pod) == owner_of(leader)
            and pod["metadata"]["labels"][LABEL_ATTEMPT] == labels[LABEL_ATTEMPT]
            and is_running(pod)
            and has_launcher(pod)
            and self._reaches(leader, pod)
        ]
        pods.sort(key=lambda pod: pod["metadata"]["labels"].get(LABEL_SERVING) == "true")
        return pods[-1] if pods else None

    def _reaches(self, leader: Manifest, pod: Manifest) -> bool:
        apart = self._launchers.apart & {one["metadata"]["uid"] for one in (leader, pod)}
        dead = self._launchers.dead_nodes & {node_of(leader), node_of(pod)}
        return not apart and (not dead or node_of(leader) == node_of(pod))
