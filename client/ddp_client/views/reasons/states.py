"""Reasons of Events, conditions and recorded failures: what each means, what happens next, and what
to do.

`OWN` are the operator's reasons. `OF_CLUSTER` are Kubernetes' reasons, which the operator passes on
and acts on. It also passes on others that it may see, such as `OutOfcpu`.
"""

from typing import Final, NamedTuple


class Reason(NamedTuple):
    """Explanation of a reason, in three half sentences."""

    meaning: str
    then: str
    """The operator's or the cluster's next step, without anybody's help."""
    remedy: str
    """Advice for people."""


NOTHING: Final = "nothing"
_LOG: Final = "read kubectl ddp why, and the end of the pod's log"
_CHECK_NODE: Final = "check the node; after spec.restart.nodeFailureLimit failures it is avoided"
_APPLY_AGAIN: Final = "correct the job, delete it, and apply it again"
_DONE: Final = "the pods that spec.successPolicy requires have completed"
_OVER: Final = "the job is over; its pods are deleted by spec.cleanPodPolicy"
_PODS_START: Final = "the job runs once all pods are ready"
_UNCHARGED: Final = "new pods start; no restart is charged"
_CHARGED: Final = "new pods start; the restart counts against spec.restart.maxRestarts"
_FORGIVEN: Final = "new pods start; the first few times no restart is charged"
_RETRIED: Final = (
    "the kubelet tries again; after five minutes the pod is replaced, on another node if possible. "
    "If no pod of this spec has run, the job fails once a second node says the same"
)

