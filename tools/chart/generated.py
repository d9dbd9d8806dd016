"""The chart's schema and the table in its README, generated from values.yaml and from the types."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel

from tools.chart.values import Values

CHART: Final = Path(__file__).parents[2] / "manifests/chart"
_BEGIN: Final = "<!-- values: make generate -->\n"
_END: Final = "<!-- end of values -->\n"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A value in values.yaml: its path, its default, and the first paragraph of its comment."""

    path: tuple[str, ...]
    default: Any
    description: str
    is_section: bool
    """It only groups other values."""


def files(values: str, readme: str) -> dict[str, str]:
    """Return the generated files by name; `values` and `readme` are the texts in the chart."""
    before, _, rest = readme.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    found = entries(values)
    return {
        "values.schema.json": json.dumps(schema(found), indent=1, ensure_ascii=False) + "\n",
        "README.md": f"{before}{_BEGIN}\n{_table(found)}\n{_END}{after}",
    }


def generate(chart: Path = CHART) -> None:
    """Write the generated files."""
    for name, text in files(
        (chart / "values.yaml").read_text(), (chart / "README.md").read_text()
    ).items():
        (chart / name).write_text(text)


def entries(values: str) -> list[Entry]:
    """Return the values in the text of values.yaml, in its order.

    Raises:
        pydantic.ValidationError: a value is unknown, is missing or has a bad default.
    """
    defaults = yaml.safe_load(values)
    Values.model_validate(defaults)
    return list(_entries(yaml.compose(values), defaults, Values, (), values.splitlines()))


def _entries(
    node: Any,
    defaults: dict[str, Any],
    model: type[BaseModel],
    path: tuple[str, ...],
    lines: list[str],
) -> Iterator[Entry]:
    types = {field.alias: field.annotation for field in model.model_fields.values()}
    for key, value in node.value:
        name = key.value
        kind = types[name]
        section = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
        yield Entry(
            path=(*path, name),
            default=defaults[name],
            description=_comment_above(key.start_mark.line, lines),
            is_section=section is not None,
        )
        if section:
            yield from _entries(value, defaults[name], section, (*path, name), lines)


def _comment_above(number: int, lines: list[str]) -> str:
    above = (line.strip() for line in reversed(lines[:number]))
    block = [line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), above)]
    return " ".join(takewhile(bool, reversed(block)))


def schema(found: list[Entry]) -> dict[str, Any]:
    """Return the JSON Schema that Helm checks values against."""
    generated = Values.model_json_schema()
    result: dict[str, Any] = _inlined(generated, generated.pop("$defs"))
    for entry in found:
        node = result
        for name in entry.path:
            node = node["properties"][name]
        node["description"] = entry.description
        if not entry.is_section:
            node["default"] = entry.default
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **result}


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """Replace references; drop titles, and `required`, as Helm merges the defaults in."""
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {
        key: _inlined(value, definitions)
        for key, value in node.items()
        if key not in ("title", "required")
    }


def _table(found: list[Entry]) -> str:
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for entry in found:
        if not entry.is_section:
            default = f"`{json.dumps(entry.default)}`" if entry.default not in ("", [], {}) else ""
            rows.append(f"| `{'.'.join(entry.path)}` | {default} | {entry.description} |")
    return "\n".join(rows) + "\n"
