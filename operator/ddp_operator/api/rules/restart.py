"""Rules on restarts, and on what to do about slow ranks."""

from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.spec import DDPJobSpec, RestartRule
from ddp_operator.api.spec.restart import SlowRankPolicy

_REPLACES = "has(self.slowRank) && self.slowRank.action == 'Replace'"


def _asked(spec: DDPJobSpec) -> SlowRankPolicy | None:
    return spec.restart.slow_rank


def _replaces(spec: DDPJobSpec) -> bool:
    asked = _asked(spec)
    return asked is not None and asked.action == "Replace"


def _has_matcher(rule: RestartRule) -> bool:
    matchers = (rule.exit_codes, rule.reasons, rule.message_regex, rule.ranks, rule.classes)
    return any(matcher is not None for matcher in matchers)


RESTART_RULES = (
    Rule(
        "spec.restart.backoff: maxSeconds is less than initialSeconds; raise maxSeconds or lower "
        "initialSeconds",
        "self.restart.backoff.initialSeconds <= self.restart.backoff.maxSeconds",
        lambda spec: spec.restart.backoff.initial_seconds <= spec.restart.backoff.max_seconds,
    ),
    Rule(
        "spec.restart.rules: a rule has no matcher; set exitCodes, reasons, messageRegex, "
        "ranks or classes",
        "!has(self.rules) || self.rules.all(r, has(r.exitCodes)"
        " || has(r.reasons) || has(r.messageRegex) || has(r.ranks) || has(r.classes))",
        lambda spec: all(_has_matcher(rule) for rule in spec.restart.rules),
        on="restart",
    ),
    Rule(
        "spec.restart.rules: charged needs the action RestartPod or RestartGang; remove it",
        "!has(self.rules) || self.rules.all(r, !has(r.charged)"
        " || r.action in ['RestartPod', 'RestartGang'])",
        lambda spec: all(
            rule.charged is None or rule.action in ("RestartPod", "RestartGang")
            for rule in spec.restart.rules
        ),
        on="restart",
    ),
    Rule(
        # As the schema's minimum, the API server would cut 1.01 to 1 for a whole number.
        "spec.restart.slowRank.factor: must be more than 1, such as 1.3",
        "!has(self.slowRank) || double(self.slowRank.factor) > 1.0",
        lambda spec: (asked := _asked(spec)) is None or asked.factor > 1,
        on="restart",
    ),
    Rule(
        "spec.restart.slowRank.action: with restart.scope Gang a replaced pod restarts all others; "
        "set the scope to Auto, or the action to Report",
        f"!({_REPLACES}) || self.scope != 'Gang'",
        lambda spec: not _replaces(spec) or spec.restart.scope != "Gang",
        on="restart",
    ),
    Rule(
        "spec.restart.slowRank: a rank is compared with others, and one pod cannot be replaced "
        "alone; raise spec.replicas, or remove slowRank",
        "!has(self.restart.slowRank) || self.replicas > 1 || has(self.elastic)",
        lambda spec: not _asked(spec) or spec.replicas > 1 or spec.elastic is not None,
    ),
    Rule(
        "spec.restart.slowRank: a log that spec.progress.logPattern reads has no times of ranks; "
        "let the trainer report on the status port, and remove progress, or remove slowRank",
        "!has(self.restart.slowRank) || !has(self.progress)",
        lambda spec: not _asked(spec) or spec.progress is None,
    ),
)
