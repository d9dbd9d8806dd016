"""`python -m tools.json_schema`: writes the JSON Schema of DDPJob for editors and linters.

It is the CRD's schema, in which an unknown field is an error. Path and form are those that
kubeconform and the catalog of CRDs expect: `<group>/<kind>_<version>.json`. Rules in CEL can't be
expressed in it; the API server checks them.
"""

import json
from pathlib import Path
from typing import Any

from ddp_operator.api.constants import GROUP, KIND, VERSION
from ddp_operator.api.schema.crd import custom_resource_definition

Schema = dict[str, Any]

PATH = Path("crds") / GROUP / f"{KIND.lower()}_{VERSION}.json"
"""From the root of the repository. `kubectl apply -f crds` does not read subfolders."""


def json_schema() -> Schema:
    """Return the schema of one DDPJob."""
    [version] = custom_resource_definition()["spec"]["versions"]
    schema = _strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["apiVersion"] = {"type": "string", "enum": [f"{GROUP}/{VERSION}"]}
    schema["properties"]["kind"] = {"type": "string", "enum": [KIND]}
    schema["properties"]["metadata"] = {"type": "object"}
    required = {"apiVersion", "kind", "metadata", *schema.get("required", ())}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **schema,
        "required": sorted(required),
    }


def _strict(schema: Schema) -> Schema:
    """Return a copy without Kubernetes' extensions that refuses unknown fields."""
    strict = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    if "properties" in schema:
        strict["properties"] = {
            name: _strict(inner) for name, inner in schema["properties"].items()
        }
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            strict["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            strict[key] = _strict(schema[key])
    return strict


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(json.dumps(json_schema(), indent=2) + "\n")
