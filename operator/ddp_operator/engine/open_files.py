"""Limit of open files of this process, connections included, and the share for launchers.

The operator keeps a connection open to each job with a polled launcher. Without free files, a
process can neither answer a probe nor write. So polling uses only the files that everything else
leaves, and takes turns if it must.
"""

import logging
import resource
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

_OWN: Final = 256
"""Files for other uses: 64 connections to the API server, 64 to trainers for progress, 64 for
reviews of metrics clients, and probes, metrics, watches, the Lease, TLS and the log."""
_ENDLESS: Final = 2**20
_MOST_POLLS: Final = 4096
"""For 10,000 jobs; an open connection takes about 20 kB here."""
_MOST_ASSIGNMENTS: Final = 1280


class Share(NamedTuple):
    """Connections to launchers at a time."""

    polls: int
    """To poll them."""
    assignments: int
    """To send them changes of their group, which no poll may delay."""


def share(limit: int) -> Share:
    """Divide the files that other uses leave, at least a quarter of the limit."""
    left = max(limit - _OWN, limit // 4)
    assignments = max(min(left // 3, _MOST_ASSIGNMENTS), 1)
    return Share(polls=max(min(left - assignments, _MOST_POLLS), 1), assignments=assignments)


def own_share() -> Share:
    """Divide the files of this process, once its limit is raised."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return share(hard if hard != resource.RLIM_INFINITY else _ENDLESS)


def raise_limit() -> None:
    """Raise this process' soft limit of open files to the hard one. In many places the soft limit
    is 1,024, for programs that use select().
    """
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        logger.warning("open files: soft limit %d, hard limit %d: %s", before, hard, error)
        return
    polls, assignments = own_share()
    logger.info(
        "open files: soft limit %d, was %d, hard limit %d; enough to poll %d launchers and to "
        "send to %d at a time",
        hard,
        before,
        hard,
        polls,
        assignments,
    )
