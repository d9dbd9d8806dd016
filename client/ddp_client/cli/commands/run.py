"""The command `run`: create a job from options, and follow it to its end."""

import secrets
import tempfile
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from ddp_operator.api.constants import MAX_REPLICAS, MAX_SPARES
from ddp_operator.api.pod_security import PodSecurity
from ddp_operator.api.values.text import clean
from ddp_operator.ports import Key, Manifest

from ddp_client.cli import output
from ddp_client.cli.app import connection_options, on_cluster, width
from ddp_client.cli.commands.changes.change import confirm
from ddp_client.cli.commands.pods.logs import follow_logs
from ddp_client.cli.commands.wait import wait_until
from ddp_client.remote.cluster import Cluster
from ddp_client.remote.submission import NameTakenError, submit
from ddp_client.submit import (
    CheckpointLocation,
    GpuRequest,
    JobRequest,
    JobRequestError,
    MemoryCheckpoint,
    Mount,
    Scripts,
    admitted,
    job_manifest,
    ranks_per_pod,
)
from ddp_client.submit.command import starts_once
from ddp_client.submit.request import LAUNCHERS
from ddp_client.submit.scripts import MAX_BYTES
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.plan import plan

_INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""


_FOR_CLUSTERS = {"--dry-run": "dry_run", "--detach": "detach", "--wait": "quietly"}
"""Options that a local run, which shows its logs here until its end, cannot follow."""


@click.command()
@connection_options
@click.argument("name")
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
@click.option("--gpus", metavar="TYPE:COUNT", help="GPUs of each pod, such as h100:8 or l4.")
@click.option("--spot", is_flag=True, help="Use spot nodes: cheaper, may be preempted at any time.")
@click.option("--cpu", metavar="QUANTITY", help="CPUs that each pod requests, such as 4.")
@click.option("--memory", metavar="QUANTITY", help="Memory that each pod requests, such as 16Gi.")
@click.option("--queue", metavar="NAME", help="Kueue's LocalQueue.")
@click.option(
    "-e", "--env", multiple=True, metavar="NAME=VALUE", help="An environment variable; repeatable."
)
@click.option("--env-from", multiple=True, metavar="secret/NAME", help="Set all keys as variables.")
@click.option("--mount", multiple=True, metavar="pvc/NAME:/PATH", help="A volume; repeatable.")
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
    "--launcher",
    type=click.Choice(LAUNCHERS),
    default="auto",
    show_default=True,
    help="Program that starts a pod's processes; bundled: ddp_trainer from the image; inject: "
    "ddp_trainer, copied into any image.",
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
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("-d", "--detach", is_flag=True, help="Do not wait for the job to end.")
@click.option("--wait", "quietly", is_flag=True, help="Wait for the end without showing logs.")
@click.pass_context
def run(context: click.Context, /, name: str, **given: Any) -> None:
    """Run a command as a job, and wait for its end.

    Shows the plan and asks for confirmation, then follows the logs.

    \b
        ddp run resnet --image me/train:1 --gpus h100:8 --replicas 4
        ddp run try --image pytorch/pytorch --script a.py -- python a.py --lr 1

    \b
    Exit codes: 0    the job succeeded
                1    the cluster did not answer, or refused the job
                2    wrong usage
                3    the job did not succeed
                130  interrupted; the job continues
    """
    try:
        request = _request(name, given)
        if starts_once(request):
            click.echo(
                "note: the command runs once in each pod, and must start "
                f"{ranks_per_pod(request)} processes, one per GPU, as torchrun does",
                err=True,
            )
        if given["local"]:
            context.exit(_locally(request, given["scripts"]))
        manifests, security = _manifests(request), None
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
    if not given["yes"]:
        confirm()
    key = _submit(request, manifests, dry_run=False)
    click.echo(f"{output.named(manifests[-1])} created")
    if given["detach"]:
        return
    context.exit(_follow(key, quietly=given["quietly"]))


