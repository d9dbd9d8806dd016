"""Generates reference pages from the code at each build of the documentation (a MkDocs hook).

They are not stored, so they are never out of date.
"""

import ast
import inspect
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from ddp_client.cli.__main__ import program
from ddp_client.local.__main__ import main as local_main
from ddp_client.views.reasons import OF_CLUSTER, OWN
from ddp_operator import __version__
from ddp_operator.__main__ import main as operator_main
from ddp_operator.api.schema.crd import custom_resource_definition
from ddp_operator.engine.metrics import Metrics, text_of
from ddp_operator.engine.metrics.totals import Totals
from ddp_trainer import exit_codes
from ddp_trainer.launcher.options import LaunchOptions
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_WIDTH = 96


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version in the title, and link the repository if `DOCS_REPOSITORY` has its URL.

    The link is in the footer: `repo_url` would make each page ask GitHub for stars.
    """
    config.site_name = f"{config.site_name} {__version__}"
    if repository := os.environ.get("DOCS_REPOSITORY"):
        link = {"icon": "fontawesome/brands/git-alt", "link": repository, "name": "Repository"}
        config.extra["social"] = [link]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages (called by MkDocs)."""
    for name, text in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    cells = (Path(config.docs_dir) / "tutorial.py").read_text()
    files.append(File.generated(config, "how-to/tutorial.md", content=_notebook(cells)))
    return files


def _notebook(text: str) -> str:
    """Return the page for a file of cells that begin with `# %%`."""
    parts: list[str] = []
    for cell in text.split("# %%")[1:]:
        kind, _, body = cell.partition("\n")
        if "[markdown]" in kind:
            lines = (line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines())
            parts.append("\n".join(lines))
        else:
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """Return the texts of the generated pages by name."""
    return {
        "fields": _fields(),
        "commands": _commands(),
        "reasons": _reasons(),
        "exit-codes": _exit_codes(),
        "metrics": _metrics(),
    }


def _fields() -> str:
    [version] = custom_resource_definition()["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    parts = [
        "# All fields",
        "From the CRD, `crds/ddpjobs.yaml`. [The spec, by subject](spec.md) adds details.",
    ]
    for name in ("spec", "status"):
        parts += [f"## {name}", "| field | type | default | meaning |\n|---|---|---|---|"]
        parts[-1] += "".join(f"\n{row}" for row in _rows(schema[name], ""))
    return "\n\n".join(parts) + "\n"


def _rows(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        inner, kind = field, field.get("type", "integer or string")
        if kind == "array":
            inner, here = field["items"], f"{here}[]"
            kind = f"list of {inner.get('type', 'any')}s"
        if "enum" in inner:
            kind = " or ".join(f"`{word}`" for word in inner["enum"])
        bounds = [field[bound] for bound in ("minimum", "maximum") if bound in field]
        if bounds:
            kind += f", {' to '.join(f'{bound:g}' for bound in bounds)}"
        default = f"`{field['default']}`" if "default" in field else ""
        cells = (f"`{here}`", kind, default, field.get("description", ""))
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |"
        if here != "template":  # Kubernetes' own
            yield from _rows(inner, here)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _commands() -> str:
    parts = ["# Commands", "`kubectl ddp` and `ddp` are the same program."]
    for name, command in program.commands.items():
        context = click.Context(
            command,
            info_name=f"kubectl ddp {name}",
            max_content_width=_WIDTH,
            terminal_width=_WIDTH,
        )
        parts += [f"## {name}", _block(command.get_help(context))]
    parts += ["## python -m ddp_operator run", "The operator itself."]
    parts += [_block(_printed(operator_main, ["run", "--help"]))]
    parts += ["## python -m ddp_client.local", "One job on this machine, without a cluster."]
    parts += [_block(_printed(local_main, ["--help"]))]
    parts += ["## python -m ddp_trainer.launch", "The trainer image's entrypoint."]
    parts += [_block(_printed(LaunchOptions.parse, ["--help"]))]
    return "\n\n".join(parts) + "\n"


def _printed(main: Any, arguments: list[str]) -> str:
    text = io.StringIO()
    with redirect_stdout(text), suppress(SystemExit):
        main(arguments)
    return text.getvalue()


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


def _reasons() -> str:
    """Return the page of reasons; each has a heading for links."""
    parts = [
        "# Reasons",
        "Reasons of Events, conditions and recorded failures, as `kubectl describe`, "
        "`kubectl get` and `kubectl ddp why` show them. For texts in their messages see "
        "[Errors and what to do](errors.md).",
    ]
    for heading, reasons in (("From the operator", OWN), ("From the cluster", OF_CLUSTER)):
        parts.append(f"## {heading}")
        for name, reason in reasons.items():
            meaning = reason.meaning[0].upper() + reason.meaning[1:]
            parts += [
                f"### {name}",
                f"{meaning}. *What happens next:* {reason.then}. "
                f"*What you can do:* {reason.remedy}.",
            ]
    return "\n\n".join(parts) + "\n"


def _exit_codes() -> str:
    """Return the page of exit codes, with the docstring of each member."""
    [kind] = [
        node
        for node in ast.parse(inspect.getsource(exit_codes)).body
        if isinstance(node, ast.ClassDef) and node.name == exit_codes.ExitCode.__name__
    ]
    rows: dict[str, str] = {}
    last = ""
    for node in kind.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            last = node.targets[0].id
            rows[last] = "All ranks trained to the end." if last == "DONE" else ""
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and last:
            rows[last] = _cell(str(node.value.value))
    table = "".join(
        f"\n| {exit_codes.ExitCode[name].value} | {name} | {said} |" for name, said in rows.items()
    )
    return (
        "# Exit codes of the trainer\n\n"
        "[What a failure is](failures.md#what-a-failure-is) explains how the operator "
        "treats them. 128 + n means that signal n ended the process."
        f"\n\n| code | name | meaning |\n|---|---|---|{table}\n"
    )


def _metrics() -> str:
    operator = Metrics().text(Totals(), queued=0, leading=True)
    jobs = text_of((), now=datetime.now(UTC))
    return (
        "# Metrics of the operator\n\nAt `/metrics` on port 8081. The metrics of a training are "
        "on the [status port](../concepts/architecture.md#http-requests-to-a-pod) of its pods.\n\n"
        f"{_table_of(operator)}\n"
        "## Metrics of each job\n\nWith the labels `job_namespace` and `job_name`. "
        "[How to use them](../how-to/metrics.md).\n\n"
        f"{_table_of(jobs)}"
    )


def _table_of(text: str) -> str:
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    rows = [
        line.removeprefix("# HELP ").split(" ", 1)
        for line in text.splitlines()
        if line.startswith("# HELP")
    ]
    table = "".join(f"\n| `{name}` | {types[name]} | {_cell(said)} |" for name, said in rows)
    return f"| name | type | meaning |\n|---|---|---|{table}\n"
