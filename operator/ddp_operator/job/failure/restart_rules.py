"""Apply `spec.restart.rules`: the action for a failure, and whether it is charged."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from ddp_operator.api import ranks
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Failure, FailureAction
from ddp_operator.api.values.expressions import search
from ddp_operator.job.failure import records
from ddp_operator.job.membership.world import scope_of
from ddp_operator.job.pods.observed import Observed

_OF_SCOPE: Final[Mapping[str, FailureAction]] = {
    "Gang": "RestartGang",
    "Pod": "RestartPod",
    "InPlace": "RestartInPlace",
}


@dataclass(frozen=True, slots=True)
class Reaction:
    """The reaction to a failure."""

    action: FailureAction
    charged: bool | None = None
    """None: by the failure's class."""
    rule: str = ""
    """The path of the matching rule; empty if none matched."""


def judge(job: DDPJob, failure: Failure) -> Reaction:
    """Return the reaction of the first matching rule, else of the failure's class and the job's
    scope.

    Rules with action Ignore are skipped here; `ignoring` applies them to pods that ended.
    """
    for reaction in _matching(job, failure):
        if reaction.action != "Ignore":
            return reaction
    if failure.class_ == "Configuration":
        return Reaction("FailJob")
    return Reaction(_OF_SCOPE[scope_of(job)])


def ignoring(job: DDPJob, pods: Observed, now: datetime) -> Observed:
    """Mark failed pods as completed if the first matching rule ignores them."""
    if all(rule.action != "Ignore" for rule in job.spec.restart.rules):
        return pods
    current = dict(pods.current)
    ignored: list[tuple[Failure, str]] = []
    for index, pod in pods.current.items():
        if pod.failed and not pod.deleting:  # a deleted pod is recreated anyway
            failure = records.of_pod(job, pod, now)
            reaction = next(_matching(job, failure), None)
            if reaction and reaction.action == "Ignore":
                current[index] = replace(pod, ignored=True)
                ignored.append((failure.updated(action="Ignore"), reaction.rule))
    return replace(pods, current=current, ignored=tuple(ignored))


def _matching(job: DDPJob, failure: Failure) -> Iterator[Reaction]:
    """Yield the reactions of the rules that match with all their matchers."""
    # All ranks of the pod, if it is unknown which failed.
    own = ranks.ranks(job.spec, failure.index) if failure.rank is None else {failure.rank}
    for index, rule in enumerate(job.spec.restart.rules):
        if (
            (rule.exit_codes is None or failure.exit_code in rule.exit_codes)
            and (rule.reasons is None or failure.reason in rule.reasons)
            and (rule.classes is None or failure.class_ in rule.classes)
            and (rule.ranks is None or not set(own).isdisjoint(rule.ranks))
            and (rule.message_regex is None or search(rule.message_regex, failure.message))
        ):
            yield Reaction(rule.action, rule.charged, f"spec.restart.rules[{index}]")
