"""The test cluster from the command line: ``python -m tests.cluster up``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.cluster import local, provider
from tests.cluster.errors import ClusterError, ClusterUnavailableError
from tests.cluster.node import Node
from tests.cluster.preparation import images
from tests.cluster.preparation.progress import in_words
from tests.cluster.preparation.steps import Stage, prepare, say_what_is_there, steps
from tests.cluster.processes import marked
from tests.cluster.state import instances
from tests.cluster.teardown import remove_named, sweep

# For people who try something; tests make their own.
VOLUMES = 4
TO_RUN = (Stage.API_SERVER, Stage.NODE)
"""The stages that a cluster needs before images are loaded."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status (2: this machine can have no cluster)."""
    arguments = _parser().parse_args(argv)
    try:
        COMMANDS[arguments.command](arguments)
    except ClusterUnavailableError as error:
        print(f"no test cluster on this machine: {error}", file=sys.stderr)
        return 2
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _up(arguments: argparse.Namespace) -> None:
    name = arguments.name
    prepare(steps([stage for stage in _stages(arguments) if stage in TO_RUN]))
    if arguments.control_plane_only:
        sweep()
        existing = [instance for instance in instances() if instance.name == name]
        if existing and existing[0].kind != "control-plane":
            raise ClusterError(f"cluster {name!r} runs, and has a node")
        if existing and all(process.alive() for process in existing[0].processes.values()):
            kubeconfig = existing[0].folder / "admin.kubeconfig"
        else:
            remove_named(name)
            kubeconfig = local.start(name, controllers=True, scheduler=True, owner=None).kubeconfig
    else:
        cluster = provider.up(name)
        if isinstance(cluster, Node):
            cluster.offer_volumes(VOLUMES)
        kubeconfig = cluster.kubeconfig
    print(f"export KUBECONFIG={kubeconfig}")


def _down(arguments: argparse.Namespace) -> None:
    names = [each.name for each in instances()] if arguments.all else [arguments.name]
    for name in names:
        print(f"cluster {name!r} {'removed' if remove_named(name) else 'was not there'}")


def _status(_arguments: argparse.Namespace) -> None:
    for instance in instances():
        owner = f", owned by process {instance.owner.pid}" if instance.owner else ""
        print(f"{instance.name}: {instance.kind}{owner}, {instance.folder}")
        for process in sorted(marked(instance.folder), key=lambda process: process.pid):
            print(f"  {process.pid} {process.command()[:100]}")


def _prepare(arguments: argparse.Namespace) -> None:
    wanted = steps(_stages(arguments))
    say_what_is_there(wanted)
    seconds = prepare(wanted)
    lacking = [step.name for step in wanted if not step.is_done()]
    but = f", but for {', '.join(lacking)}" if lacking else ""
    print(f"all that is needed is there{but}; this took {in_words(seconds)}")


def _stages(arguments: argparse.Namespace) -> Sequence[Stage]:
    if arguments.control_plane_only:
        return (Stage.API_SERVER, Stage.MONITORING)
    return tuple(Stage)


def _images(arguments: argparse.Namespace) -> None:
    prepare(steps([Stage.IMAGES]))
    built = [images.find(image) for image in images.ALL]
    running = provider.running(arguments.name)
    for image in built:
        if running is not None:
            images.load(image, running)
        print(f"{image.name}: {image.archive}")


COMMANDS = {"up": _up, "down": _down, "status": _status, "prepare": _prepare, "images": _images}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start a cluster, or keep the one that runs")
    prepared = commands.add_parser(
        "prepare", help="get or build what a cluster needs on this machine, once"
    )
    for command in (up, prepared):
        command.add_argument(
            "--control-plane-only", action="store_true", help="API server without nodes"
        )
    down = commands.add_parser("down", help="remove a cluster and everything of it")
    down.add_argument("--all", action="store_true", help="remove all clusters of this user")
    image = commands.add_parser("images", help="build the images; a running cluster gets them")
    for command in (up, down, image):
        command.add_argument("--name", default="default", help="which cluster (%(default)s)")
    commands.add_parser("status", help="list clusters and their processes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
