"""Shared by all commands: kubectl's options, the connection, and errors in one line."""

import math
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from ddp_operator.api.constants import GROUP, PLURAL, SHORT_NAME, SINGULAR, VERSION
from ddp_operator.api.values.text import OBJECT_NAME, clean
from ddp_operator.ports import ClusterError, Key

if TYPE_CHECKING:
    from ddp_client.remote.cluster import Cluster
    from ddp_client.views.job.pods import Pods
    from ddp_client.views.job.snapshot import JobSnapshot

# Functions here import asyncio, the API client and the models of jobs themselves: they take most of
# a second, and neither --version nor --help nor a shell that completes a word needs them.

T = TypeVar("T")
CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_TYPES: Final = frozenset(
    f"{name}{group}"
    for name in (PLURAL, SINGULAR, SHORT_NAME)
    for group in ("", f".{GROUP}", f".{VERSION}.{GROUP}")
)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, None: 1}
_WIDEST: Final = 110
_TIMEOUT_SECONDS: Final = 15.0
"""Shorter than the operator's timeout, because a person waits."""
_COMPLETION_SECONDS: Final = 2.0
_COMPLETIONS: Final = 250


@dataclass
class Settings:
    """kubectl's options, at any position in the command line."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None

    def options(self) -> list[str]:
        """Return the options that were given, for kubectl or this program."""
        options = {
            "--kubeconfig": self.kubeconfig,
            "--context": self.context,
            "--namespace": self.namespace,
        }
        return [f"{name}={value}" for name, value in options.items() if value is not None]


def connection_options(command: CommandT) -> CommandT:
    """Give a command kubectl's connection options."""
    for flags, name, summary in (
        (("--kubeconfig",), "FILE", "Default: $KUBECONFIG, then ~/.kube/config, then in-cluster."),
        (("--context",), "NAME", "Context of the kubeconfig; default: the current context."),
        (("-n", "--namespace"), "NAME", "Default: the context's namespace."),
    ):
        complete = _complete_namespaces if "-n" in flags else None
        command = click.option(
            *flags,
            metavar=name,
            help=summary,
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


def on_cluster(action: "Callable[[Cluster, str], Awaitable[T]]") -> T:
    """Run an action with the cluster and the selected namespace.

    Raises:
        click.ClickException: the action failed; the message is one line.
    """
    import asyncio  # noqa: PLC0415

    from ddp_operator.kube import ApiClient, CredentialsError, load_credentials  # noqa: PLC0415

    from ddp_client.remote.cluster import (  # noqa: PLC0415
        Cluster,
        NoSuchJobError,
        NotInstalledError,
    )
    from ddp_client.views.refused import RefusedError  # noqa: PLC0415

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


def on_job(name: str, action: "Callable[[Cluster, Key], Awaitable[T]]") -> T:
    """Run an action with the cluster and a job of the selected namespace, as `on_cluster`."""
    return on_cluster(lambda cluster, namespace: action(cluster, Key(namespace, name)))


async def fetch(cluster: "Cluster", key: Key) -> "tuple[JobSnapshot, Pods]":
    """Return a job and its pods."""
    import asyncio  # noqa: PLC0415

    from ddp_client.views.job.pods import Pods  # noqa: PLC0415
    from ddp_client.views.job.snapshot import JobSnapshot  # noqa: PLC0415

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


def job_argument(command: CommandT, *, required: bool = True) -> CommandT:
    """Give a command the job's name as an argument, and the connection options.

    `ddp/NAME` also works.
    """
    argument = click.argument(
        "name", required=required, callback=_job_name, shell_complete=_complete_jobs
    )
    return connection_options(argument(command))


def optional_job_argument(command: CommandT) -> CommandT:
    """Give a command a job's name as an optional argument, and the connection options."""
    return job_argument(command, required=False)


def _job_name(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Return the name of `NAME` or `TYPE/NAME`, with each form of the type that kubectl accepts."""
    if value is None:
        return None
    kind, slash, name = value.rpartition("/")
    if slash and kind.lower() not in _TYPES:
        namespace = f" -n {kind}" if OBJECT_NAME.fullmatch(kind) else " -n NAMESPACE"
        raise click.BadParameter(
            f"{clean(value, 80)!r}: {clean(kind, 80)!r} is not a type of job; give NAME or "
            f"{SHORT_NAME}/NAME, and the namespace with{namespace}",
            param=option,
        )
    return _checked(context, option, name)


def _checked(_: click.Context, option: click.Parameter, value: str) -> str:
    if not OBJECT_NAME.fullmatch(value):
        problem = f"invalid name {clean(value, 80)!r}: use lower-case letters, digits, - and ."
        raise click.BadParameter(problem, param=option)
    return value


def _complete_jobs(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{PLURAL}"
    return _names(context, begun, f"{PLURAL}.{GROUP}", path)


def _complete_namespaces(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    return _names(context, begun, "namespaces", "/api/v1/namespaces")


def _names(context: click.Context, begun: str, kind: str, path: str) -> list[str]:
    """Return names that begin with a text; none if the cluster is slow, because a shell waits.

    kubectl lists them where it is installed: it starts faster than our client.
    """
    settings = context.ensure_object(Settings)
    kubectl = shutil.which("kubectl")
    names = _by_kubectl(kubectl, settings, kind) if kubectl else _by_client(settings, path)
    return [name for name in names if name.startswith(begun) and OBJECT_NAME.fullmatch(name)]


def _by_kubectl(kubectl: str, settings: Settings, kind: str) -> list[str]:
    command = [kubectl, "get", kind, "--no-headers", *settings.options()]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_COMPLETION_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = ended.stdout.decode(errors="replace").splitlines()
    return [line.partition(" ")[0] for line in lines]


def _by_client(settings: Settings, path: str) -> list[str]:
    import asyncio  # noqa: PLC0415

    from ddp_operator.kube import (  # noqa: PLC0415
        METADATA_ONLY,
        ApiClient,
        CredentialsError,
        load_credentials,
    )

    async def ask() -> list[str]:
        credentials = load_credentials(kubeconfig=settings.kubeconfig, context=settings.context)
        place = path.format(namespace=settings.namespace or credentials.default_namespace)
        params = {"limit": str(_COMPLETIONS)}
        async with ApiClient(credentials, timeout_seconds=_COMPLETION_SECONDS) as client:
            answer = await client.request("GET", place, params=params, accept=METADATA_ONLY)
        return [item["metadata"]["name"] for item in answer["items"]]

    try:
        return asyncio.run(ask())
    except (ClusterError, CredentialsError, KeyError, TypeError):
        return []


def width() -> int:
    """Return the width to fold text at: the terminal's, or 80 in a pipe."""
    return min(shutil.get_terminal_size((80, 24)).columns, _WIDEST) if is_terminal() else 80


def is_terminal() -> bool:
    """Tell whether standard output is a terminal."""
    return sys.stdout.isatty()


def may_ask() -> bool:
    """Tell whether a person can answer on standard input."""
    return sys.stdin.isatty()


def print_lines(lines: list[str]) -> None:
    """Print lines of a view."""
    click.echo("\n".join(lines))
