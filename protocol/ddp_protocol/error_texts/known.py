"""What is known about an error text."""

from enum import Enum
from typing import NamedTuple


class Class(Enum):
    """The decision that a text proves, in words for the reference page."""

    UNDECIDED = ""
    GLOO = "a consequence: gloo has lost another rank, which it reports in an ordinary RuntimeError"
    PEER = "a consequence: another rank is gone or silent"
    CUDA = "this rank's own failure: a CUDA error, which each later call of the process repeats"
    OWN = "this rank's own failure: also if the same text speaks of other ranks"
    DEVICE = "a failure of the node: a GPU is broken or lost, and does not recover by itself"
    NODE = "a failure of the node: it is broken, though not necessarily a GPU"
    SERVICE = (
        "a failure of a server or storage outside of the job: not of its node, and it may pass"
    )
    COMMAND = "a wrong configuration, if the container could not start"
    MISTAKE = "a wrong configuration, if all pods end alike before the first step"
    NO_IMAGE = "a wrong configuration, if a second node reports the same and no pod has run"
    NO_OBJECT = "a wrong configuration, if no pod has run"


class Known(NamedTuple):
    """A known error text."""

    pattern: str
    class_: Class
    meaning: str
    """One or two half sentences, in lower case."""
    remedy: str
    """Advice for people, likewise."""
    example: str
    """A real line that this entry, and no earlier one, matches."""
