"""Convert a Kubernetes JobSet (`jobset.x-k8s.io`) of one replicated job that trains."""

from dataclasses import dataclass
from typing import Any, Final

from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.api.rules import trainer_container

from ddp_client.convert import job
from ddp_client.convert.notes import ConversionError, Notes
from ddp_client.convert.pods import Pods, pods
from ddp_client.convert.references import MASTER, Hosts, Origin
from ddp_client.convert.source import Source

_JOBS_DEFAULT_BACKOFF: Final = 6
_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_COMPLETION_LABELS: Final = (_COMPLETION_INDEX, "apps.kubernetes.io/pod-index")
_JOB_INDEXES: Final = ("jobset.sigs.k8s.io/job-index", "jobset.sigs.k8s.io/job-global-index")
_COORDINATOR: Final = "jobset.sigs.k8s.io/coordinator"
_INDEX_VARIABLE: Final = "JOB_COMPLETION_INDEX"
_INDEX_0_SUCCEEDS: Final = (
    [{"succeededIndexes": "0"}],
    [{"succeededIndexes": "0", "succeededCount": 1}],
)
HINTS: Final = {
    "rules": "use spec.restart.rules to handle failures",
    "podFailurePolicy": "use spec.restart.rules to handle exit codes",
    "volumeClaimPolicies": "create the claim yourself, and add it to the template's volumes",
    "subdomain": "hosts are called <job>-<attempt>-<index>.<job>; use $(MASTER_ADDR)",
    "coordinator": "pod 0 is the master",
    "dependsOn": "run earlier jobs as separate Jobs, or as initContainers",
    "ttlSecondsAfterFinished": "set spec.ttlSecondsAfterFinished to delete the DDPJob",
    "restartStrategy": "use spec.restart.replaceWhen: whether new pods wait for old ones to end",
}


@dataclass(frozen=True)
class ReplicatedPods:
    """The pods of one replicated job."""

    jobs: int
    pods_of_job: int
    template: dict[str, Any]
    path: str

    def origin(self, name: str, child: str, subdomain: str) -> Origin:
        """Return how the pods found each other; `child` is the replicated job's name."""
        indexes = {*_COMPLETION_LABELS} if self.jobs == 1 else set()
        indexes |= {*_JOB_INDEXES} if self.pods_of_job == 1 else set()
        names = {"jobset.sigs.k8s.io/jobset-name": name}
        names["jobset.sigs.k8s.io/replicatedjob-name"] = child
        if self.jobs == 1:
            names |= dict.fromkeys(
                ("job-name", "batch.kubernetes.io/job-name"), f"{name}-{child}-0"
            )

        def place(job: int, pod: int) -> int:
            return job * self.pods_of_job + pod

        return Origin(
            name,
            (Hosts(f"{name}-{child}-", 2, place, f".{subdomain}"),),
            {_COORDINATOR: MASTER, **dict.fromkeys(indexes, "$(NODE_RANK)")},
            frozenset(indexes),
            names,
            frozenset({"jobset.sigs.k8s.io/restart-attempt"}),
        )


def convert(source: Source, notes: Notes) -> dict[str, Any]:
    """Convert one JobSet; fields left in the source are not carried over."""
    source.forget("status")
    meta = job.metadata(source, notes)
    spec = source.at("spec")
    jobs = spec.each("replicatedJobs")
    if len(jobs) != 1:
        raise ConversionError(
            f"{spec.field('replicatedJobs')}: {len(jobs)} jobs, but a DDPJob is one group of pods; "
            "keep the one that trains, and run the others separately"
        )
    child = group(jobs[0], notes)
    origin = _origin(child, jobs[0], spec, meta.fields["name"], notes)
    result: dict[str, Any] = {"replicas": child.jobs * child.pods_of_job}
    limits(spec, jobs[0], result, notes, jobs=child.jobs)
    gives_index = child.jobs == 1
    from_template(child.template, child.path, meta, origin, result, notes, gives_index=gives_index)
    notes.rest(source.rest(), HINTS)
    return job.checked(meta, result, notes)


def group(replicated: Source, notes: Notes) -> ReplicatedPods:
    """Read the pods of a replicated job."""
    batch = replicated.at("template").at("spec")
    jobs = replicated.integer("replicas")
    jobs = 1 if jobs is None else jobs
    together = pods_at_a_time(batch)
    replicated.forget("groupName")  # no effect with one job
    total = jobs * together
    if not 1 <= total <= MAX_REPLICAS:
        raise ConversionError(
            f"{replicated.field('replicas')}: {total} pods; a DDPJob has 1 to {MAX_REPLICAS}"
        )
    if jobs > 1 and together > 1:
        notes.changed(
            replicated.field("replicas"),
            f"{jobs} Jobs of {together} pods become one group of {total} pods",
        )
    return ReplicatedPods(jobs, together, batch.fields("template"), batch.field("template"))


def pods_at_a_time(batch: Source) -> int:
    """Read the number of pods of a Job; all must run at the same time."""
    parallelism, completions = batch.integer("parallelism"), batch.integer("completions")
    together = 1 if parallelism is None else parallelism
    if completions is not None and completions != together:
        raise ConversionError(
            f"{batch.field('completions')}: {completions}, but {together} pods run at a time; all "
            "ranks must run together: set parallelism to the same number"
        )
    batch.forget("completionMode")  # all pods of a DDPJob have indexes
    return together


