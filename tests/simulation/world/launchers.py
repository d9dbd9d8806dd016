"""Launchers in pods, which restart processes in place, and the operator's way to them."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import orjson
from ddp_operator.api.constants import (
    ANNOTATION_GENERATION,
    ENV_GENERATION,
    ENV_HELD,
    ENV_HOLD_SECONDS,
    ENV_LOCAL_PATHS,
    ENV_MEMBERS,
    ENV_SCOPE,
    LABEL_ATTEMPT,
    LABEL_JOB_NAME,
)
from ddp_operator.api.values.bounded import format_time
from ddp_operator.job.pods.projection import project
from ddp_operator.ports import Manifest
from ddp_protocol.world import GroupAssignment, WorldAnswer

from tests.simulation.clock import Clock
from tests.simulation.world.kubelet import is_deleting, is_running, node_of, trainer_of
from tests.simulation.world.server import ApiServer, owner_of

WITHOUT_LAUNCHER = "registry.example/script:1"
"""An image in which nobody listens, and processes begin at once."""
ANSWER_SECONDS = 0.01
ANSWER_LIMIT_SECONDS = 60.0
"""How long a launcher waits for what the operator decides about a failure."""

_UNHEARD_OF = timedelta(seconds=10)
"""How long the operator waits for a pod that does not end in time."""

Require = Callable[[object, str], None]


def restarts_in_place(pod: Manifest) -> bool:
    """Return whether a pod's launcher restarts its processes. Others form their group
    themselves, or end with their pods.
    """
    if not has_launcher(pod):
        return False
    scope = _variable(pod, ENV_SCOPE)
    return scope == "InPlace" or (scope == "Auto" and not joins(pod))


def has_launcher(pod: Manifest) -> bool:
    """Return whether a launcher listens in a pod: not if its image has none, nor in some jobs that
    restart all pods.
    """
    if trainer_of(pod)["image"] == WITHOUT_LAUNCHER:
        return False
    return (
        _variable(pod, ENV_SCOPE) != "Gang" or int(owner_of(pod).removeprefix("job-") or 0) % 4 != 2
    )


def _restarts_when_moved(pod: Manifest) -> bool:
    """Return whether its processes restart when it receives another place."""
    return restarts_in_place(pod) or (_variable(pod, ENV_SCOPE) == "Gang" and not joins(pod))


def joins(pod: Manifest) -> bool:
    """Return whether its processes rebuild their group themselves, as in every other job."""
    return int(owner_of(pod).removeprefix("job-") or 0) % 2 == 1


def _variable(pod: Manifest, name: str) -> str | None:
    entries = reversed(trainer_of(pod)["env"])
    return next((entry.get("value") for entry in entries if entry["name"] == name), None)


def first_generation(pod: Manifest) -> int:
    """Of the group, when a pod was made."""
    return int(_variable(pod, ENV_GENERATION) or 0)


def _attempt_of(pod: Manifest) -> tuple[str, str]:
    return owner_of(pod), pod["metadata"]["labels"][LABEL_ATTEMPT]


def _uid(pod: Manifest) -> str:
    uid: str = pod["metadata"]["uid"]
    return uid


def first_node_rank(pod: Manifest) -> int | None:
    """The place that a pod was made with; None: it has none."""
    found = _variable(pod, "NODE_RANK")
    return None if found is None else int(found)


@dataclass
class Launcher:
    """The state of one launcher."""

    generation: int
    node_rank: int | None
    """None: the pod has no place."""
    start: bool = True
    held_until: datetime | None = None
    """When its processes start in the pod's first place, unless it receives another one."""
    failure: Mapping[str, Any] | None = None
    """Of its processes, in this generation."""
    failed_at: float = 0.0
    members: str = ""
    """Slots of the group's pods, of node rank 0; empty: it must not lead."""
    polled_at: float | None = None
    """When the operator last asked it for news; None: never."""
    is_led: bool = False
    """True: a launcher began this generation, and the operator has not accepted it yet."""
    leader: str = ""
    """The host name of that launcher's pod."""
    reported: list[Mapping[str, Any]] = field(default_factory=list)
    """Failures of its generation that others have forgotten since, for the next one."""
    led: list[dict[str, Any]] = field(default_factory=list)
    """Generations that it began without an operator, and when."""
    led_for: list[Mapping[str, Any]] = field(default_factory=list)
    """The failures before them."""
    asks_until_ended: int = 0
    """How often it says yet that processes of before have not ended."""

    @property
    def has_ranks(self) -> bool:
        """Return whether processes of any generation run in its pod."""
        return self.works or self.asks_until_ended > 0

    @property
    def works(self) -> bool:
        """Return whether those of the generation that it knows run."""
        return self.node_rank is not None and self.start and self.failure is None


