"""Convert a Kubernetes Job with pods that train as one group."""

from typing import Any, Final

from ddp_operator.api.command import started
from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.api.devices import has_accelerators

from ddp_client.convert import job, jobset
from ddp_client.convert.notes import ConversionError, Notes
from ddp_client.convert.references import Hosts, Origin
from ddp_client.convert.source import Source
from ddp_client.documents import mapping

_INDEX_LABELS: Final = ("batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index")
_INDEX: Final = "$(NODE_RANK)"


def trains(document: dict[str, Any]) -> bool:
    """Tell whether an object's pods seem to train: they start a launcher or use accelerators."""
    containers = _containers(document.get("spec"))
    words = [
        [*_texts(container.get("command")), *_texts(container.get("args"))]
        for container in containers
    ]
    return any(started(each).launcher for each in words) or any(map(_has_gpus, containers))


def convert_job(source: Source, notes: Notes) -> dict[str, Any]:
    """Convert one Job; fields left in the source are not carried over."""
    source.forget("status")
    meta = job.metadata(source, notes)
    batch = source.at("spec")
    batch.forget("selector", "manualSelector")
    replicas = jobset.pods_at_a_time(batch)
    if not 1 <= replicas <= MAX_REPLICAS:
        raise ConversionError(
            f"{batch.field('parallelism')}: {replicas} pods; a DDPJob has 1 to {MAX_REPLICAS}"
        )
    result: dict[str, Any] = {"replicas": replicas}
    result["restart"] = jobset.pods_replaced(batch, notes)
    jobset.successful_indexes(batch, result, notes)
    job.run_policy(batch, "kubernetes.io/job-controller", result, notes)
    template = batch.fields("template")
    name = meta.fields["name"]
    labels = ("job-name", "batch.kubernetes.io/job-name")
    origin = _origin(name, template, dict.fromkeys(labels, name))
    path = batch.field("template")
    jobset.from_template(template, path, meta, origin, result, notes, gives_index=True)
    notes.rest(source.rest(), jobset.HINTS)
    return job.checked(meta, result, notes)


def _origin(name: str, template: dict[str, Any], names: dict[str, str]) -> Origin:
    """Return how the pods found each other: by name and index, in the user's own Service."""
    subdomain = str(mapping(template, "spec").get("subdomain", ""))
    # Without a Service pods have no host names, and a text "job-1" may mean anything.
    hosts = [Hosts(f"{name}-", 1, lambda number: number, f".{subdomain}")] if subdomain else []
    return Origin(
        name, tuple(hosts), dict.fromkeys(_INDEX_LABELS, _INDEX), frozenset(_INDEX_LABELS), names
    )


def _containers(value: Any) -> list[dict[str, Any]]:
    """Return the containers of all pod templates in any object."""
    if isinstance(value, list):
        return [one for inner in value for one in _containers(inner)]
    if not isinstance(value, dict):
        return []
    here = value.get("containers")
    own = [one for one in here if isinstance(one, dict)] if isinstance(here, list) else []
    return [*own, *(one for inner in value.values() for one in _containers(inner))]


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _has_gpus(container: dict[str, Any]) -> bool:
    return bool(mapping(container, "resources", "limits")) and has_accelerators(container)
