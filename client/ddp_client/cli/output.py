"""Objects in the formats of kubectl's `-o`. JSON and YAML escape control characters."""

import json
from collections.abc import Sequence
from typing import Any

import click
import yaml
from ddp_operator.api.constants import API_VERSION, GROUP, SINGULAR
from ddp_operator.api.values.text import clean
from ddp_operator.ports import Manifest


def listed(items: Sequence[Manifest], form: str) -> str:
    """Return jobs as a List, or as names."""
    if form == "name":
        return "\n".join(named(item) for item in items)
    return _written({"apiVersion": "v1", "kind": "List", "items": [*map(_bare, items)]}, form)


def single(item: Manifest, form: str) -> str:
    """Return one job."""
    return named(item) if form == "name" else _written(_bare(item), form)


def named(item: Manifest) -> str:
    """Return a job's name in the form that kubectl's commands accept."""
    return f"{SINGULAR}.{GROUP}/{clean(item['metadata']['name'], 253)}"


def _bare(item: Manifest) -> dict[str, Any]:
    """Remove `managedFields` and add the kind, which items of a list lack."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    return {**item, "apiVersion": API_VERSION, "kind": "DDPJob", "metadata": metadata}


def _written(document: Manifest, form: str) -> str:
    try:
        text: str = (
            json.dumps(document, indent=4)
            if form == "json"
            else yaml.safe_dump(document, sort_keys=False)
        )
    except RecursionError:
        raise click.ClickException(f"a job is nested too deep to print as {form}") from None
    return text.rstrip("\n")


def documents(manifests: Sequence[Manifest], form: str) -> str:
    """Return manifests as the text of one file."""
    if form == "json":
        items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        return json.dumps(manifests[0] if len(manifests) == 1 else items, indent=2)
    text: str = yaml.dump_all(
        manifests, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True
    )
    return text.rstrip("\n")


class _Dumper(yaml.SafeDumper):
    """Writes YAML without aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write a repeated value in full."""
        del data
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
