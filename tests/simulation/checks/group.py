"""Rules for changes of a job's group, and for when it counts as incomplete."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

from ddp_operator.api.constants import LABEL_ATTEMPT, LABEL_INDEX
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Failure
from ddp_operator.job.failure.records import LAUNCHER_UNREACHABLE, NODE_LEAVING
from ddp_operator.job.membership.world import members
from ddp_operator.job.planning.group.elasticity import GROUP_SHRUNK
from ddp_operator.ports import Key, Manifest

from tests.simulation.clock import Clock
from tests.simulation.world.kubelet import is_deleting, node_of, stage_of
from tests.simulation.world.launchers import Launchers
from tests.simulation.world.nodes import is_leaving
from tests.simulation.world.scheduler import Scheduler
from tests.simulation.world.server import JOB, ApiServer, owner_of
from tests.simulation.world.start_faults import Stage

Require = Callable[[object, str], None]

_LATE = timedelta(seconds=40)
"""A write may take 30 s, and a plan comes before it."""
_HEARD_SECONDS = 20.0
"""A launcher that answered this short a time ago is not called unreachable."""


class GroupJudge:
    """Judges each change of a job's status."""

    def __init__(
        self, server: ApiServer, clock: Clock, launchers: Launchers, scheduler: Scheduler
    ) -> None:
        self._server = server
        self._clock = clock
        self._launchers = launchers
        self._scheduler = scheduler
        self._replaced_unreached: Counter[tuple[str, float, str]] = Counter()
        """How often a healthy pod was replaced since the operator lost its way to all pods, by job,
        time of the loss, and index of the pod.
        """
        self._left: Counter[tuple[str, str]] = Counter()

    def judge(self, old: DDPJob, new: DDPJob, require: Require) -> None:
        """Judge one of them."""
        failure = new.status.failures[-1] if new.status.failures else None
        if failure is not None and new.status.failures[-1:] != old.status.failures[-1:]:
            if failure.reason == NODE_LEAVING:
                self._judge_departure(old, new, failure, require)
                self._judge_room(old, new, failure, require)
            if failure.reason == LAUNCHER_UNREACHABLE:
                self._judge_silence(failure, require)
                self._judge_replacement(new.uid, failure, require)
        self._judge_shrinking(old, new, require)
        self._judge_readiness(old, new, require)

    def _judge_silence(self, failure: Failure, require: Require) -> None:
        """Who has answered just now is not out of reach."""
        pod = self._server.pods.get(Key(JOB.namespace, failure.pod))
        if pod is not None:
            heard_at = self._launchers.heard_at.get(pod["metadata"]["uid"], -_HEARD_SECONDS)
            ago = self._clock.seconds - heard_at
            jumped = not self._launchers.clock_is_right()
            reached = ago < _HEARD_SECONDS and not jumped
            require(not reached, f"{failure.pod} is out of reach; heard {ago} s ago")

    def _judge_departure(
        self, old: DDPJob, new: DDPJob, failure: Failure, require: Require
    ) -> None:
        """No node is left but when it says that it goes, nor more often than that; and nobody moves
        from there to another such node.
        """
        node = failure.node
        self._left[new.uid, node] += 1
        times, starts = self._left[new.uid, node], self._server.leaving[node]
        claim = f"{node} is left {times} times, and was about to go {len(starts)} times"
        require(times <= len(starts), claim)
        heirs = {*members(new)} - {*members(old)}
        for pod in self._pods_of(new):
            labels = pod["metadata"]["labels"]
            is_present = int(labels[LABEL_ATTEMPT]) == new.status.attempt
            is_heir = is_present and int(labels[LABEL_INDEX]) in heirs
            where = node_of(pod)
            if is_heir and where and not is_deleting(pod):
                goes = self._says_for_long_that_it_goes(where)
                require(not goes, f"{node} is left for {where}, which is about to go, too")

    def _judge_room(self, old: DDPJob, new: DDPJob, failure: Failure, require: Require) -> None:
        """No pod leaves a node while no other node has a place for it, unless a spare takes its
        place or an elastic group continues without it.
        """
        tenants = self._scheduler.tenants
        lately = self._clock.seconds - tenants.changed_at < _LATE.total_seconds()
        if new.spec.elastic or (tenants.changed_at and lately):
            return
        if {*members(new)} - {*members(old)}:
            return
        pod = self._server.pods.get(Key(JOB.namespace, failure.pod))
        if pod is None:
            return
        nodes = self._server.node_manifests
        others = [name for name in self._scheduler.feasible(pod) if not is_leaving(nodes[name])]
        claim = f"{failure.pod} leaves {failure.node}, and no other node has a place for it"
        require(others, claim)

    def _judge_replacement(self, job: str, failure: Failure, require: Require) -> None:
        """A healthy pod is not replaced again and again because the operator does not reach it."""
        since = self._launchers.all_cut_off_since
        pod = self._server.pods.get(Key(JOB.namespace, failure.pod))
        if since is None or pod is None or node_of(pod) in self._launchers.dead_nodes:
            return
        index = pod["metadata"]["labels"][LABEL_INDEX]
        self._replaced_unreached[job, since, index] += 1
        times = self._replaced_unreached[job, since, index]
        require(times <= 1, f"{failure.pod} is healthy and not reached: replaced {times} times")

    def _says_for_long_that_it_goes(self, node: str) -> bool:
        known = self._clock.seconds - self._server.changed_at[node] > _LATE.total_seconds()
        return known and is_leaving(self._server.node_manifests[node])

    def _judge_shrinking(self, old: DDPJob, new: DDPJob, require: Require) -> None:
        """A pause of the operator's own is nobody's absence."""
        elastic, restarting = new.spec.elastic, new.status.condition("Restarting")
        until = old.status.next_start_time
        if elastic is None or restarting is None or until is None:
            return
        if not any(gap.reason == "Paused" for gap in old.status.gaps):
            return  # a spare has taken the place of the pod that was held back
        shrinks = restarting.reason == GROUP_SHRUNK and restarting != old.status.condition(
            "Restarting"
        )
        patience = timedelta(seconds=elastic.shrink_after_seconds)
        # What was decided by a clock that has been set back since is not judged by it.
        can_tell = shrinks and self._launchers.clock_is_right()
        early = can_tell and self._clock.operators_now() + _LATE < until + patience
        require(not early, f"the group shrinks while the operator pauses until {until}")

    def _judge_readiness(self, old: DDPJob, new: DDPJob, require: Require) -> None:
        """Require that a group is not called empty once all its pods have trained for a while."""
        if not old.status.is_true("Running") or new.status.finished or new.status.ready_replicas:
            return
        if old.status.incarnation != new.status.incarnation or old.status.world != new.status.world:
            return
        pods = list(self._pods_of(new))
        wanted = len(members(new))
        well = [
            pod
            for pod in pods
            if not is_deleting(pod)
            and stage_of(pod) is Stage.READY
            and pod["status"]["phase"] == "Running"
            and self._launchers.works(pod)
            and self._clock.seconds - self._changed_at(pod) > _LATE.total_seconds()
        ]
        require(len(well) < wanted or len(pods) > wanted, f"all {wanted} pods train, 0 are ready")

    def _changed_at(self, pod: Manifest) -> float:
        metadata = pod["metadata"]
        return self._server.pod_changed_at[Key(metadata["namespace"], metadata["name"])]

    def _pods_of(self, job: DDPJob) -> Iterator[Manifest]:
        return (pod for pod in self._server.pods.values() if owner_of(pod) == job.uid)
