"""Rules that hold at every moment, judged when a write takes effect."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from ddp_operator.api.constants import LABEL_ATTEMPT, LABEL_INDEX, LABEL_JOB_NAME, LABEL_SERVING
from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.membership.world import members
from ddp_operator.job.pods.projection import project
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.ports import Manifest

from tests.message_style import faults
from tests.simulation.checks.budget import Accounts
from tests.simulation.checks.order import judge_order
from tests.simulation.checks.quotes import own_text
from tests.simulation.checks.truth import LATE_TO_SEE_SECONDS, Class, Ledger, Truth
from tests.simulation.checks.verdicts import Require, Verdicts
from tests.simulation.clock import Clock
from tests.simulation.world.kubelet import (
    is_deleting,
    is_over,
    is_running,
    node_of,
    stage_of,
    trainer_of,
)
from tests.simulation.world.launchers import first_generation
from tests.simulation.world.nodes import is_bad, is_unreachable
from tests.simulation.world.scheduler import avoided
from tests.simulation.world.server import JOB, ApiServer, owner_of
from tests.simulation.world.start_faults import Stage

_GANG: Final = "scheduling.x-k8s.io/pod-group"
_UNHEARD_OF: Final = timedelta(seconds=10)
"""How long the operator waits for a pod that does not end in time."""


class World(NamedTuple):
    """Facts that all pods of a job must agree on."""

    pods: int
    ranks: int
    gang: bool


def wanted_by(spec: DDPJobSpec) -> World:
    """The world of a job: one process each, but two of pod 0 if overridden."""
    ranks = spec.replicas + bool(spec.overrides)
    gang = spec.scheduling is not None and spec.scheduling.gang != "none"
    return World(pods=spec.replicas, ranks=ranks, gang=gang)


def world_of_pod(pod: Manifest) -> World | None:
    """Return the world in a pod's environment; None: it has no place in one."""
    variables = {entry["name"]: entry.get("value") for entry in trainer_of(pod)["env"]}
    if "WORLD_SIZE" not in variables:
        return None
    return World(
        pods=int(variables["GROUP_WORLD_SIZE"] or 0),
        ranks=int(variables["WORLD_SIZE"] or 0),
        gang=_GANG in pod["metadata"]["labels"],
    )


