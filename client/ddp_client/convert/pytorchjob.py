"""Convert Kubeflow's PyTorchJob (`kubeflow.org/v1`): a master and its workers."""

from typing import Any, Final

from ddp_operator.api.constants import LABEL_INDEX, MAX_REPLICAS
from ddp_operator.api.rules import trainer_container
from ddp_operator.api.values.merge_patch import merge_patch

from ddp_client.convert import job
from ddp_client.convert.launcher import ELASTIC, count
from ddp_client.convert.notes import ConversionError, Notes
from ddp_client.convert.pods import Pods, pods
from ddp_client.convert.references import Hosts, Origin
from ddp_client.convert.source import Source

_CONTAINER: Final = "pytorch"
_PORT_NAME: Final = "pytorchjob-port"
_MASTER, _WORKER = "Master", "Worker"
_RENDEZVOUS: Final = "the operator sets the rendezvous; no action is needed"
_HINTS: Final = {
    "elasticPolicy": "check whether spec.elastic or the launcher's flags can do the same",
    **dict.fromkeys(("rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf"), _RENDEZVOUS),
    "standalone": _RENDEZVOUS,
    "metrics": "create a HorizontalPodAutoscaler for the DDPJob, which sets spec.replicas",
    "minResources": "a gang needs the resources that its pods request",
    "priorityClass": "set priorityClassName in spec.template.spec",
    "metadata": "the API server or another controller must set it on the DDPJob again",
}
_UNEQUAL: Final = "pods that differ cannot replace each other (spec.overrides)"
_PERMANENT: Final = (range(1, 65), range(65, 128))
"""Exit codes that the policy ExitCode does not restart; a rule holds at most 64."""


def convert(source: Source, notes: Notes) -> dict[str, Any]:
    """Convert one job; fields left in the source are not carried over."""
    source.forget("status")
    meta = job.metadata(source, notes)
    spec = source.at("spec")
    replicas = _replicas(spec)
    counts = {kind: _count(kind, replica) for kind, replica in replicas.items()}
    kinds = [kind for kind in (_MASTER, _WORKER) if counts.get(kind)]
    if not kinds:
        raise ConversionError(f"{spec.field('pytorchReplicaSpecs')}: no pods; set replicas")
    result: dict[str, Any] = {"replicas": sum(counts.values())}
    if result["replicas"] > MAX_REPLICAS:
        raise ConversionError(f"{spec.field('pytorchReplicaSpecs')}: more than {MAX_REPLICAS} pods")
    if len(kinds) > 1:
        result["successPolicy"] = "Rank0"  # the master decides; without one, all workers
    run = spec.at("runPolicy")
    if restart := _restart(run, [replicas[kind] for kind in kinds], spec, notes):
        result["restart"] = restart
    _run_policy(run, result, notes)
    origin = _origin(meta.fields["name"], kinds)
    queue = meta.queue
    by_kind: dict[str, Pods] = {}
    for kind in kinds:
        path = replicas[kind].field("template")
        template = replicas[kind].fields("template")
        queue = job.with_metadata(template, meta, path, notes) or queue
        own = template["spec"].pop("restartPolicy", None)
        policy = replicas[kind].word("restartPolicy") or "OnFailure"
        if own not in (None, policy):
            why = f"{own}; as in Kubeflow, the replicas' policy {policy} is used"
            notes.dropped(f"{path}.spec.restartPolicy", why)
        by_kind[kind] = pods(template, path, notes, trainer=_CONTAINER, origin=origin)
    _processes(spec, by_kind, result, notes)
    if port := _port(by_kind[kinds[0]]):
        result["masterPort"] = port
    templates = [by_kind[kind].template for kind in kinds]
    if accelerator := job.accelerator(templates):
        result["accelerator"] = accelerator
    _gang(run, result, notes)
    job.queued(result, queue, notes)
    result["template"] = templates[-1]
    _override(templates, result)
    _elastic(spec.at("elasticPolicy"), result, notes)
    notes.rest(source.rest(), _HINTS)
    return job.checked(meta, result, notes)


