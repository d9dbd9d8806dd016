"""The explanation of a reason, and the phrases that several explanations share."""

from typing import Final, NamedTuple


class Reason(NamedTuple):
    """Explanation of a reason, in three half sentences."""

    meaning: str
    then: str
    """The operator's or the cluster's next step, without anybody's help."""
    remedy: str
    """Advice for people."""


NOTHING: Final = "nothing"
LOG: Final = "read kubectl ddp why, and the end of the pod's log"
CHECK_NODE: Final = "check the node; after spec.restart.nodeFailureLimit failures it is avoided"
OVER: Final = "the job is over; its pods are deleted by spec.cleanPodPolicy"
UNCHARGED: Final = "new pods start; no restart is charged"
FORGIVEN: Final = "new pods start; the first few times no restart is charged"