class Invariants:
    """Implements `server.Judge`; the first violation is kept, for the engine outlives errors.

    `parse` reads a stored job.
    """

    def __init__(
        self,
        server: ApiServer,
        clock: Clock,
        *,
        parse: Callable[[Manifest], DDPJob],
        shape: Callable[[Manifest], str],
    ) -> None:
        self._server = server
        self._clock = clock
        self._parse = parse
        self._shape = shape
        self.most_pods = 14
        """No job of a history wants more than 7; others are foreign, or of an earlier attempt."""
        self.violation: str | None = None
        """Returns the name of the known fault of the operator that breaks a claim, if any."""
        self.clock_is_right = True
        self._truth: dict[str, Truth] = {}
        self.newest_pod: dict[str, Manifest] = {}
        """By the UIDs of jobs."""
        self.ledgers: dict[str, Ledger] = defaultdict(Ledger)
        """By the UIDs of jobs."""
        self.templates: dict[str, str] = {}
        """Of what each pod was made, by its UID."""
        self._accounts: dict[str, Accounts] = {}
        self._uid_of: dict[tuple[str, str], str] = {}
        self._recorded: set[tuple[str, str]] = set()
        self._spares: set[str] = set()
        self._broken_nodes: set[str] = set()
        self.judge_assignment_of: Callable[[Manifest], None] = lambda _: None
        """Asked of each pod that is made."""
        self.led: Mapping[str, Collection[int]] = {}
        """Generations that launchers began, by the UIDs of jobs."""
        self.judge_group: Callable[[DDPJob, DDPJob, Require], None] = lambda *_: None
        """Asked of each change of a job's status."""

    def truth_of(self, pod: Manifest) -> Truth:
        """Return the facts about a pod, for those who cause them to note."""
        return self._truth.setdefault(pod["metadata"]["uid"], Truth())

    def _accounts_of(self, job: str) -> Accounts:
        known = self._accounts.get(job)
        return known or self._accounts.setdefault(job, Accounts(self.require, self.ledgers[job]))

    def kind_of(self, pod: Manifest) -> tuple[str, bool]:
        """Return the template of a pod, and true for the first pod, which may be different."""
        template = self.templates.get(pod["metadata"]["uid"], "")
        return template, pod["metadata"]["labels"].get(LABEL_INDEX) == "0"

    def _lately(self, is_so: Callable[[Manifest], bool]) -> set[str]:
        """Return the names of nodes that are so, or perhaps were until lately."""
        lately = self._clock.seconds - LATE_TO_SEE_SECONDS
        return {
            name
            for name, node in self._server.node_manifests.items()
            if is_so(node) or self._server.changed_at[name] > lately
        }

    def _avoids_a_node(self) -> bool:
        """Return whether a pod without a node must not run on one that works."""
        work = self._lately(lambda node: not is_unreachable(node))
        pending = (pod for pod in self._server.pods.values() if not node_of(pod))
        return any(avoided(pod) & work for pod in pending)

    def note_fault(self, pod: Manifest, class_: Class) -> None:
        """Note a fault of a pod that is not the consequence of another one."""
        self.truth_of(pod).faults.add(class_)
        self.ledgers[owner_of(pod)].faults[class_] += 1
        if class_ == "Infrastructure":
            self._broken_nodes.add(node_of(pod))

    def require(self, holds: object, claim: str) -> None:
        """Record the first claim that does not hold."""
        if not holds and self.violation is None:
            self.violation = claim

    # Pods

    def pod_created(self, pod: Manifest) -> None:
        state = project(pod)
        name = (state.owner_uid, state.key.name)
        self._uid_of[name] = pod["metadata"]["uid"]
        self.ledgers[state.owner_uid].pods += 1
        self.newest_pod[state.owner_uid] = pod
        recorded = name in self._recorded
        self.require(not recorded, f"{state.key.name} is created again although it was on record")
        job = self._server.job
        if job is not None and job["metadata"]["uid"] == state.owner_uid:
            self._judge_creation(state.identity, self._parse(job).status)
            self._judge_succession(state)
            self._judge_isolation(self._parse(job))
            self._judge_world(pod)
            self._judge_gang(pod)
            self._judge_spare(pod, self._parse(job))
            self.templates[pod["metadata"]["uid"]] = self._shape(job)
        self.judge_assignment_of(pod)
        self.pod_changed()
        live = [one for one in self._server.pods.values() if not (is_over(one) or is_deleting(one))]
        self.require(len(live) <= self.most_pods, f"there are {len(live)} pods")

    def _judge_creation(self, identity: Identity, status: DDPJobStatus) -> None:
        """No pod without its counters, and none that nobody wants."""
        replacement = status.bookkeeping.replacements.get(str(identity.index), 0)
        stored = Identity(identity.index, status.attempt, replacement)
        self.require(identity == stored, f"created {identity}, stored is {stored}")
        self.require(not status.finished, "a pod is created for a job that has finished")
        self.require(not status.is_true("Suspended"), "a pod is created for a suspended job")

    def _judge_world(self, pod: Manifest) -> None:
        """Require that pods of one group have the same world, even if the job has been replaced
        unseen by the operator.
        """
        attempt = pod["metadata"]["labels"][LABEL_ATTEMPT]
        for other in self._server.pods.values():
            meets = other["metadata"]["labels"][LABEL_ATTEMPT] == attempt
            if not (meets and owner_of(other) == owner_of(pod)) or is_over(other):
                continue
            worlds = (world_of_pod(pod), world_of_pod(other))
            generations = {first_generation(one) for one in (pod, other)}
            if not is_deleting(other) and None not in worlds and len(generations) == 1:
                names = f"{pod['metadata']['name']} and {other['metadata']['name']}"
                self.require(worlds[0] == worlds[1], f"{names} have the worlds {worlds}")

    def _judge_gang(self, pod: Manifest) -> None:
        """No scheduler sees a pod of a gang before it knows of the gang, and how large it is."""
        if _GANG not in pod["metadata"]["labels"]:
            return
        world = world_of_pod(pod)
        fewest = world.pods if world else 1  # in all elastic jobs; spares are in no gang
        gang = self._server.gang
        known = gang is not None and owner_of(gang) == owner_of(pod)
        size = gang["spec"]["minMember"] if gang and known else 0
        name = pod["metadata"]["name"]
        self.require(size == fewest, f"{name} is created in a gang of {size}")

    def _judge_spare(self, pod: Manifest, job: DDPJob) -> None:
        """No pod without a place before all others have been made, or where it has one."""
        if world_of_pod(pod) is not None:
            return
        name = pod["metadata"]["name"]
        self.require(job.status.is_true("PodsCreated"), f"{name} comes before the group")
        self.require(name not in self._spares, f"{name} is created again although it was seen")
        taken = pod["metadata"]["labels"][LABEL_INDEX] in map(str, members(job))
        self.require(not taken, f"{name} has a place, but none in its environment")

    def _judge_succession(self, new: PodState) -> None:
        """No two gangs of a job at work, but for pods that do not end although they had to."""
        for pod in self._server.pods.values():
            old = int(pod["metadata"]["labels"][LABEL_ATTEMPT]) < new.identity.attempt
            if not (old and owner_of(pod) == new.owner_uid and is_running(pod)):
                continue
            due = pod["metadata"].get("deletionTimestamp")
            given_up = due is not None and (
                self._clock.now() >= datetime.fromisoformat(due) + _UNHEARD_OF
            )
            name = pod["metadata"]["name"]
            claim = f"{new.key.name} is created while {name} of the attempt before still trains"
            self.require(given_up or not self.clock_is_right, claim)

    def _judge_isolation(self, job: DDPJob) -> None:
        """Require that the status is right about the NetworkPolicy, or leaves it open."""
        policy = self._server.policy
        exists = policy is not None and owner_of(policy) == job.uid
        recorded = job.status.bookkeeping.isolation
        self.require(recorded != "Job" or exists, "recorded as isolated, and is not")
        self.require(recorded != "" or not exists, "isolated, and not recorded as such")

    def _judge_words(self, status: DDPJobStatus) -> None:
        for condition in status.conditions:
            text = own_text(condition.message)
            wrong = list(faults(text)) if text else []
            self.require(not wrong, f"{condition.type} says {text!r}, which {wrong}")

    def _true_now(self) -> datetime | None:
        """None: not by the operator's clock, which was wrong."""
        return self._clock.now() if self.clock_is_right else None

    def pod_changed(self) -> None:
        """One host name, one address: the name of a rank must never lead to a pod of the past."""
        names = Counter(
            pod["spec"]["hostname"]
            for pod in self._server.pods.values()
            if pod["metadata"]["labels"].get(LABEL_SERVING) == "true"
            and pod["metadata"]["labels"].get(LABEL_JOB_NAME) == JOB.name
            and not is_over(pod)
        )
        twice = [name for name, times in names.items() if times > 1]
        self.require(not twice, f"DNS lists two pods as {twice}")

    def pod_deleted(self, pod: Manifest) -> None:
        owner = project(pod).owner_uid
        self.require(owner.startswith("job-"), f"deleted a pod of {owner!r}")
        self.truth_of(pod).given_up = True

    def pod_removed(self, pod: Manifest) -> None:
        """Note that observers who come later see only that the pod is gone."""
        self.truth_of(pod).faults.add("Disruption")

    # The job

    def job_deleted(self, job: Manifest) -> None:
        self.require(self._parse(job).status.finished, "a job was deleted that had not finished")

    def status_written(self, before: Manifest, after: Manifest) -> None:
        old, new = self._parse(before), self._parse(after)
        verdicts = Verdicts(
            require=self.require,
            truth_of=lambda pod: self._truth.get(self._uid_of.get((new.uid, pod), ""), Truth()),
            ledger=self.ledgers[new.uid],
            broken_nodes=self._broken_nodes | self._lately(is_bad),
            avoids_a_node=self._avoids_a_node(),
            clock_is_right=self.clock_is_right,
            seconds=self._clock.seconds,
            led=self.led.get(new.uid, ()),
        )
        verdicts.judge(old, new)
        kinds = (
            self.kind_of(pod)
            for pod in self._server.pods.values()
            if stage_of(pod) >= Stage.STARTED
        )
        self.ledgers[new.uid].note(kinds, self._clock.seconds)
        self._accounts_of(new.uid).judge(old, new, clock_is_right=self.clock_is_right)
        status = new.status
        self._judge_words(status)
        self.judge_group(old, new, self.require)
        judge_order(self._server, old, new, self.require, now=self._true_now())
        self._judge_isolation(new)
        notes = status.bookkeeping
        identities = [
            Identity(slot, status.attempt, notes.replacements.get(str(slot), 0))
            for slot in members(new)
            if status.is_true("PodsCreated") or (notes.replacing and slot not in notes.replacing)
        ]
        self._spares = {
            Identity(slot, status.attempt, notes.replacements.get(str(slot), 0)).pod_name(new.name)
            for slot in notes.spares
        }
        self._recorded = {(new.uid, identity.pod_name(new.name)) for identity in identities}
