"""What a process's exit code means to whoever decides whether to start it again."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of a rank and of its launcher."""

    DONE = 0
    FAILURE = 1
    """Any failure without a code of its own; worth a restart."""
    CONFIGURATION = 64
    """Wrong flags, environment or hardware: starting again cannot help (EX_USAGE, sysexits.h)."""
    SLOW_NETWORK = 69
    """The benchmark found less bandwidth than asked for (EX_UNAVAILABLE, sysexits.h)."""
    LOST_PEER = 75
    """Another rank went away or never came: not this rank's fault (EX_TEMPFAIL, sysexits.h)."""
    STOPPED = 143
    """Told to stop, and stopped with everything saved (128 + SIGTERM, as shells count)."""


class ConfigurationError(Exception):
    """What was asked for cannot work; the message names the setting and the remedy."""


class LostPeerError(Exception):
    """The group cannot go on because another rank is gone."""


class BrokenGroupError(LostPeerError):
    """A peer was lost while the group was in use; it can be formed anew."""


class LeavingError(BrokenGroupError):
    """All ranks leave the group at this place, though it is whole, to form another one."""


class MovedError(LeavingError):
    """The operator has another group in mind."""


class RendezvousTimeoutError(LostPeerError):
    """The other ranks did not come before the deadline."""


class LeftEarlyError(Exception):
    """This rank's script has left the training, and the others train on."""


class LeftError(Exception):
    """This pod has no place in the group any more; the others train on."""


class LostDeviceError(Exception):
    """This rank's device is of no more use to this process; a new process may have more luck."""


class SupersededError(Exception):
    """Another generation of the group has taken this one's part; this process trains for nobody."""


class StoppedError(Exception):
    """The ranks agreed to stop, and the state is saved where there is a place to save it."""


def of_signal(signal_number: int) -> int:
    """Exit code that stands for a death by signal, as shells and kubelets count it."""
    return 128 + signal_number