def _origin(name: str, kinds: list[str]) -> Origin:
    """Return how the pods found each other; workers follow the master, if there is one."""
    ahead = kinds.index(_WORKER) if _WORKER in kinds else 0
    workers = Hosts(f"{name}-worker-", 1, lambda number: number + ahead)
    masters = Hosts(f"{name}-master-", 1, lambda number: number)
    domain = "training.kubeflow.org"
    indexes = (f"{domain}/replica-index", "pytorch-replica-index", "replica-index")
    ours = f"{LABEL_INDEX}, which is 0 for the master and continues with the workers"
    return Origin(
        name,
        (masters, workers) if _MASTER in kinds else (workers,),
        indexes=frozenset(indexes if len(kinds) == 1 else ()),
        similar=dict.fromkeys(indexes, ours),
        names={f"{domain}/job-name": name, "job-name": name, "pytorch-job-name": name},
        are_named_by_index=True,
    )


def _replicas(spec: Source) -> dict[str, Source]:
    """Return the replicas by kind; the names of kinds ignore case."""
    specs = spec.at("pytorchReplicaSpecs")
    by_kind = {}
    for kind in (_MASTER, _WORKER):
        for name in (kind, kind.lower(), kind.upper()):
            if specs.has(name):
                by_kind[kind] = specs.at(name)
                break
    return by_kind


def _count(kind: str, replica: Source) -> int:
    count = replica.integer("replicas")
    count = 1 if count is None else count
    if kind == _MASTER and count > 1:
        raise ConversionError(
            f"{replica.field('replicas')}: {count}, but only one master is allowed; set 1"
        )
    if count == 0:
        replica.forget("template", "restartPolicy")  # unused without pods
    return count


def _restart(run: Source, replicas: list[Source], spec: Source, notes: Notes) -> dict[str, Any]:
    """Return the restart policy: which failures lead to a restart, and how often."""
    limit = run.integer("backoffLimit")
    elastic = spec.at("elasticPolicy")
    most = elastic.integer("maxRestarts")
    policies = [(one.field("restartPolicy"), one.word("restartPolicy")) for one in replicas]
    field, policy = policies[-1]
    masters, workers = policies[0][1] or "OnFailure", policy or "OnFailure"
    if masters != workers:
        notes.changed(policies[0][0], f"{masters}; all pods get the workers' policy {workers}")
    if policy == "Never":
        if limit:
            notes.dropped(run.field("backoffLimit"), "it has no effect with restartPolicy: Never")
        return {"maxRestarts": 0}
    maximum = limit if limit is not None else most
    asked_by = run.field("backoffLimit") if limit is not None else elastic.field("maxRestarts")
    if limit is not None and most is not None:
        notes.dropped(elastic.field("maxRestarts"), f"{run.field('backoffLimit')} is the limit")
    restart: dict[str, Any] = {}
    if maximum is not None:
        restart = job.restarts(maximum, asked_by, notes)
    how_often = f"{restart['maxRestarts']} times" if restart else "3 times without progress"
    notes.changed(
        field,
        f"{policy or 'OnFailure'} restarts only the failed pod's container; here all pods "
        f"restart, {how_often} (spec.restart.maxRestarts)",
    )
    if policy == "ExitCode":
        restart["rules"] = [
            {"exitCodes": list(codes), "classes": ["Application"], "action": "FailJob"}
            for codes in _PERMANENT
        ]
    elif policy not in (None, "OnFailure", "Always"):
        raise ConversionError(f"{field}: {policy}; use Never, OnFailure, Always or ExitCode")
    return restart


def _run_policy(run: Source, result: dict[str, Any], notes: Notes) -> None:
    # Kubeflow's default is to keep all pods.
    result["cleanPodPolicy"] = run.word("cleanPodPolicy") or "None"
    job.run_policy(run, "kubeflow.org/training-operator", result, notes)