@dataclass
class Launchers:
    """All launchers, by the UID of their pods."""

    server: ApiServer
    clock: Clock
    require: Require
    clock_is_right: Callable[[], bool]
    """True if the operator's clock always was."""
    dead_nodes: Set[str]
    cut_off: set[str] = field(default_factory=set)
    """UIDs of pods that the operator does not reach."""
    all_cut_off_since: float | None = None
    """When the operator lost its way to all pods, as by a network policy; None: it has it."""
    apart: set[str] = field(default_factory=set)
    """UIDs of pods with launchers that do not reach that of node rank 0."""
    loses_answers: bool = False
    """True if orders take effect and their answers get lost."""
    processes_linger: bool = False
    """True if processes that are to end take some time."""
    answer_seconds: float = ANSWER_SECONDS
    """How long they take."""
    heard_at: dict[str, float] = field(default_factory=dict)
    """When the operator last heard from a pod, by its UID, that it is in the group as asked."""
    led_generations: dict[str, set[int]] = field(default_factory=dict)
    """Those that launchers began, by the UIDs of jobs."""
    late: list[tuple[str, GroupAssignment]] = field(default_factory=list)
    """Addresses and assignments that were sent and come again later."""
    _known: dict[str, Launcher] = field(default_factory=dict)
    _answered: set[tuple[str, str]] = field(default_factory=set)
    """UIDs of jobs, and attempts, that had a pod with a launcher: people may have changed the image
    since.
    """
    _saved: set[str] = field(default_factory=set)
    """UIDs of pods that hold a checkpoint which no other pod sees."""
    _places: dict[tuple[str, str, int, int], str] = field(default_factory=dict)
    """The host name of the pod in each place: UID of the job, attempt, generation, node rank."""

    def clear(self) -> None:
        """Let all be reached, and answer at once."""
        self.cut_off.clear()
        self.all_cut_off_since = None
        self.apart.clear()
        self.loses_answers = self.processes_linger = False
        self.answer_seconds = ANSWER_SECONDS

    def of(self, pod: Manifest) -> Launcher:
        """The launcher of a pod."""
        annotations = pod["metadata"].get("annotations") or {}
        generation = int(annotations.get(ANNOTATION_GENERATION, 0))
        hold = int(_variable(pod, ENV_HOLD_SECONDS) or 0) if has_launcher(pod) else 0
        start = not (hold or (_variable(pod, ENV_HELD) and has_launcher(pod)))
        members = _variable(pod, ENV_MEMBERS) or ""
        first = Launcher(generation, first_node_rank(pod), start=start, members=members)
        one = self._known.setdefault(pod["metadata"]["uid"], first)
        if hold and one.held_until is None and (started := project(pod).started):
            one.held_until = started + timedelta(seconds=hold)
        waits = one.generation == generation and not one.start
        if waits and one.held_until and self.clock.now() >= one.held_until:
            one.start = True
        return one

    def created(self, pod: Manifest) -> None:
        """Judge the place that a pod is made with."""
        if has_launcher(pod):
            self._answered.add(_attempt_of(pod))
        self._judge_place(pod, first_generation(pod), first_node_rank(pod))

    def fail(self, pod: Manifest, code: int, message: str) -> bool:
        """The processes of a pod end, and it stays; False: they had ended, or not begun."""
        one = self.of(pod)
        if not one.works or is_deleting(pod):
            return False
        one.failure = {
            "pod": pod["metadata"]["name"],
            "generation": one.generation,
            "exitCode": code,
            "message": message,
            "time": format_time(self.clock.now()),
        }
        one.failed_at = self.clock.seconds
        return True

    def fail_in_place(self, pod: Manifest, code: int, message: str) -> bool:
        """Like `fail`, for a pod that may not restart its processes; False: it ends with them."""
        return restarts_in_place(pod) and self.fail(pod, code, message)

    def works(self, pod: Manifest) -> bool:
        """Return whether its processes run, or would if they were there."""
        return self.of(pod).works

    def waited_too_long(self, pod: Manifest) -> Mapping[str, Any] | None:
        """Return the failure that ends a pod now, because no answer came."""
        one = self.of(pod)
        waited = self.clock.seconds - one.failed_at
        return one.failure if waited >= ANSWER_LIMIT_SECONDS else None

    def at(self, address: str) -> Manifest | None:
        """The pod that listens there, as the operator reaches it."""
        ip = address.partition(":")[0]
        for pod in self.server.pods.values():
            if pod["status"].get("podIP") == ip and is_running(pod):
                return pod if has_launcher(pod) and self.reaches(pod) else None
        return None

    def reaches(self, pod: Manifest) -> bool:
        """Return whether requests of the operator come to a pod."""
        cut_off = self.all_cut_off_since is not None or _uid(pod) in self.cut_off
        return not cut_off and node_of(pod) not in self.dead_nodes

    def take(self, pod: Manifest, group: GroupAssignment) -> WorldAnswer:
        """PUT /world from the operator."""
        one = self.of(pod)
        if group.job_uid != owner_of(pod) or group.generation < one.generation:
            return WorldAnswer(one.generation, ended=True, led=one.is_led)
        if group.generation == one.generation and one.is_led:
            others = one.members and group.members != one.members
            if group.leader != one.leader or others:
                return WorldAnswer(one.generation, ended=True, led=True)
        self._judge_place(pod, group.generation, group.node_rank)
        stored = (self.server.job or {}).get("status", {}).get("world", {}).get("generation", 0)
        alive = self.server.job is not None and self.server.job["metadata"]["uid"] == owner_of(pod)
        what = f"a launcher receives generation {group.generation}, stored is {stored}"
        self.require(not alive or group.generation <= stored, what)
        one.node_rank, one.members, one.is_led = group.node_rank, group.members, False
        one.led.clear()
        one.led_for.clear()
        if not _restarts_when_moved(pod):  # it joins the others in that generation alone
            one.generation, one.start = group.generation, one.start or group.start
            return WorldAnswer(one.generation, ended=True)
        ended = self._restart(pod, group.generation, start=group.start)
        return WorldAnswer(one.generation, ended)

    def take_led(
        self, pod: Manifest, leader: Manifest, generation: int, node_rank: int, *, start: bool
    ) -> bool | None:
        """PUT /world from a leader: whether processes of before have ended; None: it refuses."""
        one, name = self.of(pod), leader["metadata"]["name"]
        is_known = generation == one.generation
        if generation < one.generation or (is_known and not (one.is_led and one.leader == name)):
            return None
        self.led_generations.setdefault(owner_of(pod), set()).add(generation)
        if not is_known and pod is leader:
            one.led_for += one.reported
        if not is_known:
            one.is_led, one.leader, one.node_rank = True, name, node_rank
            one.members = one.members if pod is leader else ""
        if start and pod is leader:
            now = format_time(self.clock.now())
            one.led.append({"generation": generation, "time": now})
        return self._restart(pod, generation, start=start and not is_deleting(pod))

    def _restart(self, pod: Manifest, generation: int, *, start: bool) -> bool:
        """Let processes restart in a generation; return whether those of before have ended."""
        one = self.of(pod)
        if generation > one.generation:
            one.asks_until_ended = 2 if one.has_ranks and self.processes_linger else 0
            one.generation, one.start, one.failure = generation, False, None
            one.reported = []
        one.asks_until_ended = max(one.asks_until_ended - 1, 0)
        ended = one.asks_until_ended == 0
        if start and ended and not one.start:
            one.start = True
            self._judge_start(pod, one.generation)
        return ended

    def _judge_place(self, pod: Manifest, generation: int, node_rank: int | None) -> None:
        """No two pods ever hold one node rank of one generation, but one that takes the name of
        another, under which nobody knows that one any more.
        """
        labels = pod["metadata"]["labels"]
        if node_rank is not None:
            where = (owner_of(pod), labels[LABEL_ATTEMPT], generation, node_rank)
            host = pod["spec"]["hostname"]
            known = self._places.setdefault(where, host)
            claim = (
                f"node rank {node_rank} of generation {generation} is that of {host} and {known}"
            )
            self.require(known == host, claim)

    def _judge_start(self, pod: Manifest, generation: int) -> None:
        """No process starts while one is of the past that it would take for its peer, or that may
        save where it does.
        """
        for other in self.server.pods.values():
            meets = all(
                other["metadata"]["labels"].get(label) == pod["metadata"]["labels"][label]
                for label in (LABEL_ATTEMPT, LABEL_JOB_NAME)
            )
            if not (meets and owner_of(other) == owner_of(pod) and is_running(other)):
                continue
            due = other["metadata"].get("deletionTimestamp")
            if due and not self.clock_is_right():
                continue
            if due and self.clock.now() >= datetime.fromisoformat(due) + _UNHEARD_OF:
                continue
            theirs = self.of(other)
            past = theirs.has_ranks and (theirs.generation < generation or theirs.asks_until_ended)
            names = f"{pod['metadata']['name']} and {other['metadata']['name']}"
            self.require(not past, f"{names} run processes of different generations")
            rank = self.of(pod).node_rank
            same = other is not pod and theirs.works and theirs.node_rank == rank
            twice = same and theirs.generation == generation and node_of(other)
            self.require(not twice, f"{names} both train as node rank {rank}")

    def say(self, pod: Manifest) -> bytes:
        """GET /world: the launcher of node rank 0 reports the failures of all that reach it."""
        one, failures = self.of(pod), self.failures(pod)
        one.polled_at = self.clock.seconds
        number = 1 + one.generation * 100 + len(failures)
        scope = "Pod" if joins(pod) else "InPlace"
        state = {"number": number, "generation": one.generation, "failures": failures}
        state |= {"scope": scope, "savedInPod": self.saved_in_pod(pod)}
        if one.led:
            state |= {"members": one.members, "failures": [*one.led_for, *failures], "led": one.led}
        return orjson.dumps(state)

    def failures(self, pod: Manifest) -> list[Mapping[str, Any]]:
        """Return the failures of its generation that a launcher of node rank 0 knows."""
        one = self.of(pod)
        if one.node_rank != 0:
            return []
        reported = [*one.reported]
        for other in self.server.pods.values():
            if owner_of(other) != owner_of(pod) or not is_running(other):
                continue
            failure = self.of(other).failure
            is_near = other is pod or not self.apart & {_uid(pod), _uid(other)}
            is_new = failure not in reported
            if failure and is_near and is_new and failure["generation"] == one.generation:
                reported.append(failure)
        return reported

    def saved_in_pod(self, pod: Manifest) -> bool:
        """Return whether rank 0 has saved to its pod's own disk, as in one of five jobs."""
        one, may = self.of(pod), int(owner_of(pod).removeprefix("job-") or 0) % 5 == 2
        if may and _variable(pod, ENV_LOCAL_PATHS) and one.works and one.node_rank == 0:
            self._saved.add(_uid(pod))
        return _uid(pod) in self._saved

    def judge_assignment(self, address: str) -> None:
        """Require that orders go only to pods with a launcher. In jobs of scope Pod, spares take
        places without a question whether one listens.
        """
        ip = address.partition(":")[0]
        for pod in self.server.pods.values():
            if pod["status"].get("podIP") == ip and is_running(pod):
                says_so = _attempt_of(pod) in self._answered or _variable(pod, ENV_SCOPE) == "Pod"
                self.require(says_so, f"{pod['metadata']['name']} receives its place")

    def deliver_late(self) -> None:
        """Deliver old orders again, to the pods that have these addresses now."""
        late, self.late = self.late, []
        for address, group in late:
            pod = self.at(address)
            if pod is not None:
                before = self.of(pod).generation
                self.take(pod, group)
                now = self.of(pod).generation
                self.require(now >= before, f"a launcher went back from {before} to {now}")
