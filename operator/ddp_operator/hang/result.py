"""The ranks that a hanging job waits for, as its launchers' answers show, and what keeps them.

Only a hang that the script is likely to have caused is charged. A hang of any other kind is one of
the node's failures. These have a limit, too, so a job that always hangs ends in both cases.
"""

from dataclasses import dataclass
from typing import Final, Literal

from ddp_operator.api.spec import FailureClass

HangKind = Literal[
    "script", "gil", "ended", "stopped", "kernel", "unreachable", "device", "network", "unknown"
]
"""What keeps the ranks.

`script`: they run Python code elsewhere, or call collectives in another order than the others.
`gil`: a call in C holds the GIL. The process still handles signals, so the kernel does not keep it;
the script chose the call.
`ended`: the process has ended without an error, since an error would have ended its pod.
`stopped`: the process is stopped. No training stops itself, so a person or the node did.
`kernel`: a call into the kernel does not return: storage, a driver or a device.
`unreachable`: its pod is ready, but the launcher does not answer. No script can block a launcher.
`device`: the rank entered a collective, but its GPU does not run it. A kernel of the script that
never ends looks the same, but few scripts have kernels of their own.
`network`: all ranks entered the same collective, and it does not complete.
`unknown`: the answers show nothing, or several of these.
"""
_OUTSIDE_OF_SCRIPT: Final = frozenset({"stopped", "kernel", "unreachable", "device", "network"})


@dataclass(frozen=True, slots=True)
class Hang:
    """Who keeps the others waiting, and where."""

    ranks: tuple[int, ...] = ()
    """Empty if the answers name none."""
    sentence: str = ""
    """Empty if the answers show nothing."""
    kind: HangKind = "unknown"
    wait: str = ""
    """The sentence without where the ranks are: the same as long as the others wait."""

    @property
    def class_(self) -> FailureClass:
        """Return the class of the failure."""
        return "Infrastructure" if self.kind in _OUTSIDE_OF_SCRIPT else "Application"


NOTHING_KNOWN = Hang()
