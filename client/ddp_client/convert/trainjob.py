"""Convert Kubeflow's TrainJob (`trainer.kubeflow.org`), with the runtime that it names."""

import re
from collections.abc import Sequence
from copy import deepcopy
from math import ceil
from typing import Any, Final

from ddp_operator.api.devices import is_accelerator
from ddp_operator.api.rules import trainer_container

from ddp_client.convert import job, jobset
from ddp_client.convert.notes import ConversionError, Notes
from ddp_client.convert.patch import merged
from ddp_client.convert.pods import check, pods
from ddp_client.convert.source import Source
from ddp_client.documents import nested

GROUP: Final = "trainer.kubeflow.org"
RUNTIMES: Final = ("ClusterTrainingRuntime", "TrainingRuntime")
_BUILT_IN: Final = "torch-distributed"
_STEP_LABEL: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
_CONTAINER: Final = "node"
_IMAGE: Final = "pytorch/pytorch"
_PATCHES: Final = ("podTemplateOverrides", "podSpecOverrides")
_OTHER_POLICIES: Final = ("mpi", "flux", "jax", "xgboost")
_HINTS: Final = {
    **jobset.HINTS,
    "initializer": "fetch data and models with an initContainer in spec.template, or earlier",
    "envInjection": "only the trainer's container gets the rendezvous variables",
    "metadata": "set it on the DDPJob if you need it",
}


def convert(source: Source, runtimes: Sequence[dict[str, Any]], notes: Notes) -> dict[str, Any]:
    """Convert one job; fields left in it or in its runtime are not carried over."""
    source.forget("status")
    meta = job.metadata(source, notes)
    spec = source.at("spec")
    trainer = spec.at("trainer")
    whole_runtime = _runtime(spec, runtimes, notes)
    runtime = whole_runtime.at("spec")
    policy = runtime.at("mlPolicy")
    for other in _OTHER_POLICIES:
        if policy.has(other):
            raise ConversionError(
                f"{policy.field(other)}: only torch can become a DDPJob; remove it"
            )
    replicated = _training(runtime, notes)
    name = replicated.word("name") or _CONTAINER
    nodes = policy.integer("numNodes", least=1)
    nodes = trainer.integer("numNodes", least=1) or nodes
    if nodes is not None:  # overrides the runtime's number
        replicated.at("template").at("spec").forget("parallelism", "completions")
    child = jobset.group(replicated, notes)
    result: dict[str, Any] = {"replicas": nodes or child.jobs * child.pods_of_job}
    whole = runtime.at("template").at("spec")
    jobset.limits(whole, replicated, result, notes, jobs=child.jobs)
    job.run_policy(spec, "trainer.kubeflow.org/trainjob-controller", result, notes)
    check(child.template, child.path)
    template = _patched(child.template, spec, name, notes)
    _trainer(template, trainer, child.path)
    _gang(runtime, result, notes)
    queue = job.with_metadata(template, meta, child.path, notes)
    origin = child.origin(meta.fields["name"], name, meta.fields["name"])
    one = pods(template, child.path, notes, trainer=_CONTAINER, origin=origin)
    of_runtime = policy.at("torch").number_or_word("numProcPerNode")
    setting = trainer.number_or_word("numProcPerNode") or of_runtime
    if setting in (None, "auto", "cpu") and not one.processes and one.starts == "launcher":
        setting = None if _has_devices(one.template) else _cpus(one.template)  # as in Kubeflow
    if isinstance(setting, str) and setting not in ("auto", "gpu", "cpu"):
        raise ConversionError(f"{trainer.field('numProcPerNode')}: {setting}; use a number")
    setting = "auto" if isinstance(setting, str) else setting
    field = trainer.field("numProcPerNode")
    jobset.finish(result, one, job.processes(one, setting, field, notes), queue, notes)
    notes.rest(source.rest(), _HINTS)
    notes.rest(whole_runtime.rest(), _HINTS)
    return job.checked(meta, result, notes)


def _runtime(spec: Source, runtimes: Sequence[dict[str, Any]], notes: Notes) -> Source:
    """Find the runtime in the file."""
    ref = spec.at("runtimeRef")
    ref.forget("apiGroup")
    kind, name = ref.word("kind") or RUNTIMES[0], ref.word("name") or ""
    for one in runtimes:
        if one.get("kind") == kind and nested(one, "metadata", "name") == name:
            runtime = Source(deepcopy(one), "runtime")
            runtime.forget("apiVersion", "kind", "metadata", "status")
            return runtime
    if (kind, name) != (RUNTIMES[0], _BUILT_IN):
        raise ConversionError(
            f"{ref.field('name')}: {kind} {name} is not in the file; add the output of kubectl get "
            f"{kind.lower()} {name} -o yaml after a line ---"
        )
    has_image = isinstance(spec.at("trainer").peek("image"), str)
    image = f"; set the image too, it is {_IMAGE} now" * (not has_image)
    notes.changed(
        ref.field("name"),
        f"{name} is not in the file: Kubeflow's default is assumed; if yours differs, add the "
        f"output of kubectl get {kind.lower()} {name} -o yaml{image}",
    )
    container = {"name": _CONTAINER, "image": _IMAGE}
    pod = {"template": {"spec": {"containers": [container]}}}
    jobs = [{"name": _CONTAINER, "template": {"spec": pod}}]
    return Source({"spec": {"template": {"spec": {"replicatedJobs": jobs}}}}, "runtime")


