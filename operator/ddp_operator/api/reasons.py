"""The words by which Events, conditions and failures on record say why, each with its meaning, what
happens next, and what a person can do.

Those of the cluster are Kubernetes' own, which the operator passes on and acts by. It may see
others, such as `OutOfcpu`, and passes them on, too.
"""

from typing import Final, NamedTuple


class Reason(NamedTuple):
    """What a word stands for, in three half sentences."""

    meaning: str
    then: str
    """What happens next, without anybody's help."""
    remedy: str
    """What a person can do about it."""


NOTHING: Final = "nothing"
_LOG: Final = "read kubectl ddp why, and the end of the pod's log"
_LOOK_AT_NODE: Final = "have the node looked at; after spec.restart.nodeFailureLimit it is avoided"
_ANEW: Final = "correct the job, delete it, and apply it again"
_DONE: Final = "the pods that spec.successPolicy asks for have ended well"
_OVER: Final = "the job is over, and its pods go as spec.cleanPodPolicy says"
_PODS_START: Final = "the job runs once all pods are ready"
_UNCHARGED: Final = "new pods start, and no restart is charged"
_CHARGED: Final = "new pods start, which is charged to spec.restart.maxRestarts"
_FORGIVEN: Final = "new pods start; the first few times no restart is charged"
_GIVEN_UP: Final = (
    "the kubelet tries again; after five minutes the job fails, or the pod is replaced, uncharged, "
    "where pods of this spec have run or a registry cannot answer"
)

