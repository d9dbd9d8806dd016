"""Rules between timeouts, and how long the first contact of a group may take. Pure.

A value that the user chose is never changed; a default is adjusted to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings.flags import flag_of


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A timeout that must not be longer than another; both by their field names."""

    shorter: str
    longer: str
    otherwise: str
    """The consequence that the rule prevents."""
    patient: bool = False
    """True: if the user did not choose `longer`, it is raised to `shorter`."""


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
"""Rules for the trainer's flags."""

STOPPING = Rule(
    shorter="stop_within_seconds",
    longer="kill_after_seconds",
    otherwise="ranks would be killed while they may still save",
    patient=True,
)
"""Rule for flags of the launcher and of the bundled trainer."""


_CONTACT_SECONDS = 15.0
_SECONDS_FOR_TWO_RANKS = 170e-6
"""Each rank reads the address of every other rank from rank 0's store, which has one thread. A
request took up to 51 microseconds of its CPU time with 8 to 128 ranks: 13 s for 512 ranks. This is
more than three times as long, for slower CPUs."""


def contact_seconds(ranks: int) -> float:
    """Return the timeout in seconds for the first contact of ranks that were just seen alive."""
    return _CONTACT_SECONDS + _SECONDS_FOR_TWO_RANKS * ranks**2


def settle(
    seconds: Mapping[str, float], chosen: Collection[str], rule: Rule
) -> Mapping[str, float]:
    """Return all timeouts by name; those that are not `chosen` may be adjusted to the rule.

    Raises:
        ConfigurationError: chosen values break the rule; names both flags and the remedy.
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
