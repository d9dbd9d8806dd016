"""What is generated from the model: the chart's values, their schema, and its README's table."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel

from tools.chart.values import OF_PARENTS, Values

CHART: Final = Path(__file__).parents[2] / "manifests/chart"
_BEGIN: Final = "<!-- values: make generate -->\n"
_END: Final = "<!-- end of values -->\n"
_WIDTH: Final = 100


def files(readme: str) -> dict[str, str]:
    """Return the generated files of the chart, by name; of its README, given, only the table."""
    before, _, rest = readme.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return {
        "values.yaml": values_yaml(Values()),
        "values.schema.json": json.dumps(schema(), indent=1) + "\n",
        "README.md": f"{before}{_BEGIN}\n{_table()}\n{_END}{after}",
    }


def generate(chart: Path = CHART) -> None:
    """Write them."""
    for name, text in files((chart / "README.md").read_text()).items():
        (chart / name).write_text(text)


def schema() -> dict[str, Any]:
    """Return what Helm checks values by."""
    found: dict[str, Any] = _without_titles(Values.model_json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def _without_titles(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_titles(value) for key, value in node.items() if key != "title"}
    return [_without_titles(item) for item in node] if isinstance(node, list) else node


def values_yaml(values: Values) -> str:
    """Write values down with their meaning, as a chart has them."""
    return "# Generated from tools/chart/values.py (make generate).\n" + "\n".join(
        _lines(values, indent="")
    )


def _lines(values: BaseModel, *, indent: str) -> Iterator[str]:
    for name, field in type(values).model_fields.items():
        if not indent and name in OF_PARENTS:
            continue
        value = getattr(values, name)
        text = field.description or (value.__doc__ if isinstance(value, BaseModel) else None)
        if text:
            yield from textwrap.wrap(
                text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
            )
        if isinstance(value, BaseModel):
            yield f"{indent}{field.alias}:"
            yield from _lines(value, indent=f"{indent}  ")
        else:
            dumped = yaml.safe_dump({field.alias: value}, sort_keys=False).rstrip()
            yield textwrap.indent(dumped.replace("''", '""'), indent)
        if not indent:
            yield ""


def _table() -> str:
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for name, default, meaning in _rows(Values(), prefix=""):
        rows.append(f"| `{name}` | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def _rows(values: BaseModel, *, prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in type(values).model_fields.items():
        value = getattr(values, name)
        if isinstance(value, BaseModel):
            yield from _rows(value, prefix=f"{prefix}{field.alias}.")
        else:
            default = f"`{json.dumps(value)}`" if value not in ("", [], {}) else ""
            yield f"{prefix}{field.alias}", default, field.description or ""
