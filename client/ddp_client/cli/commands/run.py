"""The command `run`: create a job from options, and follow it to its end."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from ddp_operator.api.constants import MAX_REPLICAS, MAX_SPARES
from ddp_operator.api.rules import warnings
from ddp_operator.api.values.text import clean
from ddp_operator.ports import Key, Manifest

from ddp_client.cli import output
from ddp_client.cli.app import connection_options, on_cluster, width
from ddp_client.cli.commands.changes.change import confirm
from ddp_client.cli.commands.running.following import deletion, existing, follow
from ddp_client.cli.commands.running.into import run_into
from ddp_client.cli.commands.running.locally import run_locally
from ddp_client.cli.commands.running.request import request_of
from ddp_client.pod_security import PodSecurity
from ddp_client.remote.cluster import Cluster
from ddp_client.remote.code.volume import store_code
from ddp_client.remote.submission import NameTakenError, submit
from ddp_client.submit import (
    GpuRequest,
    JobRequest,
    JobRequestError,
    admitted,
    job_manifest,
    ranks_per_pod,
)
from ddp_client.submit.command import starts_once
from ddp_client.submit.job import parsed
from ddp_client.submit.request import LAUNCHERS
from ddp_client.views.plan import plan


class _Run(click.Command):
    """A command whose words after `--` are never its name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before `--`."""
        before, after = args, []
        if "--" in args:
            before, after = args[: args.index("--")], args[args.index("--") + 1 :]
        rest = super().parse_args(ctx, before)
        ctx.params["command"] = (*(ctx.params.get("command") or ()), *after)
        return rest


@click.command(cls=_Run)
@connection_options
@click.argument("name", required=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option("--image", help="The image; ignored with --local.")
@click.option("--replicas", type=click.IntRange(1, MAX_REPLICAS), default=1, show_default=True)
@click.option(
    "--min-replicas",
    type=click.IntRange(1, MAX_REPLICAS),
    help="Continue with this many pods while others are missing.",
)
@click.option(
    "--max-replicas",
    type=click.IntRange(1, MAX_REPLICAS),
    help="Grow up to this many pods when nodes are available.",
)
@click.option(
    "--spares",
    type=click.IntRange(0, MAX_SPARES),
    default=0,
    help="Additional pods that wait to replace a lost one.",
)
@click.option(
    "--gpus",
    metavar="[TYPE:]COUNT",
    help="GPUs of each pod, such as 8, h100:8, amd.com/gpu=8; see `ddp gpus`.",
)
@click.option("--spot", is_flag=True, help="Use spot nodes: cheaper, may be preempted at any time.")
@click.option("--cpu", metavar="QUANTITY", help="CPUs that each pod requests, such as 4.")
@click.option("--memory", metavar="QUANTITY", help="Memory that each pod requests, such as 16Gi.")
@click.option("--queue", metavar="NAME", help="Kueue's LocalQueue.")
@click.option(
    "-e", "--env", multiple=True, metavar="NAME=VALUE", help="An environment variable; repeatable."
)
@click.option("--env-from", multiple=True, metavar="secret/NAME", help="Set all keys as variables.")
@click.option(
    "--mount", "mounts", multiple=True, metavar="pvc/NAME:/PATH", help="A volume; repeatable."
)
@click.option("--checkpoint", metavar="gs://BUCKET", help="Where to save checkpoints; or pvc/NAME.")
@click.option(
    "--memory-checkpoint",
    metavar="SIZE[,copies=N]",
    help="Memory of each pod for ddp_trainer.memory, such as 64Gi,copies=1.",
)
@click.option(
    "--max-restarts", type=click.IntRange(0), help="Restarts after failures before the job fails."
)
@click.option(
    "--user",
    type=int,
    metavar="UID",
    help="Run the processes unprivileged with this user ID; default: the image's user.",
)
@click.option(
    "--script",
    "scripts",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="A local file to copy to all pods; repeatable.",
)
@click.option(
    "--workdir",
    type=click.Path(exists=True, file_okay=False),
    metavar="FOLDER",
    help="A local folder to send to all pods, in which the command runs. Git's rules decide which "
    "of its files are sent.",
)
@click.option(
    "--code-volume",
    metavar="pvc/NAME",
    help="Volume that stores a --workdir too large for ConfigMaps; or gs://BUCKET. Ignored with "
    "--local.",
)
@click.option(
    "--pip",
    type=click.Path(exists=True, dir_okay=False),
    metavar="REQUIREMENTS",
    help="Install the packages of this file before the start, once in each pod.",
)
@click.option(
    "--launcher",
    type=click.Choice(LAUNCHERS),
    default="auto",
    show_default=True,
    help="Program that starts a pod's processes; bundled: ddp_trainer from the image; inject: "
    "ddp_trainer, copied into any image.",
)
@click.option(
    "--into",
    metavar="JOB",
    help="Replace the code of this running job by --workdir, in the same pods.",
)
@click.option("--local", is_flag=True, help="Run as processes of this machine, without a cluster.")
@click.option(
    "--dry-run",
    is_flag=False,
    flag_value="client",
    type=click.Choice(["client", "server"]),
    help="Only print the manifests; server: let the API server validate them first.",
)
@click.option("-o", "--output", "form", type=click.Choice(["yaml", "json"]), default="yaml")
@click.option("--replace", is_flag=True, help="Delete a job that has this name first.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("-d", "--detach", is_flag=True, help="Do not wait for the job to end.")
@click.option("--wait", "quietly", is_flag=True, help="Wait for the end without showing logs.")
@click.pass_context
def run(context: click.Context, /, name: str | None, **given: Any) -> None:
    """Run a command as a job, and wait for its end.

    Without NAME, the job is called like its script. Shows the plan and asks for confirmation,
    then follows the logs.

    \b
        ddp run resnet --image me/train:1 --gpus h100:8 --replicas 4
        ddp run try --image pytorch/pytorch --script a.py -- python a.py --lr 1
        ddp run big --image pytorch/pytorch --workdir . -- python train.py
        ddp run --into big --workdir .

    \b
    Exit codes: 0    the job succeeded
                1    the cluster did not answer, or refused the job
                2    wrong usage
                3    the job did not succeed
                130  interrupted; the job continues
    """
    try:
        if given["into"]:
            context.exit(run_into(context, given))
        request = request_of(name, given)
        if starts_once(request):
            click.echo(
                "note: the command runs once in each pod, and must start "
                f"{ranks_per_pod(request)} processes, one per GPU, as torchrun does",
                err=True,
            )
        if given["local"]:
            context.exit(run_locally(request, context))
        if request.gpus and request.gpus.type:
            asks = given["dry_run"] != "client"
            request = replace(request, gpus=_on_nodes(request.gpus, asks=asks))
        _tell_unsent(request, is_dry=bool(given["dry_run"]))
        manifests, security = _manifests(request), None
        for text in warnings(parsed(manifests[-1]).spec):
            click.echo(f"note: {clean(text)}", err=True)
        if given["dry_run"] != "client":
            security = on_cluster(Cluster.pod_security)
            manifests[-1] = admitted(manifests[-1], security)
    except JobRequestError as error:
        raise click.UsageError(clean(error, 1024)) from None
    if given["dry_run"]:
        if given["dry_run"] == "server":
            _submit(request, manifests, dry_run=True)
        click.echo(output.documents(manifests, given["form"]))
        return
    on_cluster(_tell(request, security))
    before = on_cluster(existing(request.name)) if given["replace"] else None
    if not given["yes"]:
        confirm()
    _store_code(request, manifests[-1])
    if before is not None:
        on_cluster(deletion(before))
    key = _submit(request, manifests, dry_run=False)
    click.echo(f"{output.named(manifests[-1])} created")
    if given["detach"]:
        return
    context.exit(follow(key, quietly=given["quietly"]))


def _on_nodes(gpus: GpuRequest, *, asks: bool) -> GpuRequest:
    """Return the request with the label of the cluster's nodes; `asks`: the cluster is asked."""

    async def read(cluster: Cluster, _: str) -> list[Manifest] | None:
        return await cluster.nodes()

    nodes = on_cluster(read) if asks else None
    if nodes is None:
        why = "you may not list nodes" if asks else "--dry-run without =server asks no cluster"
        click.echo(
            f"note: {why}, so {gpus.asked} is selected by GKE's label; for other clusters use "
            "--gpus with a number alone",
            err=True,
        )
    return gpus.on_nodes(nodes or ())


