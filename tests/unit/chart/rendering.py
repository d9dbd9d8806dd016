"""The chart, rendered by Helm's own code in this process, without a cluster."""

import functools
import json
from collections.abc import Mapping
from typing import Any, Final

import helm_python as helm
import yaml

from tools.chart.generated import CHART

Json = dict[str, Any]
Objects = dict[tuple[str, str], Json]
"""By kind and name."""

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast
NAMESPACE: Final = "ddp-operator"
OPERATOR: Final = ("Deployment", "ddp-operator")


@functools.cache
def chart() -> helm.Chart:
    return helm.Chart.load(CHART)


def render(values: Mapping[str, Any] | None = None, *, namespace: str = NAMESPACE) -> Objects:
    """Return the objects that are installed with these values."""
    return {key: o for key, o in everything(values, namespace=namespace).items() if not is_hook(o)}


def hooks(values: Mapping[str, Any] | None = None, *, namespace: str = NAMESPACE) -> Objects:
    """Return the objects that `helm test` adds."""
    return {key: o for key, o in everything(values, namespace=namespace).items() if is_hook(o)}


def everything(values: Mapping[str, Any] | None = None, *, namespace: str = NAMESPACE) -> Objects:
    text = _rendered(json.dumps(values or {}), namespace)
    return by_name(list(yaml.load_all(text, Loader=_LOADER)))


@functools.cache
def _rendered(values: str, namespace: str) -> str:
    texts = chart().render(json.loads(values), name="ddp", namespace=namespace)
    return "\n---\n".join(texts[path] for path in sorted(texts) if path.endswith(".yaml"))


def by_name(documents: list[Json | None]) -> Objects:
    """Return objects by kind and name. No two may be the same."""
    found = [document for document in documents if document]
    objects = {(o["kind"], o["metadata"]["name"]): o for o in found}
    assert len(objects) == len(found)
    return objects


def is_hook(manifest: Json) -> bool:
    return "helm.sh/hook" in manifest["metadata"].get("annotations", {})


def pod_of(rendered: Objects) -> Json:
    """Return the spec of the operator's pods."""
    pod = rendered[OPERATOR]["spec"]["template"]["spec"]
    assert isinstance(pod, dict)
    return pod


def container_of(rendered: Objects) -> Json:
    [found] = pod_of(rendered)["containers"]
    assert isinstance(found, dict)
    return found
