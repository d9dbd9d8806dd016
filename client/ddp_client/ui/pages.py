"""The pages as HTML: all text escaped, one script of our own, nothing from other servers."""

from datetime import datetime
from typing import Any, Final

from ddp_operator.ports import Key
from jinja2 import ChoiceLoader, PackageLoader

from ddp_client.remote.pacing import LIST_SECONDS
from ddp_client.report.page import LOADER, TEMPLATES
from ddp_client.ui.cache import Cached
from ddp_client.ui.polling import REPORT_SECONDS, Poller

SCRIPT: Final = "/live.js"
"""The path of the script."""
_TEMPLATES: Final = TEMPLATES.overlay(
    loader=ChoiceLoader([PackageLoader("ddp_client.ui", "templates"), LOADER])
)


def script() -> str:
    """Return the script that updates a page."""
    return _TEMPLATES.get_template("live.js.j2").render()


def jobs(poller: Poller) -> str:
    """Return the page with the table of jobs."""
    where = "all namespaces" if poller.everywhere else f"namespace {poller.home}"
    return _TEMPLATES.get_template("jobs.html.j2").render(
        jobs=poller.jobs.value,
        read_at=_time(poller.jobs.value.read_at) if poller.jobs.value else "",
        where=where,
        trouble=_trouble(poller.jobs),
        seconds=LIST_SECONDS,
        script=SCRIPT,
    )


def job(key: Key, report: Cached[dict[str, Any]]) -> str:
    """Return the page with a job's report, or with the error."""
    name = "nothing.html.j2" if report.value is None else "job.html.j2"
    return _TEMPLATES.get_template(name).render(
        report.value or {},
        key=key,
        trouble=_trouble(report),
        seconds=REPORT_SECONDS,
        script=SCRIPT,
    )


def _trouble(cached: Cached[Any]) -> str:
    """Return why the content is out of date; empty when it is current."""
    if not cached.trouble or cached.since is None:
        return ""
    stays = "" if cached.value is None else " The page shows the last known state."
    return f"Since {_time(cached.since)} UTC: {cached.trouble}.{stays}"


def _time(moment: datetime) -> str:
    return f"{moment:%H:%M:%S}"