OWN: Final = {
    "PodsCreated": Reason("the job's missing pods were created", _PODS_START, NOTHING),
    "Created": Reason("all pods and the Service of the job exist", _PODS_START, NOTHING),
    "PodsStarting": Reason("pods wait for nodes, pull images or start", _PODS_START, NOTHING),
    "Running": Reason("all pods are ready", "the job trains", NOTHING),
    "PodsReady": Reason("all pods are ready", "the job trains", NOTHING),
    "PodsNotReady": Reason(
        "some pods of a training job are not ready",
        "running pods are left alone; a pod that fails is replaced",
        "compare the readiness probe in spec.template with what the trainer answers",
    ),
    "Queued": Reason(
        "pods wait for a queue, or for the owner of their scheduling gates, to admit them",
        "they start once admitted; the wait uses neither restarts nor active time",
        "wait for quota, or ask the queue's administrator",
    ),
    "NotQueued": Reason(
        "the job names a queue, but its pods run without having been in it",
        "training continues; no queue counts its quota",
        "install Kueue, or let it manage pods of this namespace",
    ),
    "PlaceInQueueLost": Reason(
        "a pod that must be replaced has lost its place in the queue: it exited with 0, its group "
        "is over, or Kueue assigned a node that the job avoids",
        "all pods restart and wait in the queue again, uncharged; MultiKueue may choose another "
        "cluster",
        "exit with another code than 0 after SIGTERM, such as 143, unless the training is done",
    ),
    "WorkloadFailed": Reason(
        "the pods failed in the cluster that MultiKueue chose, and the last status is missing",
        _OVER,
        "see the message, and the operator's log in that cluster; apply the job again to resume",
    ),
    "NameTaken": Reason(
        "pods of another owner have names that the job needs",
        "the operator tries again until they are gone",
        "delete the pods that the message names, or rename the job",
    ),
    "PodsForbidden": Reason(
        "a quota or a policy prevents the creation of the job's objects",
        "the operator tries again; running pods continue",
        "free some quota, change the fields of the template that the message names, or have the "
        "policy changed",
    ),
    "APIServerError": Reason(
        "the API server, or a webhook that it calls, keeps answering the operator with errors, or "
        "the CRD is too old to store the job's status",
        "the operator tries again, at least once a minute; running pods continue",
        "read the message; repair the webhook that it names, apply the CRD of the operator's "
        "release, or wait for the API server",
    ),
    "WaitingToStart": Reason(
        "there is a pause before the next start, for example after failures in a row",
        "pods are created when the pause is over",
        "read why the last pods ended; spec.restart.backoff sets the length of pauses",
    ),
    "WaitingForOldPods": Reason(
        "new pods need resources that old pods still hold",
        "pods are created once the old ones have ended or no longer count",
        "if a node is permanently gone, delete it; its pods are deleted with it",
    ),
    "Spread": Reason(
        "the pods run in more than one block or sub-block of the network",
        "the job trains, perhaps more slowly",
        "require one place in spec.scheduling.topology",
    ),
    "RanksOrdered": Reason(
        "pods have new node ranks, so that neighbours are close to each other",
        "ranks start, or form their group again; status.world.members lists the node ranks",
        NOTHING,
    ),
    "RanksNotOrdered": Reason(
        "the pods' location is unknown, or the pods cannot receive new ranks",
        "the job trains with ranks in the order of the pods' numbers",
        "check that nodes have topology labels, and that the pods' bundled launcher is reachable",
    ),
    "UnknownAccelerator": Reason(
        "this release does not know spec.accelerator.type; it may be newer or misspelt",
        "it becomes a node selector unchanged",
        "compare it with the labels of the nodes",
    ),
    "NoProgressReports": Reason(
        "spec.progressDeadlineSeconds is set, but the trainer reports no progress",
        "training continues; the operator cannot notice a hang",
        "report progress from the script, or unset spec.progressDeadlineSeconds",
    ),
    "NoProgress": Reason(
        "no step was completed within spec.progressDeadlineSeconds, or a collective timed out",
        "the ranks log their stacks and all pods restart, charged unless the node is at fault",
        "read the stacks of all ranks in the pods' logs; if steps may take so long, raise "
        "spec.progressDeadlineSeconds",
    ),
    "SlowRank": Reason(
        "a rank needs much more time per step than the others, which wait for it",
        "training continues; with spec.restart.slowRank.action Replace another pod takes its place "
        "after spec.restart.slowRank.for, uncharged, and its node is avoided",
        "check the node: GPU clocks, disk and network; if the rank is slow on each node, check its "
        "share of the data",
    ),
    "SlowRankOver": Reason(
        "a slow rank is as fast as the others, or its pod is new", "training continues", NOTHING
    ),
    "CheckpointRequested": Reason(
        "a node of the job is about to leave",
        "a trainer that answers POST /checkpoint saves; training continues",
        NOTHING,
    ),
    "RestoredFromMemory": Reason(
        "after a restart the ranks receive their snapshots of one step from the memory of the pods",
        "ddp_trainer.memory.load returns that step, and the script resumes at it",
        NOTHING,
    ),
    "NotRestoredFromMemory": Reason(
        "after a restart no step has a snapshot of every rank in the memory of the pods",
        "ddp_trainer.memory.load returns None, and the script resumes from its own checkpoint",
        "read the message; if more pods were lost at once than there are copies, raise "
        "spec.memoryCheckpoint.copies",
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
    "PodsUnreachable": Reason(
        "no launcher of the job answers the operator, so its network is the likely cause",
        "running pods continue. If a failure already requires a restart, all pods restart, "
        "uncharged, since new pods need no word of the operator to start",
        "let the operator reach the pods' status port: a NetworkPolicy may block it",
    ),
    "StorageLimitExceeded": Reason(
        "the pod wrote more than its volume or its ephemeral-storage limit allows, so the kubelet "
        "evicted it",
        _CHARGED,
        "raise that volume's sizeLimit, or the container's limit of ephemeral-storage, in "
        "spec.template; or write less",
    ),
    "SparesLost": Reason(
        "spares have ended or were taken away",
        "new spares replace them, later each time; training continues, and nothing is charged",
        "read kubectl describe pod, and the log; spares need the bundled launcher in the pods",
    ),
    "SparesRefused": Reason(
        "the API server refuses spares or fails to create them",
        "the operator tries again every minute; the job trains without them",
        "read the message; free some quota, repair the webhook, or lower spec.spares",
    ),
    "GroupShrunk": Reason(
        "pods of an elastic job did not arrive within spec.elastic.shrinkAfterSeconds, or "
        "spec.replicas is lower",
        "training continues with the others; pods that arrive later join them",
        "kubectl get pods shows what the missing pods wait for",
    ),
    "GroupGrown": Reason(
        "waiting pods of an elastic job have joined the group",
        "training continues with them at the next step",
        NOTHING,
    ),
    "LedWithoutOperator": Reason(
        "while no operator was available, rank 0's launcher restarted processes",
        "each restart counts as if the operator had decided it, but none ends the job",
        "kubectl ddp why lists the failures; find out why the operator or the API server was away",
    ),
    "CheckpointInPod": Reason(
        "checkpoints are saved to a pod's own disk, which the other pods do not see",
        "a failure restarts all pods without a checkpoint; no pod joins the group",
        "set spec.checkpoint.persistentVolumeClaim or gcsBucket, and save to DDP_CHECKPOINT_DIR",
    ),
    "NodeLeaving": Reason(
        "a pod's node is about to leave, and another pod is ready to take its place",
        "that pod takes over; no restart is charged",
        NOTHING,
    ),
    "SuccessorWanted": Reason(
        "a pod's node is about to leave, or its rank is slow, and no spare can take its place",
        "another pod is created for it and takes over once it is ready; until then the job trains",
        "kubectl get pods shows what the new pod waits for",
    ),
    "Restarting": Reason(
        "pods ended or were taken away", "new pods resume from the checkpoint", _LOG
    ),
    "RestartRequested": Reason(
        "somebody asked for a restart (kubectl ddp restart)", _UNCHARGED, NOTHING
    ),
    "SpecChanged": Reason("the job's spec was changed", _UNCHARGED, NOTHING),
    "SchedulingTimeout": Reason(
        "only some pods got a node within spec.schedulingTimeoutSeconds",
        "they release their nodes for others; all try again after a pause",
        "free nodes or quota, or let a gang scheduler or a queue place the job as a whole",
    ),
    "Rescheduled": Reason(
        "pods that fit on no node were kept off one that may be used again", _UNCHARGED, NOTHING
    ),
    "Disrupted": Reason(
        "the cluster took pods away, for example by preemption or a node's end", _UNCHARGED, NOTHING
    ),
    "NodeFailed": Reason(
        "a pod failed because of its node, not because of the training", _FORGIVEN, _CHECK_NODE
    ),
    "PodFailed": Reason("a pod failed", _CHARGED, _LOG),
    "Error": Reason("a container ended with an error", _CHARGED, _LOG),
    "Vanished": Reason(
        "a pod is gone; how it ended is unknown", _UNCHARGED, "see who deletes pods"
    ),
    "Deleted": Reason("somebody deleted a pod", _UNCHARGED, "see who deletes pods"),
    "FailureIgnored": Reason(
        "a pod failed, and a rule of spec.restart.rules ignores it",
        "training continues with the others; the job may still succeed",
        "correct the rule if it should not apply",
    ),
    "CauseFound": Reason(
        "the cause of an earlier failure became known",
        "the record is corrected; a charge is taken back if the training was not at fault",
        NOTHING,
    ),
    "MaxRestartsExceeded": Reason(
        "the training failed, and spec.restart.maxRestarts is used up",
        _OVER,
        f"{_LOG}; then {_APPLY_AGAIN}",
    ),
    "FailedByRule": Reason(
        "a rule of spec.restart.rules ends the job on such a failure",
        _OVER,
        f"{_LOG}; then {_APPLY_AGAIN}",
    ),
    "ConfigurationError": Reason(
        "the trainer cannot run like this: its command, arguments or image are wrong",
        _OVER,
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
        "the API server permanently refuses such a pod", _OVER, _APPLY_AGAIN
    ),
    "NewerThanOperator": Reason(
        "the job was written for a newer operator",
        "it continues with its last known spec, or is left as it is, until the operator is newer",
        "upgrade the operator",
    ),
    "Completed": Reason(_DONE, _OVER, NOTHING),
    "Succeeded": Reason(_DONE, _OVER, NOTHING),
    "Suspended": Reason(
        "spec.suspend is true", "pods save and end; the state is kept", "kubectl ddp resume"
    ),
    "Resumed": Reason("spec.suspend is false again", _PODS_START, NOTHING),
    "Unknown": Reason("no reason was given", "see the message", _LOG),
}
"""Reasons that the operator gives itself."""

_IMAGE: Final = Reason(
    "the container's image cannot be pulled",
    _RETRIED,
    "check the image's name and tag, and that the namespace has the registry's pull secret",
)
_CONTAINER: Final = Reason(
    "the container cannot be created or started",
    _RETRIED,
    "check the container's command and its mounts in spec.template",
)
_RUNTIME: Final = Reason(
    "the container was created but could not start, because of its command or its node",
    "if the command does not exist, the job fails; otherwise new pods start",
    "check the container's command and its mounts in spec.template",
)
_TAKEN: Final = Reason("the cluster took the pod away", _UNCHARGED, NOTHING)
_MISFIT: Final = Reason("the pod no longer fits its node", _UNCHARGED, NOTHING)
_REFUSED: Final = Reason("the kubelet refused the pod: its node is unfit", _FORGIVEN, _CHECK_NODE)

OF_CLUSTER: Final = {
    "ErrImagePull": _IMAGE,
    "ImagePullBackOff": _IMAGE,
    "ImageInspectError": _IMAGE,
    "RegistryUnavailable": _IMAGE,
    "SignatureValidationFailed": _IMAGE._replace(
        remedy="sign the image, or have the registry's policy changed"
    ),
    "InvalidImageName": _IMAGE._replace(
        then="the job fails at once", remedy="correct the image's name in spec.template"
    ),
    "ErrImageNeverPull": _IMAGE._replace(
        remedy="load the image on the node, or let it be pulled (imagePullPolicy)"
    ),
    "CreateContainerConfigError": _CONTAINER._replace(
        then="the kubelet tries again; after five minutes the pod is replaced, or the job fails if "
        "an object does not exist and no pod of this spec has run",
        remedy="create the Secret, ConfigMap or key that the message names; if it mentions "
        "runAsNonRoot, set securityContext.runAsUser in spec.template.spec (kubectl ddp run --user)"
    ),
    "CreateContainerError": _CONTAINER,
    "RunContainerError": _CONTAINER._replace(
        then="the kubelet tries again; after five minutes new pods start, as after a node's failure"
    ),
    "StartError": _RUNTIME,
    "ContainerCannotRun": _RUNTIME,
    "CrashLoopBackOff": Reason(
        "a sidecar of the pod ends again and again",
        "the kubelet restarts it after increasing pauses",
        "read that sidecar's log; the trainer waits for it",
    ),
    "Unschedulable": Reason(
        "no node has room for the pod, or none fits it",
        "the scheduler tries again; a partly placed job releases its nodes after "
        "spec.schedulingTimeoutSeconds",
        "compare spec.accelerator, requests and node selectors with `kubectl get nodes`; a growing "
        "node pool takes some minutes",
    ),
    "SchedulingGated": Reason(
        "the pod's scheduling gates keep it from the scheduler",
        "it starts once they are removed",
        "have the pods admitted by their queue, or by the owner of their scheduling gates",
    ),
    "OOMKilled": Reason(
        "the container used more memory than it, or its node, has",
        "new pods start; a restart is charged if the container has a limit of its own",
        "give the container a larger memory limit, or train on smaller batches",
    ),
    "ContainerStatusUnknown": _TAKEN._replace(
        meaning="the kubelet found the container gone, for example after its node restarted"
    ),
    **dict.fromkeys(
        ("Evicted", "Preempting", "Preempted", "Terminated", "Shutdown"), _TAKEN
    ),
    **dict.fromkeys(
        ("NodeShutdown", "NodeLost"), _TAKEN._replace(meaning="the pod's node left or failed")
    ),
    **dict.fromkeys(
        ("NodeAffinity", "NodeName", "NodePorts", "NodeUnschedulable", "TaintToleration"), _MISFIT
    ),
    **dict.fromkeys(
        ("UnexpectedAdmissionError", "TopologyAffinityError", "SMTAlignmentError",
         "InvalidNodeInfo", "UnexpectedPredicateFailureType"),
        _REFUSED,
    ),
}  # fmt: skip
"""Reasons that the kubelet, the scheduler and the API server give, and the operator passes on."""

REASONS: Final = {**OWN, **OF_CLUSTER}
