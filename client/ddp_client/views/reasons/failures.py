"""Reasons why a pod, an attempt or a job ended."""

from typing import Final

from ddp_client.views.reasons.reason import (
    CHECK_NODE,
    FORGIVEN,
    LOG,
    NOTHING,
    OVER,
    UNCHARGED,
    Reason,
)

_APPLY_AGAIN: Final = "correct the job, delete it, and apply it again"
_CHARGED: Final = "new pods start; the restart counts against spec.restart.maxRestarts"

FAILURES: Final = {
    "NoProgress": Reason(
        "no step was completed within spec.progressDeadlineSeconds, or a collective timed out",
        "the ranks log their stacks and all pods restart, charged unless the node is at fault",
        "read the stacks of all ranks in the pods' logs; if steps may take so long, raise "
        "spec.progressDeadlineSeconds",
    ),
    "StartTimeout": Reason(
        "no process has started in a pod within spec.startTimeoutSeconds after it got its node",
        "a spare or a pod on another node takes its place. Once the job has run this is never "
        "charged; before that only the first few times are free",
        "kubectl describe pod shows what is missing: a volume, its network, or its image",
    ),
    "LauncherUnreachable": Reason(
        "for half a minute a pod's launcher did not accept that the processes restart",
        "the pod is replaced, uncharged; the failure counts against its node",
        "let the operator reach the pods' status port: a NetworkPolicy may block it",
    ),
    "StorageLimitExceeded": Reason(
        "the pod wrote more than its volume or its ephemeral-storage limit allows, so the kubelet "
        "evicted it",
        _CHARGED,
        "raise that volume's sizeLimit, or the container's limit of ephemeral-storage, in "
        "spec.template; or write less",
    ),
    "Restarting": Reason(
        "pods ended or were taken away", "new pods resume from the checkpoint", LOG
    ),
    "SchedulingTimeout": Reason(
        "only some pods got a node within spec.schedulingTimeoutSeconds",
        "they release their nodes for others; all try again after a pause",
        "free nodes or quota, or let a gang scheduler or a queue place the job as a whole",
    ),
    "Disrupted": Reason(
        "the cluster took pods away, for example by preemption or a node's end", UNCHARGED, NOTHING
    ),
    "NodeFailed": Reason(
        "a pod failed because of its node, not because of the training", FORGIVEN, CHECK_NODE
    ),
    "ServiceFailed": Reason(
        "a pod failed because of a server or storage outside of the job",
        FORGIVEN,
        "see in the failure's message which one; let the script retry with a growing pause",
    ),
    "PodFailed": Reason("a pod failed", _CHARGED, LOG),
    "Error": Reason("a container ended with an error", _CHARGED, LOG),
    "Vanished": Reason("a pod is gone; how it ended is unknown", UNCHARGED, "see who deletes pods"),
    "Deleted": Reason("somebody deleted a pod", UNCHARGED, "see who deletes pods"),
    "FailureIgnored": Reason(
        "a pod failed, and a rule of spec.restart.rules ignores it",
        "training continues with the others; the job may still succeed",
        "correct the rule if it should not apply",
    ),
    "MaxRestartsExceeded": Reason(
        "the training failed, and spec.restart.maxRestarts is used up",
        OVER,
        f"{LOG}; then {_APPLY_AGAIN}",
    ),
    "FailedByRule": Reason(
        "a rule of spec.restart.rules ends the job on such a failure",
        OVER,
        f"{LOG}; then {_APPLY_AGAIN}",
    ),
    "ConfigurationError": Reason(
        "the trainer cannot run like this: its command, arguments or image are wrong",
        OVER,
        _APPLY_AGAIN,
    ),
    "DeadlineExceeded": Reason(
        "the job, or a pod of it, was active for longer than allowed",
        "a job is over; a pod's end is charged like any failure",
        "raise spec.activeDeadlineSeconds in a new job",
    ),
    "InvalidSpec": Reason(
        "the job's spec is invalid",
        "a job that never began is over; one that began continues with its last valid spec, or is "
        "left as it is if the operator restarted since",
        "correct the fields that the message names, and apply the job again",
    ),
    "InvalidPodTemplate": Reason(
        "the API server permanently refuses such a pod", OVER, _APPLY_AGAIN
    ),
    "NewerThanOperator": Reason(
        "the job was written for a newer operator",
        "it continues with its last known spec, or is left as it is, until the operator is newer",
        "upgrade the operator",
    ),
}
"""Explanations by reason."""