def pods_replaced(batch: Source, notes: Notes) -> dict[str, Any]:
    """Return the restart policy for a Job's backoffLimit."""
    often = batch.integer("backoffLimit")
    if often is None:
        often = _JOBS_DEFAULT_BACKOFF
        notes.changed(
            batch.field("backoffLimit"),
            f"by default a Job replaces {often} failed pods one by one; here all pods restart, at "
            f"most {often} times",
        )
    elif often:
        notes.changed(
            batch.field("backoffLimit"), "failed pods were replaced one by one; here all restart"
        )
    return job.restarts(often, batch.field("backoffLimit"), notes)


def limits(
    spec: Source, replicated: Source, result: dict[str, Any], notes: Notes, *, jobs: int
) -> None:
    """Read when a JobSet ends, restarts, or is deleted."""
    batch = replicated.at("template").at("spec")
    failure = spec.at("failurePolicy")
    whole = failure.integer("maxRestarts") or 0
    if not whole:
        result["restart"] = pods_replaced(batch, notes)
    else:
        result["restart"] = job.restarts(whole, failure.field("maxRestarts"), notes)
        if batch.integer("backoffLimit"):
            notes.dropped(
                batch.field("backoffLimit"),
                f"single pods are not restarted; all pods are, {whole} times (maxRestarts)",
            )
    success = spec.at("successPolicy")
    success.forget("targetReplicatedJobs")  # no effect with one job
    if success.word("operator") == "Any" and jobs > 1:
        result["successPolicy"] = "Rank0"
        notes.changed(
            success.field("operator"), "any completed Job was a success; here pod 0 decides"
        )
    successful_indexes(batch, result, notes, jobs=jobs)
    network = spec.at("network")
    network.forget("publishNotReadyAddresses")  # a DDPJob does the same
    if network.flag("enableDNSHostnames") is False:
        notes.changed(network.field("enableDNSHostnames"), "a DDPJob's pods have host names")
    spec.at("startupPolicy").forget("startupPolicyOrder")  # no effect with one job
    job.run_policy(spec, "jobset.sigs.k8s.io/jobset-controller", result, notes)
    if (seconds := batch.integer("activeDeadlineSeconds")) is not None:
        result["activeDeadlineSeconds"] = seconds
        notes.changed(
            batch.field("activeDeadlineSeconds"), "it limited each attempt; here all attempts"
        )


def successful_indexes(
    batch: Source, result: dict[str, Any], notes: Notes, *, jobs: int = 1
) -> None:
    """Read which pods of an Indexed Job must succeed: all, or only index 0."""
    policy = batch.at("successPolicy")
    rules = policy.elements("rules")
    if jobs == 1 and rules in _INDEX_0_SUCCEEDS:
        result["successPolicy"] = "Rank0"
    elif rules:
        notes.dropped(policy.field("rules"), "set spec.successPolicy: Rank0 if pod 0 alone decides")


def from_template(
    template: dict[str, Any],
    path: str,
    meta: job.Metadata,
    origin: Origin,
    result: dict[str, Any],
    notes: Notes,
    *,
    gives_index: bool | None = None,
) -> None:
    """Convert the pods of a Job, and add the fields that come from them.

    `gives_index`: a Job's pod index equals the pod's index here; None: the pods had no such index.
    """
    queue = job.with_metadata(template, meta, path, notes)
    one = pods(template, path, notes, trainer=None, origin=origin)
    if gives_index is not None:
        _give_index(one.template, path, notes, is_index=gives_index)
    finish(result, one, job.processes(one, None, f"{path}.spec.containers", notes), queue, notes)


def finish(
    result: dict[str, Any], one: Pods, processes: int | str, queue: str | None, notes: Notes
) -> None:
    """Add the fields that come from the pods."""
    if processes != "auto":
        result["nprocPerNode"] = processes
    if one.master_port:
        result["masterPort"] = one.master_port
    if accelerator := job.accelerator([one.template]):
        result["accelerator"] = accelerator
    job.queued(result, queue, notes)
    result["template"] = one.template


def _origin(
    child: ReplicatedPods, replicated: Source, spec: Source, name: str, notes: Notes
) -> Origin:
    """Return how the pods found each other."""
    network = spec.at("network")
    subdomain = network.word("subdomain")
    if subdomain and subdomain != name:
        notes.dropped(network.field("subdomain"), HINTS["subdomain"])
    return child.origin(name, replicated.word("name") or "", subdomain or name)


def _give_index(template: dict[str, Any], path: str, notes: Notes, *, is_index: bool) -> None:
    """Add the variable with a Job's pod index, if it equals the pod's index here."""
    trainer: Any = trainer_container(template)
    if any(entry["name"] == _INDEX_VARIABLE for entry in trainer.get("env") or ()):
        return
    if is_index:
        # First, so that other variables can refer to it.
        entry = {"name": _INDEX_VARIABLE, "value": "$(NODE_RANK)"}
        trainer["env"] = [entry, *(trainer.get("env") or ())]
    else:
        notes.dropped(
            f"{path}.spec.containers[{trainer['name']}].env[{_INDEX_VARIABLE}]",
            "a Job sets it in its pods; use NODE_RANK, which counts all pods",
        )
