"""What all commands have in common: kubectl's options, the connection, errors in one line."""

import asyncio
import math
import re
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from ddp_operator.client.cluster import JOBS, Cluster, NoSuchJobError, NotInstalledError
from ddp_operator.kube import (
    METADATA_ONLY,
    NAMESPACES,
    ApiClient,
    CredentialsError,
    load_credentials,
)
from ddp_operator.ports import ClusterError, Key
from ddp_operator.views.changes import RefusedError
from ddp_operator.views.job.pods import Pods
from ddp_operator.views.job.snapshot import JobSnapshot
from ddp_operator.views.text import clean

T = TypeVar("T")
CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""As the API server has it; nothing else may become part of a request's path."""
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, None: 1}
_WIDEST: Final = 110
_TIMEOUT_SECONDS: Final = 15.0
"""A person waits for the answer; an operator would wait for longer."""
_COMPLETION_SECONDS: Final = 2.0
_COMPLETIONS: Final = 250


@dataclass
class Settings:
    """kubectl's options, wherever in the line they stood."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None


def connection_options(command: CommandT) -> CommandT:
    """Give a command kubectl's options for where things are."""
    for flags, name, said in (
        (("--kubeconfig",), "FILE", "Default: $KUBECONFIG, then ~/.kube/config, then in-cluster."),
        (("--context",), "NAME", "Context of the kubeconfig; default: its current one."),
        (("-n", "--namespace"), "NAME", "Default: that of the context."),
    ):
        complete = _complete_namespaces if "-n" in flags else None
        command = click.option(
            *flags,
            metavar=name,
            help=said,
            expose_value=False,
            callback=_keep,
            shell_complete=complete,
        )(command)
    return command


def _keep(context: click.Context, option: click.Parameter, value: str | None) -> None:
    settings = context.ensure_object(Settings)
    if option.name == "namespace" and value is not None:
        value = _checked(context, option, value)
    if value is not None:
        setattr(settings, str(option.name), value)


def on_cluster(action: Callable[[Cluster, str], Awaitable[T]]) -> T:
    """Do something on the cluster; it is told the namespace that is meant.

    Raises:
        click.ClickException: it cannot be done; its message is one line.
    """
    settings = click.get_current_context().ensure_object(Settings)

    async def act() -> T:
        credentials = load_credentials(kubeconfig=settings.kubeconfig, context=settings.context)
        namespace = settings.namespace or credentials.default_namespace
        async with ApiClient(credentials, timeout_seconds=_TIMEOUT_SECONDS) as client:
            return await action(Cluster(client), namespace)

    try:
        return asyncio.run(act())
    except ClusterError as error:
        raise click.ClickException(clean(error.message, 1024)) from None
    except (CredentialsError, NotInstalledError, NoSuchJobError, RefusedError) as error:
        raise click.ClickException(clean(error, 1024)) from None


async def fetch(cluster: Cluster, key: Key) -> tuple[JobSnapshot, Pods]:
    """Return a job and its pods."""
    manifest, pods = await asyncio.gather(cluster.job(key), cluster.pods(key))
    job = JobSnapshot.read(manifest)
    return job, Pods.of(job, pods)


def read_duration(_: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Return the seconds of `90s`, `5m` or `1h30m`; a plain number is seconds."""
    if value is None:
        return None
    parts = [*_DURATION.finditer(value)]
    if not parts or "".join(part[0] for part in parts) != value:
        raise click.BadParameter(f"{clean(value, 40)!r}: use 90s, 5m or 1h30m", param=option)
    return math.fsum(float(part[1]) * _SECONDS[part[2]] for part in parts)


def job_key(namespace: str, name: str) -> Key:
    """The job that a command names."""
    return Key(namespace, name)


def job_argument(command: CommandT) -> CommandT:
    """Give a command the job's name; kubectl's `ddp/NAME` is understood, too."""
    return click.argument("name", callback=_checked, shell_complete=_complete_jobs)(command)


def optional_job_argument(command: CommandT) -> CommandT:
    """Give a command a job's name that may be left out."""
    return click.argument(
        "name",
        required=False,
        callback=lambda context, option, value: value and _checked(context, option, value),
        shell_complete=_complete_jobs,
    )(command)


def _checked(_: click.Context, option: click.Parameter, value: str) -> str:
    name = value.rpartition("/")[2]
    if not _NAME.fullmatch(name):
        said = f"{clean(value, 80)!r} is no name of an object"
        raise click.BadParameter(f"{said}: lower-case letters, digits, - and .", param=option)
    return name


def _complete_jobs(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    return _names(context, begun, lambda namespace: JOBS.path(namespace=namespace))


def _complete_namespaces(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    return _names(context, begun, lambda _: NAMESPACES.path())


def _names(context: click.Context, begun: str, path: Callable[[str], str]) -> list[str]:
    """Names that begin so; none where the cluster does not give them at once: a shell waits."""
    settings = context.ensure_object(Settings)

    async def ask() -> list[str]:
        credentials = load_credentials(kubeconfig=settings.kubeconfig, context=settings.context)
        namespace = settings.namespace or credentials.default_namespace
        async with ApiClient(credentials, timeout_seconds=_COMPLETION_SECONDS) as client:
            found = await client.request(
                "GET", path(namespace), params={"limit": str(_COMPLETIONS)}, accept=METADATA_ONLY
            )
        names = (item["metadata"]["name"] for item in found["items"])
        return [name for name in names if name.startswith(begun) and _NAME.fullmatch(name)]

    try:
        return asyncio.run(ask())
    except (ClusterError, CredentialsError, KeyError, TypeError):
        return []


def width() -> int:
    """Columns to fold text at: the terminal's, 80 in a pipe."""
    return min(shutil.get_terminal_size((80, 24)).columns, _WIDEST) if is_terminal() else 80


def is_terminal() -> bool:
    """Whether a person reads along."""
    return sys.stdout.isatty()


def may_ask() -> bool:
    """Whether there is a person to ask."""
    return sys.stdin.isatty()


def print_lines(lines: list[str]) -> None:
    """Print text that a view has made."""
    click.echo("\n".join(lines))