OWN: Final = {
    "PodsCreated": Reason("the pods that the job lacked were created", _PODS_START, NOTHING),
    "Created": Reason("all pods and the Service of the job exist", _PODS_START, NOTHING),
    "PodsStarting": Reason("pods wait for nodes, pull images or start", _PODS_START, NOTHING),
    "Running": Reason("all pods are ready", "the job trains", NOTHING),
    "PodsReady": Reason("all pods are ready", "the job trains", NOTHING),
    "PodsNotReady": Reason(
        "some pods of a job that trains are not ready",
        "what runs is left alone; should a pod fail, it is replaced",
        "compare the readiness probe in spec.template with what the trainer answers",
    ),
    "Queued": Reason(
        "pods wait to be admitted, by a queue or by whoever set their scheduling gates",
        "they start once admitted; the wait costs neither restarts nor active time",
        "wait for quota, or ask the queue's administrator",
    ),
    "NotQueued": Reason(
        "the job names a queue, but its pods run without having been in one",
        "it trains on; nobody counts its quota",
        "install Kueue, or let it manage pods of this namespace",
    ),
    "NameTaken": Reason(
        "pods of another owner bear names that the job needs",
        "the operator tries again until they are gone",
        "delete the pods that the message names, or give the job another name",
    ),
    "PodsForbidden": Reason(
        "a quota or a policy keeps the job's objects from being created",
        "the operator tries again; pods that run go on",
        "free some quota, change the fields of the template that the message names, or have the "
        "policy changed",
    ),
    "APIServerError": Reason(
        "the API server, or a webhook that it asks, keeps answering the operator with errors",
        "the operator tries again, at least once a minute; pods that run go on",
        "read the message; repair the webhook that it names, or wait for the API server",
    ),
    "StatusNotStored": Reason(
        "the CRD is of another release, and drops parts of the status that decisions rest on",
        "pods that run go on; nothing is decided, and no restart is charged, until it is whole",
        "apply the CRD of the operator's release (crds/ddpjobs.yaml)",
    ),
    "WaitingToStart": Reason(
        "there is a pause before the next start, as after failures in a row",
        "pods are created when it is over",
        "read why the last ones ended; spec.restart.backoff says how long pauses are",
    ),
    "WaitingForOldPods": Reason(
        "new pods need what old ones still hold",
        "pods are created once the old ones ended, or were given up",
        "if a node is gone for good, delete it, and its pods go with it",
    ),
    "Spread": Reason(
        "the pods run in more than one block or sub-block of the network",
        "the job trains, perhaps more slowly",
        "ask for one place in spec.scheduling.topology",
    ),
    "RanksOrdered": Reason(
        "pods have other node ranks than before, so that neighbours stand near each other",
        "ranks start, or form their group anew; status.world.members says who has which",
        NOTHING,
    ),
    "RanksNotOrdered": Reason(
        "it is not known where the pods stand, or nobody can tell them of other ranks",
        "the job trains, with ranks in the order of the pods' numbers",
        "see that nodes have topology labels, and pods the bundled launcher within reach",
    ),
    "UnknownAccelerator": Reason(
        "this release does not know spec.accelerator.type, which may be newer or misspelt",
        "it becomes a node selector as it is",
        "compare it with the labels of the nodes",
    ),
    "NoProgressReports": Reason(
        "spec.progressDeadlineSeconds is set, but the trainer reports no progress",
        "it trains on; a hang would not be noticed",
        "report progress from the script, or unset spec.progressDeadlineSeconds",
    ),
    "NoProgress": Reason(
        "no step was completed within spec.progressDeadlineSeconds",
        "the ranks' stacks are logged and all pods start anew; a restart is charged",
        "read the stacks of all ranks in the pods' logs; if steps may take so long, raise "
        "spec.progressDeadlineSeconds",
    ),
    "CheckpointRequested": Reason(
        "a node of the job is about to go, or its end is near",
        "a trainer that answers POST /checkpoint saves; training goes on",
        NOTHING,
    ),
    "StartTimeout": Reason(
        "no process has started in a pod within spec.startTimeoutSeconds after it got its node",
        "a spare or a pod on another node takes its place; once the job has run that is never "
        "charged, before only the first few times are free",
        "kubectl describe pod says what it lacks: a volume, its network, or its image",
    ),
    "LauncherUnreachable": Reason(
        "a pod's launcher was told for half a minute in vain that the processes start anew",
        "the pod is replaced, uncharged, which counts against its node",
        "let the operator reach the pods' status port: a NetworkPolicy may keep it out",
    ),
    "StorageLimitExceeded": Reason(
        "the pod wrote more than its volume or its ephemeral-storage limit holds, so the kubelet "
        "evicted it",
        _CHARGED,
        "raise that volume's sizeLimit, or the container's limit of ephemeral-storage, in "
        "spec.template; or write less",
    ),
    "SparesLost": Reason(
        "pods that waited without a place in the group have ended or were taken away",
        "others take their place, later each time; the job trains on, and nothing is charged",
        "read kubectl describe pod, and the log; spares need the bundled launcher in the pods",
    ),
    "SparesRefused": Reason(
        "the API server refuses pods that would wait without a place, by quota or policy",
        "they are asked for again every minute; the job trains on without",
        "make room in the quota, or lower spec.spares",
    ),
    "GroupShrunk": Reason(
        "pods of an elastic job did not come within spec.elastic.shrinkAfterSeconds, or fewer are "
        "wanted",
        "the others train on; who comes later joins them",
        "kubectl get pods shows what those that are missing wait for",
    ),
    "GroupGrown": Reason(
        "pods of an elastic job that waited outside have joined the others",
        "training goes on with them at the next step",
        NOTHING,
    ),
    "LedWithoutOperator": Reason(
        "while no operator was there, rank 0's launcher had processes start again",
        "each restart is counted as if the operator had decided it, but none ends the job",
        "kubectl ddp why has the failures; look why the operator or the API server was away",
    ),
    "CheckpointInPod": Reason(
        "checkpoints are saved to a pod's own disk, which the other pods do not see",
        "a failure restarts all pods, which begin without a checkpoint; no pod joins the group",
        "set spec.checkpoint.persistentVolumeClaim or gcsBucket, and save to DDP_CHECKPOINT_DIR",
    ),
    "NodeLeaving": Reason(
        "a pod's node is about to go, and there is another place for the pod",
        _UNCHARGED,
        NOTHING,
    ),
    "Restarting": Reason(
        "pods ended or were taken away", "new pods go on from the checkpoint", _LOG
    ),
    "RestartRequested": Reason(
        "somebody asked for a restart (kubectl ddp restart)", _UNCHARGED, NOTHING
    ),
    "SpecChanged": Reason("the job's spec was changed", _UNCHARGED, NOTHING),
    "SchedulingTimeout": Reason(
        "only some pods got a node within spec.schedulingTimeoutSeconds",
        "they are given up for others to use; all try again after a pause",
        "free nodes or quota, or let a gang scheduler or a queue place the job as a whole",
    ),
    "Rescheduled": Reason(
        "pods that no node took were kept off a node which may be used again", _UNCHARGED, NOTHING
    ),
    "Disrupted": Reason(
        "the cluster took pods away, as by preemption or a node's end", _UNCHARGED, NOTHING
    ),
    "NodeFailed": Reason(
        "a pod failed by its node's fault, not the training's", _FORGIVEN, _LOOK_AT_NODE
    ),
    "PodFailed": Reason("a pod failed", _CHARGED, _LOG),
    "Error": Reason("a container ended with an error", _CHARGED, _LOG),
    "Vanished": Reason(
        "a pod is gone, and nobody can say how it ended", _UNCHARGED, "see who deletes pods"
    ),
    "Deleted": Reason("somebody deleted a pod", _UNCHARGED, "see who deletes pods"),
    "FailureIgnored": Reason(
        "a pod failed, and a rule of spec.restart.rules ignores that",
        "the others train on; the job may still succeed",
        "correct the rule where it should not apply",
    ),
    "CauseFound": Reason(
        "what ended an attempt shows only now",
        "the record is put right; a charge is taken back where it was not the training's fault",
        NOTHING,
    ),
    "MaxRestartsExceeded": Reason(
        "the training failed, and spec.restart.maxRestarts is used up",
        _OVER,
        f"{_LOG}; then {_ANEW}",
    ),
    "FailedByRule": Reason(
        "a rule of spec.restart.rules ends the job at such a failure",
        _OVER,
        f"{_LOG}; then {_ANEW}",
    ),
    "ConfigurationError": Reason(
        "the trainer cannot ever run like this: its command, arguments or image are wrong",
        _OVER,
        _ANEW,
    ),
    "DeadlineExceeded": Reason(
        "the job, or a pod of it, was active for longer than it may",
        "a job is over then; a pod's end is charged like any failure",
        "raise spec.activeDeadlineSeconds in a new job",
    ),
    "InvalidSpec": Reason(
        "the job cannot be understood",
        _OVER,
        "correct the fields that the message names, and apply the job again",
    ),
    "InvalidPodTemplate": Reason("the API server refuses a pod like this for good", _OVER, _ANEW),
    "NewerThanOperator": Reason(
        "the job was written for a newer operator",
        "it is left as it is, pods and all, until there is one",
        "upgrade the operator",
    ),
    "Completed": Reason(_DONE, _OVER, NOTHING),
    "Succeeded": Reason(_DONE, _OVER, NOTHING),
    "Suspended": Reason(
        "spec.suspend is true", "pods are told to save and go; state is kept", "kubectl ddp resume"
    ),
    "Resumed": Reason("spec.suspend is false again", _PODS_START, NOTHING),
    "Unknown": Reason("the reason that was given is empty", "as the message says", _LOG),
}
"""What the operator says by itself."""