def _processes(
    spec: Source, by_kind: dict[str, Pods], result: dict[str, Any], notes: Notes
) -> None:
    field = spec.field("nprocPerNode")
    text = spec.word("nprocPerNode")
    elastic = spec.at("elasticPolicy").integer("nProcPerNode", least=1)
    number = count(text or "")
    setting: int | str | None = text if number is None else number
    if text == "cpu":
        notes.changed(field, "cpu: the number of CPUs is unknown here; set spec.nprocPerNode")
    elif isinstance(setting, str) and setting not in ("auto", "gpu"):
        raise ConversionError(f"{field}: {text}; use a number, auto, gpu or cpu")
    if elastic is not None and text is not None:
        notes.dropped(spec.at("elasticPolicy").field("nProcPerNode"), f"{field} is used")
    setting = elastic if text is None else "auto" if isinstance(setting, str) else setting
    counts = {kind: job.processes(one, setting, field, notes) for kind, one in by_kind.items()}
    main = counts.get(_WORKER, counts.get(_MASTER, "auto"))
    if main != "auto":
        result["nprocPerNode"] = main
    if len(counts) > 1 and counts[_MASTER] != main:
        result["overrides"] = [{"indexes": ["0"], "nprocPerNode": counts[_MASTER]}]


def _port(master: Pods) -> int | None:
    """Return the master port, which the master's container names."""
    ports = trainer_container(master.template).get("ports")
    for port in ports if isinstance(ports, list) else []:
        if isinstance(port, dict) and port.get("name") == _PORT_NAME:
            number = port.get("containerPort")
            return number if isinstance(number, int) else None
    return master.master_port


def _gang(run: Source, result: dict[str, Any], notes: Notes) -> None:
    """Read gang scheduling. Only the training operator's flags name the scheduler."""
    policy = run.at("schedulingPolicy")
    if seconds := policy.integer("scheduleTimeoutSeconds"):
        result["schedulingTimeoutSeconds"] = seconds
        field = policy.field("scheduleTimeoutSeconds")
        notes.changed(field, "if only some pods get nodes, all pods are deleted and tried again")
    available = policy.integer("minAvailable")
    if available is not None and available < result["replicas"]:
        notes.changed(
            policy.field("minAvailable"), f"{available}; a gang has spec.elastic.minReplicas pods"
        )
    queue = policy.word("queue")
    if queue or available is not None:
        field = policy.field("queue" if queue else "minAvailable")
        notes.dropped(field, job.GANG)


def _elastic(policy: Source, result: dict[str, Any], notes: Notes) -> None:
    """Set the sizes between which the group may change, if a DDPJob can do the same."""
    names, replicas = ("minReplicas", "maxReplicas"), result["replicas"]
    sizes = {name: size for name in names if (size := policy.integer(name, least=1)) is not None}
    scaled = policy.has("metrics")
    elastic: dict[str, int] = {}
    for name, size in sizes.items():
        field, least = policy.field(name), name == "minReplicas"
        if size == replicas:
            continue  # the default
        if "overrides" in result:
            notes.dropped(field, f"{_UNEQUAL}; remove that field to set spec.elastic.{name}")
        elif (size > replicas) is least:
            notes.dropped(field, f"{size} does not fit {replicas} pods; set spec.replicas too")
        elif not least:
            hint = "" if scaled else "; set spec.elastic.maxReplicas to grow that far"
            notes.dropped(field, f"it limits an autoscaler, which has its own limit here{hint}")
        else:
            elastic[name] = size
    if elastic:
        result["elastic"] = elastic
        notes.changed(policy.field(next(iter(elastic))), ELASTIC)


def _override(templates: list[dict[str, Any]], result: dict[str, Any]) -> None:
    """Add an override if the master differs from the workers."""
    patch = merge_patch(templates[-1], templates[0])
    if patch:
        override = result.setdefault("overrides", [{"indexes": ["0"]}])[0]
        override["template"] = patch
