"""What a job would lose now if failure domains of its pods failed. Pure.

A snapshot is lost with all pods that hold it. If those of each snapshot are in at least three
blocks, any two blocks can fail. Once one snapshot is lost, the step is lost for all ranks.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ddp_protocol.copies import Domain, copy_plan, fingerprint, order_by_domain

from ddp_operator.api.values.text import counted, cut, in_ranges
from ddp_operator.job.status.failure_domains import LEVELS

UNKNOWN: Final = (
    "what lost pods cost is not known before the next complete step, because copies move"
)
_NUMBERS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NAMED: Final = 2
"""Domains that a message names."""
_NAME: Final = 63
"""Characters of a domain's name that are shown: all of a label."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """The failure domains of one level, such as blocks, that the pods of a job are in."""

    name: str
    domains: int
    survives: int
    """The step is left if so many domains fail at once, whichever they are."""
    fatal: Sequence[tuple[str, int]]
    """The domains that alone take a snapshot with all its copies; with their pods."""


@lru_cache(maxsize=32)
def levels_of(
    domains: Sequence[Domain], *, copies: int, order: str | None, replicated: bool = False
) -> Sequence[Level] | None:
    """Return the levels at which pods are in several domains, from the widest to the closest.

    Args:
        domains: of each node rank. A level at which some pod's domain is unknown is left out.
        copies: of each snapshot, in other pods.
        order: fingerprint of the order by which they were placed; empty: that of the node ranks.
        replicated: each pod has the state of all.

    Returns:
        None: it is not known which pods hold copies.
    """
    nodes = range(len(domains))
    holders: Sequence[Sequence[int]] = [nodes]
    if not replicated:
        known = (order_by_domain(domains), nodes)
        orders = {fingerprint(in_ranges(each)): each for each in known}
        placed = nodes if order == "" else orders.get(order or "")
        if placed is None:
            return None
        holders = [
            (owner, *others) for owner, others in enumerate(copy_plan(placed, copies).holders)
        ]
    levels = []
    for at, name in enumerate(LEVELS):
        places = [domain[: at + 1] for domain in domains]
        if any(place[at] is None for place in places) or len(set(places)) == 1:
            continue
        sizes = Counter(places)
        spans = [{places[node_rank] for node_rank in each} for each in holders]
        fatal = {place for span in spans if len(span) == 1 for place in span}
        levels.append(
            Level(
                name=name,
                domains=len(sizes),
                survives=min(map(len, spans)) - 1,
                fatal=[(str(place[at]), sizes[place]) for place in sizes if place in fatal],
            )
        )
    return tuple(levels)


def protection(levels: Sequence[Level], *, pods: int, step: int, stored: int | None) -> str:
    """Return which failures cost nothing, and what others cost, such as `losing any one block of 3
    costs nothing; losing two blocks can cost 40 steps, back to step 80 on storage`.

    Args:
        pods: in the group.
        step: the newest complete step in memory.
        stored: the newest step on storage, which is lost with no pod; None: none is known.
    """
    if stored is not None and stored >= step:
        return f"losing all pods costs nothing, because step {stored} is on storage"
    safe: list[str] = []
    risky: list[str] = []
    most = 0
    for level in levels:
        name, count, survives = level.name, level.domains, level.survives
        if len(level.fatal) == count:
            risky = [f"any {name} of {count}"]  # also in each of the wider domains
        elif level.fatal:
            safe.append(f"any other {name}")
            risky.append(_named(level, pods))
        elif survives > most:
            most = survives
            safe.append(f"any {_some(survives, name)} of {count}")
            all_of_them = f"both {name}s" if count == 2 else f"all {count} {name}s"
            risky.append(_some(survives + 1, name) if survives + 1 < count else all_of_them)
    lost = f"all {step} steps, because no checkpoint on storage is reported"
    if stored is not None:
        lost = f"{counted(step - stored, 'step')}, back to step {stored} on storage"
    costs = f"losing {' or '.join(risky) or 'the only node'} can cost {lost}"
    return f"losing {' or '.join(safe)} costs nothing; {costs}" if safe else costs


def _some(count: int, name: str) -> str:
    number = _NUMBERS[count] if count < len(_NUMBERS) else str(count)
    return f"{number} {name}" if count == 1 else f"{number} {name}s"


def _named(level: Level, pods: int) -> str:
    shown = [
        f"{level.name} {cut(name, _NAME)} ({size} of {pods} pods)"
        for name, size in level.fatal[:_NAMED]
    ]
    more = len(level.fatal) - len(shown)
    return " or ".join([*shown, *([f"{more} more"] if more else [])])
