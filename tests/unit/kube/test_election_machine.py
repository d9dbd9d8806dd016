"""Simulated leader election: replicas with clocks of different speeds, which are killed, frozen and
stopped, on a network that delays and loses requests and responses.

Each replica does what `next_step` says, like `LeaderLease`. A right to act begins only when a
response arrives. So checking after each event finds any two that overlap.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from ddp_operator.kube.election.rules import Candidate, LeaseRecord, Lost, Read, Timing, Wait, Write
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

TIMING = Timing()
BAD_SECONDS, ALL_SECONDS = 60.0, 90.0
"""How long the network is bad, and how long a history runs."""


@dataclass
class Network:
    """Delays and losses of messages."""

    dice: random.Random
    loss: float
    slow: float

    def delay(self, now: float) -> float | None:
        """Return how long a message takes, or None if it is lost."""
        bad = now < BAD_SECONDS
        if bad and self.dice.random() < self.loss:
            return None
        return self.dice.uniform(0.0, 6.0 if bad and self.dice.random() < self.slow else 0.05)


@dataclass
class Replica:
    """One process; its clock shows `offset + speed * seconds`."""

    candidate: Candidate
    speed: float
    offset: float
    alive: bool = True
    frozen_until: float = 0.0
    turn: int = 0

    def clock(self, now: float) -> float:
        return self.offset + self.speed * now

    def may_act(self, now: float) -> bool:
        return self.alive and self.candidate.may_act(self.clock(now))


class World:
    """The lease on its server, the replicas, and the events to come."""

    def __init__(self, network: Network, speeds: list[float]) -> None:
        self.now = 0.0
        self.network = network
        self.record: LeaseRecord | None = None
        self.leaders: list[str] = []
        self.replicas = [self._process(speed) for speed in speeds]
        self._revision = 0
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        for replica in self.replicas:
            self._next_turn(replica, 0.0)

    def run(self) -> None:
        while self._events and self._events[0][0] <= ALL_SECONDS:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
            acting = self.acting()
            assert len(acting) <= 1, (self.now, acting)
            if acting and acting[0].identity not in self.leaders:
                self.leaders.append(acting[0].identity)

    def acting(self) -> list[Candidate]:
        return [replica.candidate for replica in self.replicas if replica.may_act(self.now)]

    def at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(when, self.now), next(self._order), happen))

    # Failures of replicas.

    def kill(self, replica: Replica) -> None:
        """End the replica at once, and start another process in its place."""
        replica.alive = False
        successor = self._process(replica.speed)
        self.replicas[self.replicas.index(replica)] = successor
        self._next_turn(successor, self.now + 1.0)

    def stop(self, replica: Replica) -> None:
        """Stop the replica in order; it releases the lease if it holds it."""
        self.kill(replica)
        if self.record is not None and self.record.holder == replica.candidate.identity:
            self._store(replace(self.record, holder="", duration=1.0))

    def freeze(self, replica: Replica, seconds: float) -> None:
        """Suspend the replica for a time; it does not notice."""
        replica.frozen_until = self.now + seconds

    # Actions of replicas.

    def _process(self, speed: float) -> Replica:
        dice = self.network.dice
        identity = f"process-{dice.getrandbits(64):x}"
        return Replica(Candidate(identity, TIMING), speed, offset=dice.uniform(-1e6, 1e6))

    def _next_turn(self, replica: Replica, when: float) -> None:
        """Let a replica take its next step then, unless it waits for something else by
        that time.
        """
        replica.turn += 1
        self._in_turn(replica, when, lambda: self._step(replica))

    def _in_turn(self, replica: Replica, when: float, happen: Callable[[], None]) -> None:
        turn = replica.turn

        def take() -> None:
            if not replica.alive or replica.turn != turn:
                return
            if self.now < replica.frozen_until:
                self.at(replica.frozen_until, take)
            else:
                happen()

        self.at(when, take)

    def _step(self, replica: Replica) -> None:
        local = replica.clock(self.now)
        match replica.candidate.next_step(local):
            case Wait(until):
                # Rounding must not turn a wait into none.
                self._next_turn(replica, self.now + max((until - local) / replica.speed, 1e-6))
            case Lost():
                self.kill(replica)
            case Read():
                self._request(replica, lambda: self.record, is_write=False)
            case Write(version):
                identity = replica.candidate.identity
                self._request(replica, lambda: self._write(identity, version), is_write=True)

    def _request(
        self, replica: Replica, effect: Callable[[], LeaseRecord | None], *, is_write: bool
    ) -> None:
        sent_at = replica.clock(self.now)
        replica.turn += 1
        there, back = self.network.delay(self.now), self.network.delay(self.now)

        def answer(record: LeaseRecord | None) -> None:
            candidate, local = replica.candidate, replica.clock(self.now)
            if not is_write:
                replica.candidate = candidate.read(record, at=local)
            elif record is None:
                replica.candidate = candidate.refused(at=local)
            else:
                replica.candidate = candidate.wrote(record, sent_at=sent_at)
            self._next_turn(replica, self.now)

        def give_up() -> None:
            local = replica.clock(self.now)
            replica.candidate = replica.candidate.unanswered(sent_at=sent_at, at=local)
            self._next_turn(replica, self.now)

        if there is not None:
            turn = replica.turn

            def arrive() -> None:
                record = effect()
                if back is not None and replica.turn == turn:
                    self._in_turn(replica, self.now + back, lambda: answer(record))

            self.at(self.now + there, arrive)
        patience = TIMING.request_timeout / replica.speed
        self._in_turn(replica, self.now + patience, give_up)

    # Actions of the server.

    def _write(self, identity: str, version: str | None) -> LeaseRecord | None:
        if (self.record.version if self.record else None) != version:
            return None
        return self._store(LeaseRecord(identity, TIMING.lease_duration, ""))

    def _store(self, record: LeaseRecord) -> LeaseRecord:
        self._revision += 1
        self.record = replace(record, version=str(self._revision))
        return self.record


INCIDENTS = st.lists(
    st.tuples(
        st.sampled_from(["kill leader", "kill", "stop leader", "freeze leader", "freeze"]),
        st.floats(0.0, BAD_SECONDS),
        st.integers(0, 2),
        st.floats(0.1, 20.0),
    ),
    max_size=8,
)
# A holder stops after 7 s of its own clock and counts as dead after 10 s of another clock: the
# speeds may differ by less than that.
SPEEDS = st.lists(st.floats(0.85, 1.2), min_size=2, max_size=3)
PROBABILITIES = st.floats(0.0, 0.6)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    speeds=SPEEDS,
    loss=PROBABILITIES,
    slow=PROBABILITIES,
    seed=st.integers(0, 2**32),
    incidents=INCIDENTS,
)
def test_no_two_replicas_act_and_one_does_in_the_end(
    speeds: list[float],
    loss: float,
    slow: float,
    seed: int,
    incidents: list[tuple[str, float, int, float]],
) -> None:
    world = World(Network(random.Random(seed), loss, slow), speeds)

    def happen(what: str, which: int, seconds: float) -> None:
        victims = world.replicas
        if what.endswith("leader"):
            victims = [r for r in victims if r.may_act(world.now)] or victims
        victim = victims[which % len(victims)]
        match what.removesuffix(" leader"):
            case "kill":
                world.kill(victim)
            case "stop":
                world.stop(victim)
            case _:
                world.freeze(victim, seconds)

    for what, when, which, seconds in incidents:
        world.at(when, lambda w=what, i=which, s=seconds: happen(w, i, s))  # type: ignore[misc]
    world.run()
    assert len(world.acting()) == 1
    event(f"{min(len(world.leaders), 5)} leaders")
