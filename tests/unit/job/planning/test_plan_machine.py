"""`plan` over random histories: pods, users, clocks and operators that do whatever they can do."""

import os
import random
from dataclasses import replace
from typing import Any

from ddp_operator.job.planning.recovery import DISRUPTED_START_PAUSE_SECONDS
from ddp_operator.job.pods.state import ContainerExit, PodState
from ddp_operator.job.status.progress import Report, ReportedCheckpoint, TrainerStatus
from ddp_operator.ports import Key
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.good_manifests import container, template
from tests.unit.job.builders import edited, fresh_job, pod
from tests.unit.job.simulated_cluster import Order, SimulatedCluster, Write

# A long run is one in which somebody waits for the smallest failing history, too: minutes of work.
LONG_RUN = os.environ.get("DDP_HYPOTHESIS_EXAMPLES")
EXAMPLES = int(LONG_RUN or "250")
PHASES = tuple(Phase) if LONG_RUN else (Phase.generate,)
STEPS = 40

_failure_codes = st.sampled_from([1, 2, 64, 75, 137, 139, 143])
_specs = st.fixed_dictionaries(
    {
        "replicas": st.integers(1, 3),
        "restart": st.fixed_dictionaries(
            {"scope": st.sampled_from(["Gang", "Pod"]), "maxRestarts": st.integers(0, 3)}
        ),
        "cleanPodPolicy": st.sampled_from(["Running", "All", "None"]),
        "successPolicy": st.sampled_from(["AllPods", "Rank0"]),
        "suspend": st.booleans(),
    },
    optional={
        "activeDeadlineSeconds": st.just(600),
        "progressDeadlineSeconds": st.just(60),
        "ttlSecondsAfterFinished": st.just(300),
    },
)


