"""Kubernetes' JobSet (`jobset.x-k8s.io`) of one replicated job, whose pods train."""

from dataclasses import dataclass
from typing import Any, Final

from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.convert import job
from ddp_operator.convert.notes import ConversionError, Notes
from ddp_operator.convert.pods import Pods, pods
from ddp_operator.convert.source import Source

_JOBS_DEFAULT_BACKOFF: Final = 6
_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_JOB_INDEXES: Final = ("jobset.sigs.k8s.io/job-index", "jobset.sigs.k8s.io/job-global-index")
_COORDINATOR: Final = "jobset.sigs.k8s.io/coordinator"
_INDEX_VARIABLE: Final = "JOB_COMPLETION_INDEX"
HINTS: Final = {
    "rules": "say in spec.restart.rules what to do about which failures",
    "podFailurePolicy": "say in spec.restart.rules what to do about which exit codes",
    "volumeClaimPolicies": "make the claim yourself, and name it among the template's volumes",
    "subdomain": "hosts are called <job>-<attempt>-<index>.<job>; use $(MASTER_ADDR)",
    "coordinator": "pod 0 is the master",
    "dependsOn": "run what comes first as a Job of its own, or as an initContainer",
    "restartStrategy": "spec.restart.replaceWhen says whether new pods wait for the old ones' end",
}


@dataclass(frozen=True)
class Group:
    """The pods of one replicated job."""

    jobs: int
    pods_of_job: int
    template: dict[str, Any]
    path: str

    @property
    def indexes(self) -> dict[str, str]:
        """What labels told each pod of its place, where its index here says the same."""
        found = {_COORDINATOR: "$(MASTER_ADDR)"}
        if self.jobs == 1:
            found[_COMPLETION_INDEX] = "$(NODE_RANK)"
        if self.pods_of_job == 1:
            found |= dict.fromkeys(_JOB_INDEXES, "$(NODE_RANK)")
        return found


def convert(source: Source, notes: Notes) -> dict[str, Any]:
    """Convert one JobSet; what is left in the source is not carried over."""
    source.forget("status")
    meta = job.metadata(source, notes)
    spec = source.at("spec")
    jobs = spec.each("replicatedJobs")
    if len(jobs) != 1:
        raise ConversionError(
            f"{spec.field('replicatedJobs')}: there are {len(jobs)}; a DDPJob is one group of "
            "pods: leave the one that trains, and run the others by themselves"
        )
    found = group(jobs[0], notes)
    host = _master(jobs[0], spec, meta.fields["name"], notes)
    result: dict[str, Any] = {"replicas": found.jobs * found.pods_of_job}
    limits(spec, jobs[0], result, notes)
    queue = job.with_metadata(found.template, meta, found.path, notes)
    one = pods(found.template, found.path, notes, trainer=None, master=host, indexes=found.indexes)
    _index_variable(one, found, notes)
    processes = job.processes(one, None, f"{found.path}.spec.containers", notes)
    finish(result, one, processes, queue, notes)
    notes.rest(source.rest(), HINTS)
    return job.checked(meta, result)


def group(replicated: Source, notes: Notes) -> Group:
    """Take the pods of a replicated job."""
    batch = replicated.at("template").at("spec")
    jobs = replicated.integer("replicas")
    jobs = 1 if jobs is None else jobs
    parallelism, completions = batch.integer("parallelism"), batch.integer("completions")
    together = 1 if parallelism is None else parallelism
    if completions is not None and completions != together:
        raise ConversionError(
            f"{batch.field('completions')}: is {completions}, while {together} pods run at a time; "
            "ranks of one group run all together: make parallelism the same"
        )
    replicated.forget("groupName")  # of one
    batch.forget("completionMode")  # JobSets give all pods indexes
    total = jobs * together
    if not 1 <= total <= MAX_REPLICAS:
        raise ConversionError(
            f"{replicated.field('replicas')}: makes {total} pods; a DDPJob has 1 to {MAX_REPLICAS}"
        )
    if jobs > 1 and together > 1:
        notes.changed(
            replicated.field("replicas"),
            f"{jobs} Jobs of {together} pods are one group of {total}, numbered through",
        )
    return Group(jobs, together, batch.fields("template"), batch.field("template"))


