"""Rules for a job's status, judged at each write by what really happened."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus, Failure, Goodput
from ddp_operator.job.failure.records import (
    LAUNCHER_UNREACHABLE,
    NO_PROGRESS,
    NODE_LEAVING,
)
from ddp_operator.job.membership.launchers import PODS_UNREACHABLE
from ddp_operator.job.membership.world import members, slots_of
from ddp_operator.job.planning.group.leading import LED
from ddp_operator.job.pods.observed import completed_indexes
from ddp_operator.job.pods.state import START_TIMEOUT, Identity

from tests.simulation.checks.truth import LATE_TO_SEE_SECONDS, Ledger, Truth
from tests.simulation.world.server import REFUSED_IMAGE

_OBSERVED = frozenset(
    {"observed_generation", "ready_replicas", "ready", "completed_indexes", "selector"}
)
"""Observed fields, which may still change after a job has finished."""

_OF_NO_POD = (NO_PROGRESS, LAUNCHER_UNREACHABLE, PODS_UNREACHABLE)
"""Reasons of failures that consist in nothing being heard."""

MOST_NODE_FAILURES = 3
"""Of pods that cannot be reached, before one counts."""
Require = Callable[[object, str], None]


@dataclass(frozen=True)
class Verdicts:
    """Judges one change of a job's status.

    `truth_of` tells by a pod's name what became of it, `ledger` what became of the job,
    `broken_nodes` which nodes report a broken device or broke one under a pod, `avoids_a_node`
    whether a pod without a node may not use one that works, `clock_is_right` whether the operator's
    clock never was wrong, `seconds` the time.
    """

    require: Require
    truth_of: Callable[[str], Truth]
    ledger: Ledger
    broken_nodes: Collection[str]
    avoids_a_node: bool
    clock_is_right: bool
    seconds: float
    led: Collection[int] = ()
    """Generations that launchers began."""

    def judge(self, before: DDPJob, after: DDPJob) -> None:
        old, new = before.status, after.status
        if old.finished:
            changed = [
                name for name, value in old if value != getattr(new, name) and name not in _OBSERVED
            ]
            self.require(not changed, f"{changed} of a finished job's status changed")
            return
        size = len(members(after))
        self._ended_well(after, completed_indexes(new.completed_indexes, below=size))
        self._counters(old, after)
        self._goodput(new, after)
        if new.is_true("Succeeded"):
            asked_for = range(1 if after.spec.success_policy == "Rank0" else size)
            self._ended_well(after, asked_for)
        if new.is_true("Failed"):
            self._failed(after)
        barred = set(new.bookkeeping.barred_nodes).difference(old.bookkeeping.barred_nodes)
        well = barred.difference(self.broken_nodes)
        self.require(not well, f"pods must not run on {well}, where nothing is broken")

    def _counters(self, old: DDPJobStatus, after: DDPJob) -> None:
        """Each restart is counted once, on record, and charged only where it must be."""
        new = after.status
        charged = new.restarts - old.restarts
        disrupted = new.disruptions - old.disruptions
        # Retries in a row are counted: the count returns to 0 once all pods run.
        retried = max(new.bookkeeping.scheduling_retries - old.bookkeeping.scheduling_retries, 0)
        started = new.attempt - old.attempt
        renewed = (new.bookkeeping.spares_renewed or 0) - (old.bookkeeping.spares_renewed or 0)
        replaced = _replaced(new) - _replaced(old) != (0 if started else renewed)
        self._same_group(old, new)
        if self._is_led(old, new):
            self._accepted(old, after)
            return
        generations = _generation(new) - _generation(old)
        self.require(generations in (0, 1), f"the generation moved by {generations}")
        anew = generations == 1 and not started
        ordered = new.bookkeeping.ordered != old.bookkeeping.ordered
        if charged < 0:
            self._correction(old, after)
            return
        counts = (charged, disrupted, retried, started)
        restarting = new.condition("Restarting")
        reason = restarting.reason if restarting else ""
        rescheduled = reason == "Rescheduled" and self.avoids_a_node
        self.require(all(count in (0, 1) for count in counts), f"counters jumped by {counts}")
        if charged or disrupted:
            self.require(charged + disrupted + retried == 1, "a restart was counted twice")
            self.require(started or replaced or anew, "a restart was counted that is none")
            # Of two that are alike, within one second, there are two.
            self.require(new.failures != old.failures, "a restart without a record")
            self._cause(after, new.failures[-1], charged=bool(charged))
        elif started:
            edited = reason == "SpecChanged"
            reasons = edited + retried + rescheduled + old.is_true("Suspended")
            self.require(reasons == 1, "the gang restarts for nothing")
        elif anew and after.spec.elastic and not ordered:
            self._resized(old, after)
        else:
            self.require(not replaced or rescheduled, "a pod was replaced uncounted")
            relieved = self._is_relieved(old, after)
            self.require(not anew or relieved or ordered, "processes restart uncounted")
        if charged:
            limit = after.spec.restart.max_restarts
            used = after.status.bookkeeping.restarts_without_progress
            self.require(used <= limit, "more restarts than allowed")

    def _is_led(self, old: DDPJobStatus, new: DDPJobStatus) -> bool:
        """Return whether the operator accepts what launchers led, and decides no failure."""
        if old.attempt != new.attempt or _generation(old) == _generation(new):
            return False
        restarting = new.condition("Restarting")
        if restarting == old.condition("Restarting"):
            return _generation(new) in self.led
        return restarting is not None and restarting.reason == LED

    def _accepted(self, old: DDPJobStatus, after: DDPJob) -> None:
        """Each restart that launchers led has at most one record; a group of others restarts."""
        new = after.status
        newest = _generation(new) - (new.condition("Restarting") != old.condition("Restarting"))
        self.require(newest in self.led, f"nobody led generation {newest}")
        counted = new.restarts + new.disruptions - old.restarts - old.disruptions
        led = _generation(new) - _generation(old)
        self.require(counted <= led, f"{counted} failures for {led} restarts")
        self.require(_replaced(new) == _replaced(old), "a pod was replaced uncounted")
        for failure in new.failures[len(new.failures) - counted :]:
            self._cause(after, failure, charged=bool(failure.charged))

    def _is_relieved(self, old: DDPJobStatus, after: DDPJob) -> bool:
        """Return whether spares took the places of pods that were recorded as lost, or that never
        ran as far as anybody could see: then no process restarts.
        """
        before, now = (slots_of(each.world, after.spec.replicas) for each in (old, after.status))
        gone = set(before).difference(now)
        return bool(gone) and (
            old.is_true("Restarting")
            or all(self._never_ran(after.name, old, slot) for slot in gone)
        )

    def _never_ran(self, job: str, status: DDPJobStatus, slot: int) -> bool:
        replacement = status.bookkeeping.replacements.get(str(slot), 0)
        truth = self.truth_of(Identity(slot, status.attempt, replacement).pod_name(job))
        return not truth.moved_at or self.seconds - truth.moved_at < LATE_TO_SEE_SECONDS

    def _same_group(self, old: DDPJobStatus, new: DDPJobStatus) -> None:
        """A generation has one group for ever, and each pod has one place in it."""
        if new.world is None:
            self.require(old.world is None, "the record of the group is gone")
            return
        if old.world is not None and old.world.generation == new.world.generation:
            same = old.world.members == new.world.members
            self.require(same, f"the group of generation {new.world.generation} has changed")

    def _resized(self, old: DDPJobStatus, after: DDPJob) -> None:
        """A group of another size is within its job's bounds, and keeps who it had in order."""
        before = slots_of(old.world, after.spec.replicas, elastic=True)
        now = members(after)
        self.require(before != now, "processes restart for nothing")
        least, most = after.spec.min_size, after.spec.max_size
        self.require(len(now) >= least, f"{len(now)} pods are fewer than {least}")
        grows = len(now) > len(before)
        self.require(not grows or len(now) <= most, f"{len(now)} pods are more than {most}")
        kept = [slot for slot in before if slot in now]
        if grows:
            self.require(list(now[: len(before)]) == list(before), f"{before} became {now}")
        elif len(now) == len(kept):
            self.require(list(now) == kept, f"{before} became {now}")

    def _correction(self, old: DDPJobStatus, job: DDPJob) -> None:
        """A charge is taken back when its cause is seen late, and nothing else happens."""
        new = job.status
        counts = (new.restarts - old.restarts, new.disruptions - old.disruptions)
        self.require(counts == (-1, 1), f"a correction counted {counts}")
        self.require(old.attempt == new.attempt, "a correction started pods")
        same = old.bookkeeping.replacements == new.bookkeeping.replacements
        self.require(same, "a correction replaced pods")
        pairs = zip(old.failures, new.failures, strict=True)
        corrected = [(before, after) for before, after in pairs if before != after]
        self.require(len(corrected) == 1, f"{len(corrected)} records were corrected")
        before, after = corrected[0]
        self.require(before.charged and not after.charged, "there was no charge to take back")
        self.require(before.attempt == after.attempt, "the cause is of another attempt")
        by_rule = any(rule.charged is False for rule in job.spec.restart.rules)
        excuses = by_rule or after.class_ in ("Disruption", "Infrastructure")
        self.require(excuses, "a charge was taken back for nothing")

    def _cause(self, job: DDPJob, failure: Failure, *, charged: bool) -> None:
        self.require(failure.charged is charged, "the record and the counter differ")
        by_rule = any(rule.charged is charged for rule in job.spec.restart.rules)
        truth = self.truth_of(failure.pod)
        if failure.reason == NO_PROGRESS:
            still = max(self.seconds - truth.moved_at, truth.stood_seconds)
            deadline = job.spec.progress_deadline_seconds or 0
            # An operator that has restarted knows only the clock.
            hung = still >= deadline - 1 or not self.clock_is_right
            self.require(hung, f"taken for hung although {failure.pod} stood for {still:.1f} s")
            complete = _is_complete(job.status) and truth.last_step_at is not None
            claim = f"taken for hung although {failure.pod} has made its last step"
            self.require(not complete, claim)
        elif charged:
            due = by_rule or self._is_chargeable(job, failure)
            self.require(due, f"{failure.pod} was charged, but in truth: {truth}")
            self.require(by_rule or not failure.disruption, "a disruption was charged")
        self._called_rightly(failure, truth)
        if charged and (by_rule or failure.reason in _OF_NO_POD or failure.class_ != "Application"):
            self.ledger.other_charges += 1
        if failure.disruption:
            own_doing = truth.given_up and not truth.taken_away
            self.require(not own_doing, f"{failure.pod}, which was given up, counts as disrupted")

    def _called_rightly(self, failure: Failure, truth: Truth) -> None:
        """A failure is of the class that what befell its pod deserves."""
        if failure.reason in (*_OF_NO_POD, NODE_LEAVING) or not truth.faults:
            return
        if failure.reason == START_TIMEOUT and not self.clock_is_right:
            return  # by a clock that is ahead, it was late
        claim = f"{failure.pod} is called {failure.class_}, and deserved {sorted(truth.faults)}"
        self.require(failure.class_ in truth.faults, claim)

    def _is_chargeable(self, job: DDPJob, failure: Failure) -> bool:
        if failure.class_ == "Infrastructure":
            # If every node of a job seems broken, the job is the cause.
            of_nodes = sum(known.class_ == "Infrastructure" for known in job.status.failures)
            return of_nodes > MOST_NODE_FAILURES
        own = "Application" in self.truth_of(failure.pod).faults
        return own or failure.reason == NO_PROGRESS

    def _failed(self, job: DDPJob) -> None:
        """Require that a job failed for a reason that really existed."""
        reason, spec = job.status.reason, job.spec
        last = job.status.failures[-1] if job.status.failures else None
        truth = self.truth_of(last.pod) if last else Truth()
        if reason == "MaxRestartsExceeded" and last:
            used = job.status.bookkeeping.restarts_without_progress
            self.require(used >= spec.restart.max_restarts, "failed within budget")
            by_rule = any(rule.charged for rule in spec.restart.rules)
            due = by_rule or self._is_chargeable(job, last)
            self.require(due, f"failed because of {last.pod}, but in truth: {truth}")
        elif reason == "DeadlineExceeded":
            age = self.seconds - self.ledger.created
            due = age >= (spec.active_deadline_seconds or age + 1) or not self.clock_is_right
            self.require(due, f"the deadline is over after {age} s")
        elif reason == "FailedByRule":
            ruled = any(rule.action == "FailJob" for rule in spec.restart.rules)
            self.require(ruled, "failed by a rule that is none")
        elif reason == "InvalidPodTemplate":
            image = spec.template["spec"]["containers"][0]["image"]
            self.require(image == REFUSED_IMAGE, f"the template with {image!r} is called invalid")
        elif reason == "InvalidSpec":
            self.require(not self.ledger.seen_to_run, "a job that has run failed for its new spec")
        else:
            wrong = "Configuration" in truth.faults and last is not None
            self.require(wrong, f"failed with {reason} because of {last}, but in truth: {truth}")

    def _ended_well(self, job: DDPJob, indices: Iterable[int]) -> None:
        ignored = [
            rule.exit_codes or () for rule in job.spec.restart.rules if rule.action == "Ignore"
        ]
        for index in indices:
            slot = members(job)[index]
            replacement = job.status.bookkeeping.replacements.get(str(slot), 0)
            name = Identity(slot, job.status.attempt, replacement).pod_name(job.name)
            truth = self.truth_of(name)
            well = truth.completed or truth.is_done
            well = well or any(truth.exit_code in codes for codes in ignored)
            self.require(well, f"{name} counts as a success, but in truth: {truth}")

    def _goodput(self, status: DDPJobStatus, job: DDPJob) -> None:
        """Every second of the job's age is accounted for, once."""
        goodput, watch = status.goodput or Goodput(), status.bookkeeping.stopwatch
        accounted_until = watch.accounted_until if watch else job.created
        parts = (
            goodput.pending_seconds,
            goodput.starting_seconds,
            goodput.training_seconds,
            goodput.lost_seconds,
            goodput.suspended_seconds,
        )
        age = accounted_until - job.created
        self.require(timedelta(seconds=sum(parts)) == age, f"goodput {parts} is not {age}")
        self.require(all(part >= 0 for part in parts), f"goodput {parts}")
        if status.completion_time is not None and self.clock_is_right:
            is_all = accounted_until == status.completion_time
            self.require(is_all, f"accounted until {accounted_until}")


def _is_complete(status: DDPJobStatus) -> bool:
    """Return whether the status says that the last step was made and saved."""
    progress, saved = status.progress, status.checkpoint
    total = progress.total_steps if progress else None
    return bool(progress and saved and total and min(progress.step, saved.step) >= total)


def _generation(status: DDPJobStatus) -> int:
    return status.world.generation if status.world else 0


def _replaced(status: DDPJobStatus) -> int:
    return sum(status.bookkeeping.replacements.values())
