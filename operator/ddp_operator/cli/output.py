"""Objects as kubectl's `-o` shows them. Both writers escape what a terminal would obey."""

import json
from collections.abc import Sequence
from typing import Any

import click
import yaml

from ddp_operator.api.constants import API_VERSION, GROUP, SINGULAR
from ddp_operator.ports import Manifest
from ddp_operator.views.text import clean


def listed(items: Sequence[Manifest], form: str) -> str:
    """Jobs as a List, or as their names."""
    if form == "name":
        return "\n".join(named(item) for item in items)
    return _written({"apiVersion": "v1", "kind": "List", "items": [*map(_bare, items)]}, form)


def single(item: Manifest, form: str) -> str:
    """One job."""
    return named(item) if form == "name" else _written(_bare(item), form)


def named(item: Manifest) -> str:
    """A job's name as other commands of kubectl take it."""
    return f"{SINGULAR}.{GROUP}/{clean(item['metadata']['name'], 253)}"


def _bare(item: Manifest) -> dict[str, Any]:
    """Without the record of who wrote which field; the items of a list do not say what they are."""
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
        raise click.ClickException(f"a job is nested too deep to be shown as {form}") from None
    return text.rstrip("\n")


def documents(manifests: Sequence[Manifest], form: str) -> str:
    """Manifests as people write them, of one file."""
    if form == "json":
        items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        return json.dumps(manifests[0] if len(manifests) == 1 else items, indent=2)
    text: str = yaml.dump_all(
        manifests, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True
    )
    return text.rstrip("\n")


class _Dumper(yaml.SafeDumper):
    """Writes manifests as people do."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write out what occurs twice."""
        del data
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