def _request(name: str, given: dict[str, Any]) -> JobRequest:
    image = given["image"] or ("local" if given["local"] else None)
    if image is None:
        raise JobRequestError("--image: name an image, or add --local to run on this machine")
    if given["local"]:
        for option, value in _FOR_CLUSTERS.items():
            if given[value]:
                raise JobRequestError(f"{option} needs a cluster: leave it out, or --local")
    read = {path: _read(path) for path in given["scripts"]}
    gpus, checkpoint, memory = given["gpus"], given["checkpoint"], given["memory_checkpoint"]
    return JobRequest(
        name=name,
        image=image,
        command=given["command"],
        replicas=given["replicas"],
        gpus=GpuRequest.parse(gpus) if gpus else None,
        spot=given["spot"],
        cpu=given["cpu"],
        memory=given["memory"],
        queue=given["queue"],
        env=dict(_variable(text) for text in given["env"]),
        env_from=given["env_from"],
        mounts=[Mount.parse(text) for text in given["mount"]],
        checkpoint=CheckpointLocation.parse(checkpoint) if checkpoint else None,
        memory_checkpoint=MemoryCheckpoint.parse(memory) if memory else None,
        max_restarts=given["max_restarts"],
        user=given["user"],
        min_replicas=given["min_replicas"],
        max_replicas=given["max_replicas"],
        spares=given["spares"],
        scripts=Scripts(read, token=secrets.token_hex(2)) if read else None,
        launcher=given["launcher"],
    )


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise JobRequestError(f"--env {text[:80]!r}: use NAME=VALUE")
    return name, value


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise JobRequestError(f"--script {path}: cannot read it: {error.strerror}") from None


def _manifests(request: JobRequest) -> list[Manifest]:
    made = job_manifest(request)
    return [request.scripts.config_map(request.name), made] if request.scripts else [made]


def _tell(request: JobRequest, security: PodSecurity | None) -> Any:
    async def tell(_: Cluster, namespace: str) -> None:
        for line in plan(request, namespace, security, width=width()):
            click.echo(line, err=True)

    return tell


def _submit(request: JobRequest, manifests: list[Manifest], *, dry_run: bool) -> Key:
    *scripts, made = manifests

    async def act(cluster: Cluster, namespace: str) -> Key:
        before = scripts[0] if scripts else None
        await submit(cluster, namespace, made, before, dry_run=dry_run)
        return Key(namespace, request.name)

    try:
        return on_cluster(act)
    except NameTakenError as error:
        raise click.ClickException(clean(error, 1024)) from None


def _follow(key: Key, *, quietly: bool) -> int:
    told: list[str] = []

    def on_update(job: JobSnapshot) -> None:
        said = f"{job.status.phase}: {clean(job.status.message or job.status.reason)}"
        if told[-1:] != [said]:
            told[:] = [said]
            click.echo(f"-- {said}", err=True)

    async def follow(cluster: Cluster, _: str) -> int:
        if not quietly:
            await follow_logs(cluster, key, on_update=on_update)
        return await wait_until(cluster, key, "succeeded", None)

    try:
        return on_cluster(follow)
    except KeyboardInterrupt:
        name = clean(key.name)
        click.echo(
            f"\n{name} continues: `kubectl ddp logs -f {name}` shows its logs again, "
            f"`kubectl ddp stop {name}` stops it",
            err=True,
        )
        return _INTERRUPTED


def _locally(request: JobRequest, scripts: tuple[str, ...]) -> int:
    """Run the job with the operator's own engine, its pods as processes of this machine."""
    # Imported here because it takes half a second.
    from ddp_client.local.run.command import run as run_here  # noqa: PLC0415

    here = {path: str(Path(path).resolve()) for path in scripts}
    command = list(request.command) or (["python", scripts[0]] if scripts else [])
    found = [here.get(word, here.get(word.removeprefix("./"), word)) for word in command]
    made = job_manifest(replace(request, scripts=None, command=found))
    # The folder stays: the last line that is shown says how to run the job again.
    place = Path(tempfile.mkdtemp(prefix="ddpjob-"))
    file = place / f"{request.name}.yaml"
    file.write_text(output.documents([made], "yaml"))
    arguments = Namespace(
        file=file, workdir=place / "run", kill_rank=[], progress_poll_seconds=1.0, plain=False
    )
    return run_here(arguments)