def _tell_unsent(request: JobRequest, *, is_dry: bool) -> None:
    """Name a script of this folder that the command needs and that is not sent, and the volume that
    a dry run does not send the code to.
    """
    if is_dry and request.code and request.code.volume and request.code.is_stored:
        where = request.code.volume.place
        click.echo(f"note: {where} does not have the code; run sends it", err=True)
    sent: Collection[str] = request.scripts.files if request.scripts else ()
    remedy = "to send it, add --script {} or --workdir ."
    if request.code and request.code.is_workdir:
        sent, remedy = request.code.files, "if git ignores it, change .gitignore"
    for word in request.command:
        if word.endswith(".py") and not word.startswith("/"):
            if not {word, word.removeprefix("./")} & set(sent) and Path(word).is_file():
                name = clean(word, 120)
                click.echo(
                    f"note: {name} of this folder is not sent, so the image must have it; "
                    f"{remedy.format(name)}",
                    err=True,
                )
            return


def _manifests(request: JobRequest) -> list[Manifest]:
    config_maps = [request.scripts.config_map(request.name)] if request.scripts else []
    if request.code:
        config_maps += request.code.config_maps(request.name)
    return [*config_maps, job_manifest(request)]


def _tell(request: JobRequest, security: PodSecurity | None) -> Any:
    async def tell(_: Cluster, namespace: str) -> None:
        for line in plan(request, namespace, security, width=width()):
            click.echo(line, err=True)

    return tell


def _store_code(request: JobRequest, job: Manifest) -> None:
    """Store the code in its volume, if it has one and needs it."""
    if (code := request.code) and code.volume:
        tell = partial(click.echo, err=True)
        on_cluster(lambda cluster, where: store_code(cluster, where, job, code, tell=tell))


def _submit(request: JobRequest, manifests: list[Manifest], *, dry_run: bool) -> Key:
    *config_maps, made = manifests

    async def act(cluster: Cluster, namespace: str) -> Key:
        await submit(cluster, namespace, made, config_maps, dry_run=dry_run)
        return Key(namespace, request.name)

    try:
        return on_cluster(act)
    except NameTakenError as error:
        raise click.ClickException(f"{clean(error, 1024)}, or add --replace") from None
