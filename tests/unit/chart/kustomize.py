"""As much of kustomize as `manifests/install` and its components need."""

import copy
import re
from pathlib import Path
from typing import Any, Final

import yaml

from tests.unit.chart.rendering import Objects, by_name

MANIFESTS: Final = Path(__file__).parents[3] / "manifests"


def build(*components: str) -> Objects:
    """Return the objects that `kubectl apply -k` with these components would install."""
    folder = MANIFESTS / "install"
    chosen = _read(folder)
    objects = by_name(_resources(folder))
    for component in components:
        _add(objects, MANIFESTS / "components" / component)
    for image in chosen["images"]:
        for container in _containers(objects):
            if container["image"] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    return objects


def _read(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text())
    return read


def _resources(folder: Path) -> list[Any]:
    found: list[Any] = []
    for name in _read(folder)["resources"]:
        path = (folder / name).resolve()
        found += _resources(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    return found


def _containers(objects: Objects) -> list[Any]:
    return [
        container
        for (kind, _), o in objects.items()
        if kind == "Deployment"
        for container in o["spec"]["template"]["spec"]["containers"]
    ]


def _add(objects: Objects, component: Path) -> None:
    for patch in _read(component).get("patches", ()):
        what, target = yaml.safe_load(patch["patch"]), patch["target"]
        hit = [
            (kind, name)
            for kind, name in objects
            if re.fullmatch(target["kind"], kind) and re.fullmatch(target["name"], name)
        ]
        assert hit, f"{component.name} patches nothing"
        for key in hit:
            if isinstance(what, dict):
                assert what["$patch"] == "delete"
                del objects[key]
            else:
                objects[key] = _patched(objects[key], what)
    objects |= by_name(_resources(component))
    for replacement in _read(component).get("replacements", ()):
        source = replacement["source"]
        value = _field(objects[source["kind"], source["name"]], source["fieldPath"].split("."))
        for target in replacement["targets"]:
            _replace(objects, target, value)
    for key, manifest in list(objects.items()):
        if "config.kubernetes.io/local-config" in manifest["metadata"].get("annotations", {}):
            del objects[key]


def _replace(objects: Objects, target: dict[str, Any], value: Any) -> None:
    select = target["select"]
    hit = [
        manifest
        for (kind, name), manifest in objects.items()
        if kind == select.get("kind", kind)
        and name == select.get("name", name)
        and select.get("namespace") in (None, manifest["metadata"].get("namespace"))
    ]
    assert hit, f"{target} replaces nothing"
    for manifest in hit:
        for path in target["fieldPaths"]:
            *steps, last = path.split(".")
            _field(manifest, steps)[last] = value


def _field(node: Any, steps: list[str]) -> Any:
    for step in steps:
        if step.startswith("["):  # an item of a list, such as [name=operator]
            key, _, value = step.strip("[]").partition("=")
            [node] = [item for item in node if item[key] == value]
        else:
            node = node[step]
    return node


def _patched(manifest: Any, operations: list[dict[str, Any]]) -> Any:
    result = copy.deepcopy(manifest)
    for operation in operations:
        assert operation["op"] == "add"
        *path, last = operation["path"].split("/")[1:]
        node = result
        for step in path:
            node = node[int(step) if isinstance(node, list) else step]
        if last == "-":
            node.append(operation["value"])
        else:
            node[last] = operation["value"]
    return result
