"""Finds the process that holds a port which another process in the pod needs."""

from __future__ import annotations

import errno
import os
import re
from typing import Final

from ddp_trainer.system.processes import listener

_IN_USE: Final = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_PORT: Final = re.compile(r"\bport\W{1,3}(\d{2,5})\b", re.IGNORECASE)
_MOST_PORTS: Final = 4


def taken(port: int, error: OSError) -> str:
    """Return why the launcher cannot listen on its port, and what to do about it."""
    if error.errno != errno.EADDRINUSE:
        return f"port {port}: {error}"
    owner = listener(port) or "another container of the pod, or another pod with hostNetwork,"
    return (
        f"{owner} has port {port}; set spec.statusPort to a free port, or the operator sees no "
        "progress and restarts all pods after a failure"
    )


def who_has_port(words: str, *, own: int | None) -> str:
    """Return which process has the port that a rank could not get; empty: unknown.

    `words`: the rank's last output. `own`: the port on which this launcher listens.
    """
    if not _IN_USE.search(words):
        return ""
    ports = list(dict.fromkeys(int(port) for port in _PORT.findall(words)))[:_MOST_PORTS]
    for port in ports:
        if port == own:
            return f"the launcher uses port {port}: choose another port, or set spec.statusPort"
        owner = listener(port)
        if owner is not None and owner.pid != os.getpid():
            return f"{owner} has port {port}"
    if not ports and own is not None:
        return f"the launcher itself has port {own} (spec.statusPort)"
    return ""
