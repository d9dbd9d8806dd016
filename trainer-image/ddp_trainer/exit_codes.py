"""Exit codes of ranks and launchers, and the errors behind them."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of a rank and of its launcher."""

    DONE = 0
    FAILURE = 1
    """Any failure without its own code; a restart may help."""
    CONFIGURATION = 64
    """Wrong flags, environment or hardware; a restart cannot help (EX_USAGE, sysexits.h)."""
    NEW_PROCESS = 70
    """Other ranks are lost, and only another process can continue as this rank (EX_SOFTWARE)."""
    FLIPPED_BITS = 71
    """This rank differs from most ranks, or bits flipped in its part (EX_OSERR, sysexits.h)."""
    LOST_PEER = 75
    """Another rank is lost or never joined: not this rank's fault (EX_TEMPFAIL, sysexits.h)."""
    STOPPED = 143
    """Stopped by a signal, with everything saved (128 + SIGTERM, as in shells)."""


class ConfigurationError(Exception):
    """A setting cannot work; the message names it and the remedy."""


class LostPeerError(Exception):
    """The group cannot continue because another rank is gone."""


class BrokenGroupError(LostPeerError):
    """A peer was lost while the group was in use; the group can be formed again."""


class LeavingError(BrokenGroupError):
    """All ranks leave a working group at the same point, to form another one."""


class MovedError(LeavingError):
    """The operator has announced another group."""


class RendezvousTimeoutError(LostPeerError):
    """The other ranks did not join before the deadline."""


class NewProcessError(Exception):
    """Only another process can continue as this rank: other ranks are lost or have changed."""


class LeftEarlyError(Exception):
    """This rank's script has left the training; the other ranks continue."""


class LeftError(Exception):
    """This pod is no longer in the group; the other pods continue."""


class LostDeviceError(Exception):
    """This process can no longer use its device; a new process may be able to."""


class FlippedBitsError(Exception):
    """This rank differs from most ranks, or bits have flipped in its part of a sharded model."""


class DifferingReplicasError(Exception):
    """The ranks' replicas differ, and this process cannot return to a state that all had."""


class NonFiniteLossError(Exception):
    """A loss is NaN or infinite, and no more steps may be skipped."""


class SupersededError(Exception):
    """A later generation of the group has replaced this one; this process must not continue."""


class StoppedError(Exception):
    """The ranks agreed to stop; the state is saved if there is a checkpoint directory."""


def of_signal(signal_number: int) -> int:
    """Return the exit code of a process killed by a signal, as shells and kubelets report it."""
    return 128 + signal_number
