"""Which time-outs must not be longer than others, because somebody else would give up before.

And how long a group may take to form. Pure. What was chosen is never changed; a default gives way
to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings.flags import flag_of


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One time-out that must not be longer than another one; both by their names as fields."""

    shorter: str
    longer: str
    otherwise: str
    """What would happen."""
    patient: bool = False
    """Whether, where nobody chose the longer one, it is that which gives way."""


RULES = (
    Rule(
        shorter="checkpoint_timeout_seconds",
        longer="group_timeout_seconds",
        otherwise="the other ranks would give up while rank 0 may still save",
    ),
    Rule(
        shorter="heartbeat_timeout_seconds",
        longer="group_timeout_seconds",
        otherwise="a frozen rank would end the collectives of the others before they look for it",
    ),
)
"""Of the trainer's flags."""

STOPPING = Rule(
    shorter="stop_within_seconds",
    longer="kill_after_seconds",
    otherwise="ranks would be killed while they may still save",
    patient=True,
)
"""Of the launcher's and the trainer's flags, where it is the trainer that is launched."""


_CONTACT_SECONDS = 15.0
_SECONDS_FOR_TWO_RANKS = 170e-6
"""Each rank reads the address of every other one from rank 0's store, which has one thread. A
request took up to 51 microseconds of its CPU time with 8 to 128 ranks: 13 s for 512 ranks. More
than three times that, for slower CPUs."""


def contact_seconds(ranks: int) -> float:
    """How long the first contact of a group's ranks may take, all of which have just been seen."""
    return _CONTACT_SECONDS + _SECONDS_FOR_TWO_RANKS * ranks**2


def settle(
    seconds: Mapping[str, float], chosen: Collection[str], rule: Rule
) -> Mapping[str, float]:
    """All time-outs by name, of which those that are not `chosen` may have given way.

    Raises:
        ConfigurationError: what was chosen breaks the rule; with both flags and the remedy.
    """
    short, long = seconds[rule.shorter], seconds[rule.longer]
    if short <= long:
        return seconds
    if rule.patient and rule.longer not in chosen:
        return {**seconds, rule.longer: short}
    if rule.shorter not in chosen:
        return {**seconds, rule.shorter: long}
    raise ConfigurationError(
        f"{flag_of(rule.shorter)} is {short:g} and {flag_of(rule.longer)} {long:g}: "
        f"{rule.otherwise}; lower the first, or raise the second to {short:g} or more"
    )