def limits(spec: Source, replicated: Source, result: dict[str, Any], notes: Notes) -> None:
    """Take what says when a JobSet ends, restarts, or goes."""
    batch = replicated.at("template").at("spec")
    failure = spec.at("failurePolicy")
    whole = failure.integer("maxRestarts") or 0
    single = batch.integer("backoffLimit")
    if single and whole:
        notes.dropped(
            batch.field("backoffLimit"),
            f"single pods are not started anew; all pods are, {whole} times (maxRestarts)",
        )
    if single is None and not whole:
        notes.changed(
            batch.field("backoffLimit"),
            f"absent, a Job replaces {_JOBS_DEFAULT_BACKOFF} failed pods one by one; here all pods "
            "start anew as often",
        )
    elif single and not whole:
        notes.changed(
            batch.field("backoffLimit"), "failed pods were replaced one by one; here all start anew"
        )
    often = whole or (_JOBS_DEFAULT_BACKOFF if single is None else single)
    result["restart"] = job.restarts(often, failure.field("maxRestarts"), notes)
    success = spec.at("successPolicy")
    if success.word("operator") == "Any":
        notes.changed(success.field("operator"), "a DDPJob has succeeded when all its pods have")
    success.forget("targetReplicatedJobs")  # there is one
    network = spec.at("network")
    network.forget("publishNotReadyAddresses")  # as here
    if network.flag("enableDNSHostnames") is False:
        notes.changed(network.field("enableDNSHostnames"), "pods have host names")
    spec.at("startupPolicy").forget("startupPolicyOrder")  # of one
    if (seconds := spec.integer("ttlSecondsAfterFinished")) is not None:
        result["ttlSecondsAfterFinished"] = seconds
    if (seconds := batch.integer("activeDeadlineSeconds")) is not None:
        result["activeDeadlineSeconds"] = seconds
        notes.changed(
            batch.field("activeDeadlineSeconds"), "it held for each attempt; here for all together"
        )
    if spec.flag("suspend"):
        result["suspend"] = True
    job.managed(spec, "jobset.sigs.k8s.io/jobset-controller", notes)


def finish(
    result: dict[str, Any], one: Pods, processes: int | str, queue: str | None, notes: Notes
) -> None:
    """Put in what the pods say."""
    if processes != "auto":
        result["nprocPerNode"] = processes
    if one.master_port:
        result["masterPort"] = one.master_port
    if accelerator := job.accelerator([one.template]):
        result["accelerator"] = accelerator
    job.queued(result, queue, notes)
    result["template"] = one.template


def _master(replicated: Source, spec: Source, name: str, notes: Notes) -> str:
    """Return the host name by which the pods knew the first of them."""
    network = spec.at("network")
    subdomain = network.word("subdomain")
    if subdomain and subdomain != name:
        notes.dropped(network.field("subdomain"), HINTS["subdomain"])
    return f"{name}-{replicated.word('name') or ''}-0-0.{subdomain or name}"


def _index_variable(one: Pods, found: Group, notes: Notes) -> None:
    """Give pods the variable by which those of a Job know their index."""
    trainer = one.template["spec"]["containers"][0]
    if any(entry["name"] == _INDEX_VARIABLE for entry in trainer.get("env") or ()):
        return
    if found.jobs == 1:
        entry = {"name": _INDEX_VARIABLE, "value": "$(NODE_RANK)"}
        trainer["env"] = [*(trainer.get("env") or ()), entry]
    else:
        notes.dropped(
            f"{found.path}.spec.containers[{trainer['name']}].env[{_INDEX_VARIABLE}]",
            "a Job gave it to its pods; use NODE_RANK, which counts over all pods",
        )
