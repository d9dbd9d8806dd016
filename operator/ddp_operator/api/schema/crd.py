"""Generates the CustomResourceDefinition from the models, so that schema and parser agree."""

from copy import deepcopy
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from ddp_operator.api.constants import (
    GROUP,
    KIND,
    PLURAL,
    SHORT_NAME,
    SINGULAR,
    VERSION,
)
from ddp_operator.api.rules import NAME_CEL, SPEC_RULES, TRANSITION_RULES
from ddp_operator.api.spec import POD_FIELDS, DDPJobSpec
from ddp_operator.api.spec.template import PodTemplate
from ddp_operator.api.status import DDPJobStatus

Schema = dict[str, Any]

NAME = f"{PLURAL}.{GROUP}"
"""Name of the CRD itself."""

_COLUMNS = (
    ("Phase", "string", ".status.phase", 0),
    ("Ready", "string", ".status.ready", 0),
    ("Restarts", "integer", ".status.restarts", 0),
    ("Step", "integer", ".status.progress.step", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Loss", "number", ".status.progress.loss", 1),
    ("Disruptions", "integer", ".status.disruptions", 1),
    ("Reason", "string", ".status.reason", 1),
    ("Accelerator", "string", ".spec.accelerator.type", 1),
)

# Keywords of JSON Schema that a structural schema allows.
_KEPT = {
    "description", "type", "format", "enum", "default", "pattern",
    "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties",
}  # fmt: skip


def custom_resource_definition() -> dict[str, Any]:
    """Return the CRD manifest for `kubectl apply`."""
    spec = _schema(DDPJobSpec)
    description = spec["properties"]["template"]["description"]
    spec["properties"]["template"] = {**_schema(PodTemplate), "description": description}
    for name in POD_FIELDS:
        unless = " or with spec.elastic" if name == "replicas" else ""
        spec["properties"][to_camel(name)]["description"] += (
            f" Immutable once a pod has run, except while suspended{unless}."
        )
    for rule in SPEC_RULES:
        node = spec["properties"][rule.on] if rule.on else spec
        rules = node.setdefault("x-kubernetes-validations", [])
        rules.append({"rule": rule.cel, "message": rule.message})
    status = _unbounded(_schema(DDPJobStatus))
    # As everywhere in Kubernetes: one condition of each type, for all writers.
    status["properties"]["conditions"] |= {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }
    # The operator may be newer or older than the CRD, and its notes must not be lost.
    for notes in (status, status["properties"]["bookkeeping"]):
        notes["x-kubernetes-preserve-unknown-fields"] = True
    root: Schema = {
        "type": "object",
        "description": "A PyTorch DistributedDataParallel training job.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": [
            {"rule": NAME_CEL[0], "message": NAME_CEL[1]},
            # On the whole object, because the rules also read its status.
            *(
                {"rule": rule.cel, "message": rule.message, "fieldPath": f".{rule.field}"}
                for rule in TRANSITION_RULES
            ),
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.readyReplicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    # The API server does not store priority 0. If it were written here, Helm's
                    # server-side apply would conflict after kubectl's.
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path}
                        | ({"priority": priority} if priority else {})
                        for name, kind, path, priority in _COLUMNS
                    ],
                    "schema": {"openAPIV3Schema": root},
                }
            ],
        },
    }


def _schema(model: type[BaseModel]) -> Schema:
    document = model.model_json_schema(by_alias=True, mode="validation")
    return _structural(document, document.get("$defs", {}))


def _unbounded(node: Schema) -> Schema:
    """Keep only the shape: the server must not refuse the operator's values or add defaults."""
    kept = {k: v for k, v in node.items() if k in {"description", "type", "format", "enum"}}
    if "required" in node:
        kept["required"] = node["required"]
    if "properties" in node:
        kept["properties"] = {k: _unbounded(v) for k, v in node["properties"].items()}
    for inner in ("items", "additionalProperties"):
        if inner in node:
            kept[inner] = _unbounded(node[inner])
    return kept


def _structural(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """Turn pydantic's JSON Schema into a structural one: no references, no unions with null."""
    node = _resolved(node, definitions)
    node = {k: v for k, v in node.items() if (k, v) != ("default", None)}
    if node.get("x-kubernetes-int-or-string"):
        extra = ("x-kubernetes-int-or-string", "x-kubernetes-validations", "anyOf")
        return {k: v for k, v in node.items() if k in _KEPT - {"type"} or k in extra}
    result: Schema = {k: v for k, v in node.items() if k in _KEPT}
    if "const" in node:
        result["enum"] = [node["const"]]
    if "items" in node:
        result["items"] = _structural(node["items"], definitions)
    if "properties" in node:
        result["properties"] = {
            name: _structural(field, definitions) for name, field in node["properties"].items()
        }
        if "required" in node:
            result["required"] = node["required"]
        if node.get("additionalProperties") is True:
            result["x-kubernetes-preserve-unknown-fields"] = True
    elif node.get("type") == "object":
        values = node.get("additionalProperties", True)
        if values is True:
            result["x-kubernetes-preserve-unknown-fields"] = True
        else:
            result["additionalProperties"] = _structural(values, definitions)
    return result


def _resolved(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """Replace a node by its referenced definition, or by its only branch that is not null."""
    if "$ref" in node:
        # A copy: otherwise YAML would write a definition that is used twice as anchor and alias.
        return {**deepcopy(definitions[node["$ref"].rsplit("/", 1)[1]]), **node}
    if "anyOf" in node and not node.get("x-kubernetes-int-or-string"):
        branches = [branch for branch in node["anyOf"] if branch.get("type") != "null"]
        if len(branches) != 1:
            raise TypeError(f"a structural schema cannot have this union: {node}")
        rest = {k: v for k, v in node.items() if k != "anyOf"}
        return {**_resolved(branches[0], definitions), **rest}
    return node
