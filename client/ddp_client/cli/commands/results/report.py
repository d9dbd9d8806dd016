"""The command `report`: one file about a job."""

import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import click
from ddp_operator.api.values.text import clean

from ddp_client import report as reports
from ddp_client.cli.app import job_argument, on_job
from ddp_client.remote.evidence import gather
from ddp_client.report.files import UnreadableError, read_metrics, read_run

MISSING: Final = (
    "pictures need packages that are not installed: pip install 'ddp-client[report]', or use "
    "`report -o md`"
)
_FORMS: Final = ("html", "md", "json")
_MOST_PRICE: Final = 1e6


def _read_prices(
    _: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> dict[str, float]:
    """Return prices by kind of GPU."""
    prices: dict[str, float] = {}
    for value in values:
        kind, _equals, amount = value.rpartition("=")
        try:
            price = float(amount)
        except ValueError:
            price = math.nan
        if not kind or not 0 <= price < _MOST_PRICE:
            problem = f"{clean(value, 60)!r}: use nvidia-h100-80gb=3.5, or gpu=3.5 for all"
            raise click.BadParameter(problem, param=option)
        prices[kind] = price
    return prices


price_option = click.option(
    "--price",
    "prices",
    multiple=True,
    callback=_read_prices,
    metavar="KIND=AMOUNT",
    help="Price per hour of a GPU of this kind (accelerator.type); gpu=AMOUNT: any other kind.",
)


def _read_pod_price(_: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """Return the price of a pod and hour, if it is one."""
    if value is not None and not 0 <= value < _MOST_PRICE:
        raise click.BadParameter(f"{value:g}: use a price of at least 0, like 32.5", param=option)
    return value


def _form(_context: click.Context, option: click.Parameter, value: str) -> str:
    """Check the format; a file name gets an error with advice."""
    if value not in _FORMS:
        kind = Path(value).suffix.removeprefix(".")
        form = kind if kind in _FORMS else _FORMS[0]
        problem = (
            f"{clean(value, 60)}: choose {', '.join(_FORMS)}; for a file: -o {form} --file FILE"
        )
        raise click.BadParameter(problem, param=option)
    return value


@click.command()
@job_argument
@click.option(
    "-o",
    "--output",
    "form",
    metavar=f"[{'|'.join(_FORMS)}]",
    default=_FORMS[0],
    callback=_form,
    help="Default: html.",
)
@click.option("--file", metavar="FILE", help="Default: NAME.html, .md or .json; - is stdout.")
@click.option(
    "--metrics",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="The trainer's metrics.jsonl, or the checkpoint directory with it; needed when no pod "
    "runs to read it from.",
)
@click.option(
    "--local",
    "workdir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Report a run of `python -m ddp_client.local --workdir DIR`; no cluster is used.",
)
@price_option
@click.option(
    "--price-per-hour",
    "price_per_pod",
    type=float,
    callback=_read_pod_price,
    metavar="AMOUNT",
    help="Price of one pod per hour, such as that of its machine; instead of --price.",
)
def report(
    name: str,
    form: str,
    file: str | None,
    metrics: Path | None,
    workdir: Path | None,
    prices: Mapping[str, float],
    price_per_pod: float | None,
) -> None:
    """Write a report about a job to one file.

    It shows attempts and failures, how long each part of a recovery took, loss and throughput,
    step times, slow ranks, goodput, checkpoints and GPU hours. The job may run or have ended; then
    give its metrics.jsonl with --metrics. You can send the HTML page to others: it loads nothing
    from the network.
    """
    if prices and price_per_pod is not None:
        raise click.UsageError(
            "give --price for GPUs or --price-per-hour for whole pods, not both: the GPUs would be "
            "paid twice"
        )
    facts = _facts(name, metrics, workdir)
    made = reports.build(facts, prices=prices, price_per_pod=price_per_pod)
    try:
        text = _written(made, form)
    except ImportError:
        raise click.ClickException(MISSING) from None
    if file == "-":
        click.echo(text, nl=not text.endswith("\n"))
        return
    path = Path(file) if file else Path(f"{name}.{form}")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from None
    click.echo(f"wrote {path} ({max(len(text.encode()) // 1000, 1)} kB)", err=True)


def _facts(name: str, metrics: Path | None, workdir: Path | None) -> reports.Facts:
    try:
        history = read_metrics(metrics) if metrics else None
        if workdir is None:
            return on_job(name, partial(gather, history=history))
        facts = read_run(workdir, history=history)
    except UnreadableError as error:
        raise click.ClickException(clean(error)) from None
    if facts.job.name != name:
        raise click.ClickException(
            f"{workdir} has a run of job {clean(facts.job.name, 253)}, not of {name}"
        )
    return facts


def _written(made: reports.Report, form: str) -> str:
    if form == "html":
        return reports.as_html(made)
    if form == "md":
        return reports.as_markdown(made)
    return json.dumps(reports.as_dict(made), indent=2, allow_nan=False) + "\n"
