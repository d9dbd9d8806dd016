"""The command line: `python -m ddp_operator COMMAND`. Each command imports what it needs itself, so
that none pays for the others.
"""

# ruff: noqa: PLC0415

import argparse
import signal
import sys
from collections.abc import Sequence

from ddp_operator.local.run.arguments import add_arguments as add_local_arguments
from ddp_operator.local.run.arguments import add_progress_argument

_EXIT_USAGE = 64
"""EX_USAGE of sysexits.h; argparse's own code for wrong usage is 2."""

_LAST_PORT = 65535
_MOST_JOBS = 10_000
"""Of as many a scrape keeps the operator for a third of a second, and is 16 MB."""


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ddp_operator",
        description="Runs PyTorch DistributedDataParallel jobs (DDPJob) on Kubernetes.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run the operator against a Kubernetes cluster")
    _add_run_arguments(run)
    local = commands.add_parser("local", help="run one DDPJob on this machine, without a cluster")
    add_local_arguments(local)
    commands.add_parser("crd", help="print the CustomResourceDefinition as YAML")
    try:
        asked = parser.parse_args(arguments)
        if asked.command == "run" and not asked.metrics_port:
            for flag in ("metrics_auth", "metrics_cert_dir"):
                if getattr(asked, flag):
                    name = flag.replace("_", "-")
                    run.error(f"--{name} protects nothing without a --metrics-port")
        if asked.command == "run":
            _read_node_rules(run, asked)
    except SystemExit as refused:
        return _EXIT_USAGE if refused.code else 0
    match asked.command:
        case "run":
            return _run(asked)
        case "local":
            from ddp_operator.local.run import command

            return command.run(asked)
        case _:
            return _print_crd()


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kubeconfig", metavar="FILE", help="default: in-cluster, then ~/.kube")
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    parser.add_argument("--namespace", metavar="NAME", help="serve this one only; default: all")
    parser.add_argument(
        "--health-port",
        type=_port,
        default=8080,
        metavar="PORT",
        help="port of /healthz and /readyz, 0 for none (default: 8080)",
    )
    parser.add_argument(
        "--metrics-port",
        type=_port,
        default=8081,
        metavar="PORT",
        help="port of /metrics, 0 for none (default: 8081)",
    )
    parser.add_argument(
        "--metrics-auth",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="show metrics only to the bearers of tokens whom the API server lets get /metrics "
        "(default: to everybody)",
    )
    parser.add_argument(
        "--metrics-cert-dir",
        metavar="FOLDER",
        help="serve /metrics by TLS, with the tls.crt and tls.key in this folder (default: without "
        "TLS, so that tokens, too, travel unencrypted)",
    )
    parser.add_argument(
        "--metrics-jobs",
        type=_number_of_jobs,
        default=1000,
        metavar="N",
        help="jobs with metrics of their own, by name, those that train first; 0 for none "
        "(default: 1000)",
    )
    add_progress_argument(parser, default_seconds=10.0)
    parser.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="act only while holding a Lease, and stand by otherwise (default: act at once); "
        "needed as soon as two replicas run",
    )
    parser.add_argument(
        "--lease-name",
        default="ddp-operator",
        metavar="NAME",
        help="operators that serve different namespaces need different ones "
        "(default: ddp-operator)",
    )
    parser.add_argument(
        "--lease-namespace",
        metavar="NAME",
        help="of the Lease, and of the Secret that all replicas share "
        "(default: that of the operator's pod, or of the kubeconfig's context)",
    )
    parser.add_argument(
        "--launcher-image",
        metavar="IMAGE",
        help="where the launcher of jobs with `launcher: inject` is copied from "
        "(default: the operator's own image)",
    )
    for flag, what in (("--bad-node", "is broken"), ("--leaving-node", "is about to go")):
        parser.add_argument(
            flag,
            action="append",
            default=[],
            metavar="SIGNAL",
            help=f"what else says that a node {what}: condition:TYPE[=STATUS], taint:KEY[=VALUE], "
            "label:KEY[=VALUE] or annotation:KEY[=VALUE]; none: without the defaults; can be given "
            "several times",
        )
    parser.add_argument("--verbose", action="store_true", help="log debugging details")
    parser.add_argument(
        "--log-format",
        choices=["text", "json"],
        default="text",
        help="one line for each record: as text (default), or as a JSON object",
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


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: say a number up to {_LAST_PORT}")
    return int(text)


def _number_of_jobs(text: str) -> int:
    if not text.isdecimal() or int(text) > _MOST_JOBS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of jobs: say 0 to {_MOST_JOBS}")
    return int(text)


def _run(asked: argparse.Namespace) -> int:
    # The kernel ignores what the first process of a container does not handle; later on there are
    # better handlers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from ddp_operator import process
    from ddp_operator.api.node_signals import Rules
    from ddp_operator.logs import log_to_stderr

    log_to_stderr(verbose=asked.verbose, log_format=asked.log_format)
    return process.run(
        process.Options(
            kubeconfig=asked.kubeconfig,
            context=asked.context,
            namespace=asked.namespace,
            health_port=asked.health_port,
            metrics_port=asked.metrics_port,
            metrics_auth=asked.metrics_auth,
            metrics_cert_dir=asked.metrics_cert_dir,
            metrics_jobs=asked.metrics_jobs,
            progress_poll_seconds=asked.progress_poll_seconds,
            leader_elect=asked.leader_elect,
            lease_name=asked.lease_name,
            lease_namespace=asked.lease_namespace,
            launcher_image=asked.launcher_image,
            node_rules=Rules(bad=asked.bad_node, leaving=asked.leaving_node),
        )
    )


def _print_crd() -> int:
    import yaml

    from ddp_operator.api.schema.crd import custom_resource_definition

    sys.stdout.write(yaml.safe_dump(custom_resource_definition(), sort_keys=False))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
