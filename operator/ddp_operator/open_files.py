"""How many files this process may have open, connections included, and which part talks to pods.

Each job whose launcher is listened to is a connection that stays open. Out of files, a process can
accept no probe and write nothing: so listening takes what is left by all else, in turns if it must.
"""

import logging
import resource
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

_OWN: Final = 256
"""Files for all else: 64 connections to the API server, 64 to trainers for their progress, 64 to
review who asks for metrics, and probes, metrics, watches, the Lease, TLS and the log."""
_ENDLESS: Final = 2**20
_MOST_POLLS: Final = 4096
"""Of 10,000 jobs; an open connection takes some 20 kB here."""
_MOST_TELLINGS: Final = 1280


class Share(NamedTuple):
    """Connections to launchers at a time."""

    polls: int
    """To listen to them."""
    tellings: int
    """To tell them of changes of their group, which no poll may delay."""


def share(limit: int) -> Share:
    """Divide what a process that may open so many files has left, at least a quarter."""
    left = max(limit - _OWN, limit // 4)
    tellings = max(min(left // 3, _MOST_TELLINGS), 1)
    return Share(polls=max(min(left - tellings, _MOST_POLLS), 1), tellings=tellings)


def own_share() -> Share:
    """Divide what this process has left, once its limit is raised."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return share(hard if hard != resource.RLIM_INFINITY else _ENDLESS)


def raise_limit() -> None:
    """Let this process open as many files as it may at all: the soft limit is 1,024 in many places,
    for programs of another age.
    """
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        logger.warning("open files: soft limit %d, hard limit %d: %s", before, hard, error)
        return
    polls, tellings = own_share()
    logger.info(
        "open files: soft limit %d, was %d, hard limit %d; for %d launchers to listen to and %d to "
        "tell at a time",
        hard,
        before,
        hard,
        polls,
        tellings,
    )