def _training(runtime: Source, notes: Notes) -> Source:
    """Find the job of a runtime that trains."""
    jobs = runtime.at("template").at("spec").each("replicatedJobs")
    trainers = [one for one in jobs if _labels(one).peek(_STEP_LABEL) == "trainer"]
    trainers = trainers or [one for one in jobs if one.peek("name") == _CONTAINER]
    if len(trainers) != 1:
        raise ConversionError(
            f"{runtime.field('template.spec.replicatedJobs')}: {len(trainers)} jobs train (label "
            f"{_STEP_LABEL}: trainer); a DDPJob needs exactly one"
        )
    _labels(trainers[0]).forget(_STEP_LABEL)
    for one in jobs:
        if one is not trainers[0]:
            notes.dropped(
                one.field("name"),
                f"{one.word('name')} does not train; run it as a Job before the training, or as an "
                "initContainer",
            )
            one.forget("template", "replicas", "dependsOn", "groupName")
    return trainers[0]


def _labels(replicated: Source) -> Source:
    return replicated.at("template").at("metadata").at("labels")


def _patched(template: dict[str, Any], spec: Source, name: str, notes: Notes) -> dict[str, Any]:
    """Apply the TrainJob's patches to the runtime's pods."""
    for patches in _PATCHES:
        for patch in spec.each(patches):
            targets = [one.word("name") for one in patch.each("targetJobs")]
            if name in targets:
                template = _merged(template, patch)
                continue
            notes.dropped(patch.field("targetJobs"), f"{', '.join(map(str, targets))}: not {name}")
            patch.forget("metadata", "spec")
    for patch in spec.each("runtimePatches"):
        patch.forget("manager", "time")
        jobs = patch.at("trainingRuntimeSpec").at("template").at("spec").each("replicatedJobs")
        for one in jobs:
            if one.peek("name") == name:
                one.forget("name")
                template = _merged(template, one.at("template").at("spec").at("template"))
    return template


def _merged(template: dict[str, Any], patch: Source) -> dict[str, Any]:
    changes = {part: patch.fields(part) for part in ("metadata", "spec") if patch.has(part)}
    return merged(template, changes)


def _trainer(template: dict[str, Any], trainer: Source, path: str) -> None:
    """Apply the TrainJob's settings of the training container."""
    check(template, path)
    containers = template["spec"]["containers"]
    container = next((one for one in containers if one["name"] == _CONTAINER), None)
    if container is None:
        raise ConversionError(
            f"{path}.spec.containers: the training container {_CONTAINER} is missing; add it"
        )
    if image := trainer.word("image"):
        container["image"] = image
    for name in ("command", "args"):
        if texts := trainer.texts(name):
            container[name] = texts
    if container.get("command") == ["tune", "run"]:
        raise ConversionError(
            f"{trainer.field('command')}: Kubeflow completes tune run with a recipe, --config and "
            "paths; write the whole command"
        )
    if resources := trainer.fields("resourcesPerNode"):
        container["resources"] = resources
    if (env := trainer.elements("env")) is not None:
        container |= merged({"env": container.get("env") or []}, {"env": env})


def _gang(runtime: Source, result: dict[str, Any], notes: Notes) -> None:
    policy = runtime.at("podGroupPolicy")
    if policy.has("coscheduling"):
        result["scheduling"] = {"gang": "coscheduling"}
        if seconds := policy.at("coscheduling").integer("scheduleTimeoutSeconds"):
            result["schedulingTimeoutSeconds"] = seconds
            notes.changed(
                policy.at("coscheduling").field("scheduleTimeoutSeconds"),
                "if only some pods get nodes, all pods are deleted and tried again",
            )
    elif policy.has("volcano"):
        policy.forget("volcano")
        notes.dropped(policy.field("volcano"), job.GANG)


def _has_devices(template: dict[str, Any]) -> bool:
    """Tell whether the trainer requests accelerators in any way."""
    resources = trainer_container(template).get("resources") or {}
    names = [*(resources.get("limits") or ()), *(resources.get("requests") or ())]
    return bool(resources.get("claims")) or any(map(is_accelerator, names))


def _cpus(template: dict[str, Any]) -> int:
    """Return the CPUs that the trainer requests, as Kubeflow counts them."""
    resources = trainer_container(template).get("resources") or {}
    for kind in ("requests", "limits"):
        if match := re.fullmatch(r"(\d{1,6})(m?)", str(nested(resources, kind, "cpu"))):
            return max(1, ceil(int(match[1]) / (1000 if match[2] else 1)))
    return 1
