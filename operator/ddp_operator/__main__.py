"""The command line: `python -m ddp_operator COMMAND`. Each command imports its own modules, so that
no command pays for the others.
"""

# ruff: noqa: PLC0415

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields

from ddp_operator.api.progress_argument import add_progress_argument

_EXIT_USAGE = 64
"""EX_USAGE of sysexits.h; argparse's own code for wrong usage is 2."""

_LAST_PORT = 65535
_MOST_BOOST = 1000
"""Larger than any step that a job can reach."""
_MOST_JOBS = 10_000
"""With so many, a scrape keeps the operator busy for a third of a second and is 16 MB."""


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ddp_operator",
        description="Runs PyTorch DistributedDataParallel jobs (DDPJob) on Kubernetes.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run the operator against a Kubernetes cluster")
    _add_run_arguments(run)
    commands.add_parser("crd", help="print the CustomResourceDefinition as YAML")
    try:
        asked = parser.parse_args(arguments)
        if asked.command == "run" and not asked.metrics_port:
            for flag in ("metrics_auth", "metrics_cert_dir"):
                if getattr(asked, flag):
                    name = flag.replace("_", "-")
                    run.error(f"--{name} has no effect with --metrics-port 0; set a port")
        if asked.command == "run":
            _read_node_rules(run, asked)
    except SystemExit as refused:
        return _EXIT_USAGE if refused.code else 0
    match asked.command:
        case "run":
            return _run(asked)
        case _:
            return _print_crd()


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kubeconfig", metavar="FILE", help="default: in-cluster, then ~/.kube")
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    parser.add_argument("--namespace", metavar="NAME", help="serve only this one; default: all")
    parser.add_argument(
        "--health-port",
        type=_up_to(_LAST_PORT, "port"),
        default=8080,
        metavar="PORT",
        help="port of /healthz and /readyz; 0 turns it off (default: 8080)",
    )
    parser.add_argument(
        "--metrics-port",
        type=_up_to(_LAST_PORT, "port"),
        default=8081,
        metavar="PORT",
        help="port of /metrics; 0 turns it off (default: 8081)",
    )
    parser.add_argument(
        "--metrics-auth",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="require a bearer token that the API server allows to get /metrics "
        "(default: serve metrics to everybody)",
    )
    parser.add_argument(
        "--metrics-cert-dir",
        metavar="FOLDER",
        help="serve /metrics over TLS with tls.crt and tls.key from this folder (default: without "
        "TLS, so that tokens are not encrypted either)",
    )
    parser.add_argument(
        "--metrics-jobs",
        type=_up_to(_MOST_JOBS, "number of jobs"),
        default=1000,
        metavar="N",
        help="number of jobs with their own metrics, training jobs first; 0 turns them off "
        "(default: 1000)",
    )
    parser.add_argument(
        "--priority-boost",
        type=_up_to(_MOST_BOOST, "boost"),
        default=0,
        metavar="N",
        help="let Kueue preempt the job that loses least: raise the priority of running jobs by up "
        "to N, less than the distance between priority classes; 0 turns it off (default: 0)",
    )
    add_progress_argument(parser, default_seconds=10.0)
    parser.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="act only while holding a Lease, and stand by otherwise (default: act at once); "
        "required with two or more replicas",
    )
    parser.add_argument(
        "--lease-name",
        default="ddp-operator",
        metavar="NAME",
        help="name of the Lease; operators for different namespaces need different names "
        "(default: ddp-operator)",
    )
    parser.add_argument(
        "--lease-namespace",
        metavar="NAME",
        help="namespace of the Lease, and of the Secret that all replicas share "
        "(default: that of the operator's pod, or of the kubeconfig's context)",
    )
    parser.add_argument(
        "--launcher-image",
        metavar="IMAGE",
        help="image from which jobs with `launcher: inject` get the launcher "
        "(default: the operator's own image)",
    )
    parser.add_argument(
        "--isolation",
        choices=["None", "Job"],
        default="None",
        help="spec.isolation of jobs that do not set it (default: None)",
    )
    for flag, what in (("--bad-node", "is broken"), ("--leaving-node", "is about to leave")):
        parser.add_argument(
            flag,
            action="append",
            default=[],
            metavar="SIGNAL",
            help=f"further signal that a node {what}: condition:TYPE[=STATUS], taint:KEY[=VALUE], "
            "label:KEY[=VALUE] or annotation:KEY[=VALUE]; none drops the defaults; may be repeated",
        )
    parser.add_argument("--verbose", action="store_true", help="log details for debugging")
    parser.add_argument(
        "--log-format",
        choices=["text", "json"],
        default="text",
        help="one line for each record: text (default), or a JSON object",
    )


def _read_node_rules(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> None:
    from ddp_operator.api import node_signals

    for flag, defaults in (
        ("bad_node", node_signals.DEFAULT_BAD),
        ("leaving_node", node_signals.DEFAULT_LEAVING),
    ):
        try:
            setattr(asked, flag, node_signals.read_rules(getattr(asked, flag), defaults))
        except ValueError as error:
            parser.error(f"--{flag.replace('_', '-')}: {error}")


def _up_to(most: int, what: str) -> Callable[[str], int]:
    """Return a parser of numbers from 0 to `most`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) > most:
            raise argparse.ArgumentTypeError(f"invalid {what} {text!r}: use 0 to {most}")
        return int(text)

    return read


def _run(asked: argparse.Namespace) -> int:
    # Without a handler the kernel ignores signals to a container's first process. Better handlers
    # follow later.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from ddp_operator.api.node_signals import Rules
    from ddp_operator.process.logs import log_to_stderr
    from ddp_operator.process.run import Options, run

    log_to_stderr(verbose=asked.verbose, log_format=asked.log_format)
    same = {one.name: getattr(asked, one.name) for one in fields(Options) if one.name in asked}
    rules = Rules(bad=asked.bad_node, leaving=asked.leaving_node)
    return run(Options(**same, isolate=asked.isolation == "Job", node_rules=rules))


def _print_crd() -> int:
    import yaml

    from ddp_operator.api.schema.crd import custom_resource_definition

    sys.stdout.write(yaml.safe_dump(custom_resource_definition(), sort_keys=False))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