class DDPJobHistories(RuleBasedStateMachine):
    """Everything that can happen to one job and its pods, in any order."""

    cluster: SimulatedCluster
    most_restarts_allowed: int

    @initialize(spec=_specs)
    def a_user_creates_a_job(self, spec: dict[str, Any]) -> None:
        self.cluster = SimulatedCluster(fresh_job(**spec))
        self.most_restarts_allowed = spec["restart"]["maxRestarts"]

    # The operator

    def gone(self) -> bool:
        """Whether the job's time to live is over."""
        return self.cluster.job_deleted

    @rule(seed=st.integers(0, 99))
    def the_operator_reconciles(self, seed: int) -> None:
        if self.gone():
            return
        self.cluster.reconcile(order=_shuffled(seed))
        if not self.gone():
            self.assert_settled()

    @rule(seed=st.integers(0, 99), writes=st.integers(0, 6))
    def the_operator_crashes(self, seed: int, writes: int) -> None:
        if not self.gone():
            self.cluster.reconcile(order=_shuffled(seed), writes_until_crash=writes)

    def assert_settled(self) -> None:
        """What must hold whenever an operator has finished its work."""
        cluster, status = self.cluster, self.cluster.job.status
        assert cluster.nothing_to_do()
        assert status.reason
        assert status.message
        assert status.observed_generation == cluster.job.generation
        live = [p for p in self.own_pods() if not (p.deleting or p.succeeded or p.failed)]
        for one in live:
            assert one.identity.attempt == status.attempt
            replaced = status.bookkeeping.replacements.get(str(one.identity.index), 0)
            assert one.identity.replacement == replaced
        if cluster.job.spec.suspend and not status.finished:
            assert status.phase == "Suspended"
            assert live == []

    # Pods: the scheduler, the kubelet, and what befalls them

    def own_pods(self) -> list[PodState]:
        uid = self.cluster.job.uid
        return [one for one in self.cluster.pods.values() if one.owner_uid == uid]

    def draw(self, data: st.DataObject, *, live: bool = True) -> Key | None:
        """Choose a pod that has not ended, or any."""
        keys = [one.key for one in self.own_pods() if not live or not (one.succeeded or one.failed)]
        return data.draw(st.sampled_from(keys)) if keys else None

    @rule(data=st.data())
    def a_pod_is_scheduled(self, data: st.DataObject) -> None:
        if key := self.draw(data):
            self.cluster.change(key, node="node-a", waiting="")

    @rule(data=st.data(), why=st.sampled_from(["Unschedulable", "ErrImagePull"]))
    def a_pod_cannot_start(self, data: st.DataObject, why: str) -> None:
        if (key := self.draw(data)) and self.cluster.pods[key].phase == "Pending":
            self.cluster.change(key, waiting=why, waiting_message="in words")

    @rule(data=st.data(), ready=st.booleans())
    def a_pod_runs(self, data: st.DataObject, *, ready: bool) -> None:
        if key := self.draw(data):
            self.cluster.change(key, phase="Running", node="node-a", waiting="", ready=ready)

    @rule()
    def all_pods_run(self) -> None:
        for one in self.own_pods():
            if not (one.succeeded or one.failed or one.deleting):
                self.cluster.change(one.key, phase="Running", node="node-a", waiting="", ready=True)

    @rule(data=st.data(), code=st.just(0) | _failure_codes, side_car=st.booleans())
    def a_trainer_exits(self, data: st.DataObject, code: int, *, side_car: bool) -> None:
        if key := self.draw(data):
            self.end(key, code, side_car=side_car)

    @rule(data=st.data(), code=_failure_codes)
    def a_trainer_fails_and_takes_its_peers_along(self, data: st.DataObject, code: int) -> None:
        if key := self.draw(data):
            self.end(key, code)
            for one in self.own_pods():
                if not (one.succeeded or one.failed) and one.phase == "Running":
                    self.end(one.key, 75)

    def end(self, key: Key, code: int, *, side_car: bool = False) -> None:
        one = self.cluster.pods[key]
        self.cluster.change(
            key,
            phase="Running" if side_car else "Failed" if code else "Succeeded",
            ready=False,
            node="node-a",
            waiting="",
            exit=ContainerExit(code, 0, "Error" if code else "Completed", "", self.cluster.now),
            ended_by_deletion=one.deleting,
        )

    @rule(data=st.data(), how=st.sampled_from(["DisruptionTarget", "Evicted", "deleted"]))
    def a_pod_is_disrupted(self, data: st.DataObject, how: str) -> None:
        if key := self.draw(data):
            if how == "DisruptionTarget":
                self.cluster.change(key, disruption="EvictionByEvictionAPI", deleting=True)
            elif how == "Evicted":
                self.cluster.change(key, phase="Failed", reason="Evicted", ready=False)
            else:
                self.cluster.change(key, deleting=True)

    @rule(step=st.integers(0, 3), saved=st.none() | st.integers(0, 3))
    def the_trainer_reports(self, step: int, saved: int | None) -> None:
        speaker = next((p for p in self.own_pods() if p.identity.index == 0 and p.ready), None)
        if speaker:
            checkpoint = None if saved is None else ReportedCheckpoint(step=saved)
            said = TrainerStatus(step=step, checkpoint=checkpoint)
            self.cluster.report = Report(
                speaker.owner_uid, speaker.identity, said, self.cluster.now, self.cluster.now
            )

    @rule(data=st.data())
    def a_pod_vanishes(self, data: st.DataObject) -> None:
        if key := self.draw(data, live=False):
            del self.cluster.pods[key]

    @rule(data=st.data(), code=st.sampled_from([None, 0, 137, 143]))
    def a_terminating_pod_goes(self, data: st.DataObject, code: int | None) -> None:
        """Others hang in Terminating for as long as this does not happen to them."""
        going = [one.key for one in self.own_pods() if one.deleting]
        if not going:
            return
        key = data.draw(st.sampled_from(going))
        one = self.cluster.pods[key]
        if code is not None and not (one.succeeded or one.failed):
            self.end(key, code)  # the object goes with a later event
        else:
            del self.cluster.pods[key]

    @rule(index=st.integers(0, 2))
    def an_earlier_jobs_pod_is_noticed(self, index: int) -> None:
        stranger = replace(pod(self.cluster.job, index, phase="Running"), owner_uid="another")
        self.cluster.pods.setdefault(stranger.key, stranger)

    @rule()
    def an_earlier_jobs_pods_go(self) -> None:
        for one in list(self.cluster.pods.values()):
            if one.owner_uid != self.cluster.job.uid:
                del self.cluster.pods[one.key]

    # The user, and time

    @rule()
    def the_user_toggles_suspend(self) -> None:
        suspend = not self.cluster.job.spec.suspend
        self.cluster.job = edited(self.cluster.job, suspend=suspend)

    @rule(image=st.sampled_from(["one", "other"]))
    def the_user_edits_the_template(self, image: str) -> None:
        self.cluster.job = edited(self.cluster.job, template=template(container(image=image)))

    @rule(limit=st.integers(0, 3))
    def the_user_edits_the_restart_limit(self, limit: int) -> None:
        scope = self.cluster.job.spec.restart.scope
        restart = {"scope": scope, "maxRestarts": limit}
        self.cluster.job = edited(self.cluster.job, restart=restart)
        self.most_restarts_allowed = max(self.most_restarts_allowed, limit)

    @precondition(lambda self: self.cluster.job.spec.suspend)
    @rule(replicas=st.integers(1, 3))
    def the_user_edits_replicas(self, replicas: int) -> None:
        self.cluster.job = edited(self.cluster.job, replicas=replicas)

    @rule(seconds=st.sampled_from([1, 30, 400]))
    def time_passes(self, seconds: int) -> None:
        self.cluster.advance(seconds)

    # What must hold at every moment, and at the end

    @invariant()
    def no_more_restarts_are_charged_than_allowed(self) -> None:
        assert self.cluster.job.status.restarts <= self.most_restarts_allowed

    def teardown(self) -> None:
        """Once all faults stop, a job ends, or is as suspended as its user wants it."""
        if not hasattr(self, "cluster") or self.gone():
            return
        self.an_earlier_jobs_pods_go()
        for _ in range(6):
            self.the_operator_reconciles(seed=0)
            if self.gone():
                return
            for one in self.own_pods():
                if one.deleting:
                    del self.cluster.pods[one.key]
            if self.cluster.job.status.phase == "Running":
                for one in self.own_pods():
                    if not (one.succeeded or one.failed):
                        self.end(one.key, 0)
            self.all_pods_run()
            self.cluster.advance(DISRUPTED_START_PAUSE_SECONDS)
        status = self.cluster.job.status
        expected = {"Suspended"} if self.cluster.job.spec.suspend else set()
        assert status.finished or status.phase in expected


def _shuffled(seed: int) -> Order:
    def order(writes: list[Write]) -> list[Write]:
        return random.Random(seed).sample(writes, len(writes))

    return order


def test_plan_over_random_histories() -> None:
    run_state_machine_as_test(
        DDPJobHistories,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            phases=PHASES,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
