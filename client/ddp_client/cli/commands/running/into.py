"""`run --into`: other code for a job that runs, in the same pods."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

import click
from click.core import ParameterSource
from ddp_operator.api.values.text import counted
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key

from ddp_client.cli import output
from ddp_client.cli.app import fetch, on_cluster
from ddp_client.cli.commands.changes.change import confirm
from ddp_client.cli.commands.running.following import follow
from ddp_client.cli.commands.running.request import code_of
from ddp_client.remote.cluster import Cluster
from ddp_client.remote.code.pods import (
    create_config_maps,
    request_code,
    send_code,
    unused_code,
)
from ddp_client.remote.code.volume import store_code
from ddp_client.remote.submission import delete_config_maps
from ddp_client.submit import CodeFolder, JobRequestError
from ddp_client.submit.code import code_volume_of
from ddp_client.views.changes import Change, new_code
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.refused import RefusedError

_TAKEN: Final = frozenset({"into", "workdir", "pip", "yes", "detach", "quietly"})
"""Options that `--into` follows; all others are in the job already."""
_NEW_SECONDS: Final = 1
_ROUNDS: Final = 5
"""How often the pods are read until all have the code."""


def run_into(context: click.Context, given: Mapping[str, Any]) -> int:
    """Send the folder to a job's pods, restart its processes, and follow it to its end.

    Returns the command's exit code.

    Raises:
        JobRequestError: the options or the folder cannot be used.
    """
    _check(context)
    if not given["workdir"]:
        raise JobRequestError("--into: name the folder with the code, such as --workdir .")

    async def prepare(cluster: Cluster, namespace: str) -> tuple[JobSnapshot, CodeFolder, Change]:
        job, pods = await fetch(cluster, Key(namespace, given["into"]))
        folder = code_of(given["workdir"], given["pip"], code_volume_of(job.manifest))
        assert folder is not None, "there is a folder"
        change = new_code(job, folder)
        _receivers(job, pods)
        return job, folder, change

    job, folder, change = on_cluster(prepare)
    for line in change.says:
        click.echo(line, err=True)
    if not given["yes"]:
        confirm()
    change = on_cluster(lambda cluster, _: _replace(cluster, job, folder))
    click.echo(f"{output.named(job.manifest)} {change.done}")
    return 0 if given["detach"] else follow(job.key, quietly=given["quietly"], since=_NEW_SECONDS)


async def _replace(cluster: Cluster, before: JobSnapshot, folder: CodeFolder) -> Change:
    """Send the code to all pods, and then ask the operator to use it."""
    # A person may have taken time to answer, so the job is read again.
    job, pods = await fetch(cluster, before.key)
    if job.uid != before.uid:
        raise RefusedError(f"{job.name} was deleted meanwhile, and created again: try again")
    change = new_code(job, folder)
    unused = await unused_code(cluster, job.manifest)
    # Pods that start later must find it, so it is kept before anything restarts.
    if folder.is_stored:
        node = _receivers(job, pods)[0].node
        where, tell = job.key.namespace, partial(click.echo, err=True)
        await store_code(cluster, where, job.manifest, folder, node=node, tell=tell)
    await create_config_maps(cluster, job.manifest, folder.config_maps(job.name))
    await _send_to_all(cluster, job.key, folder)
    await request_code(cluster, job.manifest, change.patch)
    await delete_config_maps(cluster, job.key.namespace, unused)
    return change


async def _send_to_all(cluster: Cluster, key: Key, folder: CodeFolder) -> None:
    """Send the code to the job's pods, also to those that replaced others meanwhile."""
    names: set[str] = set()
    for _ in range(_ROUNDS):
        pods = _receivers(*await fetch(cluster, key))
        left = [pod for pod in pods if pod.key.name not in names]
        if not left:
            return
        await send_code(cluster, left, folder.code.id, folder.sent)
        names.update(pod.key.name for pod in left)
    raise RefusedError("pods are replaced again and again: try again when all run")


def _receivers(job: JobSnapshot, pods: Pods) -> list[PodState]:
    """Return the pods that must have the code.

    Raises:
        RefusedError: a pod of the group does not run, and would start with the code before.
    """
    if waiting := len(job.slots) - len(_running(pods.current.values())):
        raise RefusedError(
            f"{waiting} of {counted(len(job.slots), 'pod')} do not run: try again when all do"
        )
    return _running([*pods.current.values(), *pods.outside])


def _running(pods: Iterable[PodState]) -> list[PodState]:
    return [pod for pod in pods if pod.started and not (pod.exit or pod.deleting)]


def _check(context: click.Context) -> None:
    """Refuse options that the job already has.

    Raises:
        JobRequestError: names one of them.
    """
    if context.params.get("name") or context.params.get("command"):
        raise JobRequestError("--into: the job keeps its name and command; leave them out")
    for option in context.command.params:
        name = option.name or ""
        is_set = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if option.expose_value and is_set and name not in _TAKEN | {"name", "command"}:
            raise JobRequestError(
                f"{option.opts[-1]}: the job keeps its options; leave it out, or use --replace "
                "without --into"
            )
