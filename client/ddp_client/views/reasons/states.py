"""Reasons of Events and conditions while a job waits, trains or changes."""

from typing import Final

from ddp_client.views.reasons.reason import LOG, NOTHING, OVER, UNCHARGED, Reason

_DONE: Final = "the pods that spec.successPolicy requires have completed"
_PODS_START: Final = "the job runs once all pods are ready"

STATES: Final = {
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
        OVER,
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
    "DoubtfulCommand": Reason(
        "words of the trainer container's command may not fit the job, such as a launcher's option",
        "the pods run the command as it is",
        "read the message; if the training behaves as you meant, nothing",
    ),
    "SideCarFailed": Reason(
        "a container other than the trainer ended with an error",
        "the trainer continues; nothing restarts, and nothing is charged",
        "read the container's log (kubectl logs POD -c CONTAINER); as a native side car, an "
        "initContainer with restartPolicy Always, the kubelet would restart it",
    ),
    "NoProgressReports": Reason(
        "spec.progressDeadlineSeconds is set, but the trainer reports no progress",
        "training continues; the operator cannot notice a hang",
        "report progress from the script, or unset spec.progressDeadlineSeconds",
    ),
    "SlowRank": Reason(
        "a rank needs much more time per step than the others, which wait for it",
        "training continues; with spec.restart.slowRank.action Replace another pod takes its place "
        "after spec.restart.slowRank.forSeconds, uncharged, and its node is avoided",
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
    "PodsUnreachable": Reason(
        "no launcher of the job answers the operator, so its network is the likely cause",
        "running pods continue. If the group already waits for a restart or a spare, all pods "
        "restart, uncharged, since new pods need no word of the operator to start; spares wait "
        "for an answer",
        "let the operator reach the pods' status port, which a NetworkPolicy may block; if the "
        "image has no launcher, set spec.launcher: inject",
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
    "WaitsAtLocalhost": Reason(
        "rank 0 listens where no other pod arrives: the script set MASTER_ADDR to localhost",
        "nothing restarts because of it; the ranks fail at torch's time-out",
        "remove the line of the script that sets MASTER_ADDR, or set it only if it is missing",
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
    "PausedToMove": Reason(
        "rank 0 has paused after a snapshot in memory, so that another pod can take a place",
        "all ranks restart and resume at that step; none is repeated",
        NOTHING,
    ),
    "RestartRequested": Reason(
        "somebody asked for a restart (kubectl ddp restart)", UNCHARGED, NOTHING
    ),
    "CodeChanged": Reason("somebody sent other code (kubectl ddp run --into)", UNCHARGED, NOTHING),
    "CodeRefused": Reason(
        "the job's annotation code cannot be followed; the Event says why",
        "the job continues with its code",
        "use kubectl ddp run --into, or create the job with --workdir",
    ),
    "SpecChanged": Reason("the job's spec was changed", UNCHARGED, NOTHING),
    "Rescheduled": Reason(
        "pods that fit on no node were kept off one that may be used again", UNCHARGED, NOTHING
    ),
    "CauseFound": Reason(
        "the cause of an earlier failure became known",
        "the record is corrected; a charge is taken back if the training was not at fault",
        NOTHING,
    ),
    "Completed": Reason(_DONE, OVER, NOTHING),
    "Succeeded": Reason(_DONE, OVER, NOTHING),
    "Suspended": Reason(
        "spec.suspend is true", "pods save and end; the state is kept", "kubectl ddp resume"
    ),
    "Resumed": Reason("spec.suspend is false again", _PODS_START, NOTHING),
    "Unknown": Reason("no reason was given", "see the message", LOG),
}
"""Explanations by reason."""
