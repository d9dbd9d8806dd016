"""Which of the rare and long tests a run includes: `--nightly none|all|only|K/7`.

Tests with the marker `nightly` protect what is rare or long. `make test` leaves them out and `make
nightly` runs them all, each day on another release of Kubernetes. Each run of continuous
integration takes one seventh of them, chosen by its commit, so that a few landings run them all.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable, Mapping
from datetime import date

from tests.cluster import kind
from tests.cluster.preparation import kubernetes
from tests.cluster.provider import KUBECONFIG_VARIABLE

SHARES = 7
"""Seven shares keep one of them to a few minutes."""


def selection(option: str) -> Callable[[str, bool], bool]:
    """Return a function of a test's ID and whether it is nightly that tells whether it runs.

    `option`: `none`, `all`, `only`, or a share such as `3/7` (0/7 to 6/7): the daily tests and that
    seventh of the nightly ones.

    Raises argparse.ArgumentTypeError for other words.
    """
    match option.partition("/"):
        case ("none", "", ""):
            return lambda _, nightly: not nightly
        case ("all", "", ""):
            return lambda _test, _nightly: True
        case ("only", "", ""):
            return lambda _, nightly: nightly
        case (number, "/", total) if total == str(SHARES) and number in map(str, range(SHARES)):
            return lambda test, nightly: not nightly or share_of(test) == int(number)
    raise argparse.ArgumentTypeError(
        f"invalid value {option!r}: use none, all, only, or a share from 0/{SHARES} to "
        f"{SHARES - 1}/{SHARES}"
    )


def checked(option: str) -> str:
    """Return the option unchanged.

    Raises argparse.ArgumentTypeError if it is invalid.
    """
    selection(option)
    return option


def checked_share(option: str) -> str:
    """Return a share such as `3/7` unchanged.

    Raises argparse.ArgumentTypeError if it is none.
    """
    if "/" not in option:
        raise argparse.ArgumentTypeError(f"invalid share {option!r}: write K/{SHARES}")
    return checked(option)


def share_of(name: str) -> int:
    """Return the share, 0 to 6, of a test by its ID."""
    return zlib.crc32(name.encode()) % SHARES


def kubernetes_release(environment: Mapping[str, str], day: date) -> str | None:
    """Return the release of Kubernetes whose turn it is on a day; None if the environment chooses
    one, or programs or a cluster.
    """
    chosen = (kubernetes.VERSION_VARIABLE, "KUBE_BIN_DIR", KUBECONFIG_VARIABLE)
    if kind.usable() or any(environment.get(name) for name in chosen):
        return None
    releases = sorted((kubernetes.pinned_version(), *kubernetes.OTHER_RELEASES))
    return releases[day.toordinal() % len(releases)]