_IMAGE: Final = Reason(
    "the container's image cannot be pulled",
    _GIVEN_UP,
    "check the image's name and tag, and that the namespace has the registry's pull secret",
)
_CONTAINER: Final = Reason(
    "the container cannot be made or started",
    _GIVEN_UP,
    "check the container's command and its mounts in spec.template",
)
_RUNTIME: Final = Reason(
    "the container was made but could not be started, by its command's or its node's fault",
    "a command that is not there fails the job; otherwise new pods start",
    "check the container's command and its mounts in spec.template",
)
_TAKEN: Final = Reason("the cluster took the pod away", _UNCHARGED, NOTHING)
_MISFIT: Final = Reason("the pod's node does not suit it any more", _UNCHARGED, NOTHING)
_REFUSED: Final = Reason("the kubelet refused the pod: its node is unfit", _FORGIVEN, _LOOK_AT_NODE)

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
        remedy="create the Secret, ConfigMap or key that the message names; where it says "
        "runAsNonRoot, set securityContext.runAsUser in spec.template.spec (kubectl ddp run --user)"
    ),
    "CreateContainerError": _CONTAINER,
    "RunContainerError": _CONTAINER._replace(
        then="the kubelet tries again; after five minutes new pods start, as after a node's failure"
    ),
    "StartError": _RUNTIME,
    "ContainerCannotRun": _RUNTIME,
    "CrashLoopBackOff": Reason(
        "a side car of the pod ends again and again",
        "the kubelet starts it anew after ever longer pauses",
        "read that side car's log; the trainer waits for it",
    ),
    "Unschedulable": Reason(
        "no node has room for the pod, or fits it",
        "the scheduler tries again; a job that is placed in part gives up after "
        "spec.schedulingTimeoutSeconds",
        "compare spec.accelerator, requests and node selectors with `kubectl get nodes`; a node "
        "pool that grows takes some minutes",
    ),
    "SchedulingGated": Reason(
        "the pod's scheduling gates keep it from the scheduler",
        "it starts once they are removed",
        "somebody has to admit the pods: a queue, or whoever set their scheduling gates",
    ),
    "OOMKilled": Reason(
        "the container took more memory than it, or its node, has",
        "new pods start; a restart is charged where the container has a limit of its own",
        "give the container a larger memory limit, or train on smaller batches",
    ),
    "ContainerStatusUnknown": _TAKEN._replace(
        meaning="the kubelet found the container gone, as after its node was started anew"
    ),
    **dict.fromkeys(
        ("Evicted", "Preempting", "Preempted", "Terminated", "Shutdown"), _TAKEN
    ),
    **dict.fromkeys(
        ("NodeShutdown", "NodeLost"), _TAKEN._replace(meaning="the pod's node went away")
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
"""What the kubelet, the scheduler and the API server say of pods, and the operator passes on."""

REASONS: Final = {**OWN, **OF_CLUSTER}
