"""All commands in groups. A command's module is loaded only when the command is used."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from ddp_client.cli.app import job_argument

GROUPS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Run jobs": {
        "run": ("run:run", "Run a command as a job, and wait for its end."),
        "convert": ("convert:convert", "Convert jobs of other kinds into DDPJobs."),
    },
    "Watch jobs": {
        "list": ("list:list_jobs", "List the jobs of a namespace, or of all namespaces."),
        "status": ("status:status", "Show a job on one screen."),
        "logs": ("pods.logs:logs", "Show the logs of all ranks as one stream."),
        "wait": ("wait:wait", "Wait until a job reaches a state."),
        "result": ("results.result:result", "Show loss, scores, curve and checkpoint of a job."),
        "report": ("results.report:report", "Write a report of a job."),
        "ui": ("ui:ui", "Show jobs in a browser."),
    },
    "Debug jobs": {
        "why": ("why:why", "Explain why a job waits, fails or hangs, and what to do."),
        "exec": ("pods.exec:exec_", "Run a program in a pod."),
        "port-forward": ("pods.port_forward:port_forward", "Forward local ports to a pod."),
        "stacks": ("pods.stacks:stacks", "Show the stack of each rank."),
        "profile": ("pods.profile:profile", "Profile ranks while they train."),
        "bundle": ("bundle:bundle", "Write an archive for a bug report."),
    },
    "Change jobs": {
        "stop": ("changes.stop:stop", "Delete a job's pods and keep the job."),
        "resume": ("changes.resume:resume", "Create the pods of a stopped job again."),
        "restart": ("changes.restart:restart", "Restart all pods of a job."),
        "scale": ("changes.scale:scale", "Change the number of a job's pods."),
        "delete": ("changes.delete:delete", "Delete a job and everything it owns."),
    },
    "Cluster and tools": {
        "doctor": ("doctor:doctor", "Check whether jobs can run in this cluster."),
        "gpus": ("gpus:gpus", "List the cluster's GPUs, and how many are free."),
        "mcp": ("mcp:mcp", "Serve a cluster's jobs to assistants."),
        "completion": ("completion:completion", "Print a script that completes commands."),
    },
}
"""By group and name: module and attribute below `ddp_client.cli.commands`, and a summary."""

OF_A_JOB: Final = frozenset(
    {"status", "logs", "wait", "report", "result", "ui", "why", "exec", "port-forward", "stacks"}
    | {"bundle", "profile", *GROUPS["Change jobs"]}
)
"""Commands with the name of a job as their first argument."""
_CONNECTION: Final = frozenset({"--kubeconfig", "--context", "-n", "--namespace"})

MEANT: Final = {
    **dict.fromkeys(("get", "ls", "ps", "jobs"), "list"),
    **dict.fromkeys(("describe", "show", "info"), "status"),
    **dict.fromkeys(("top", "watch"), "status --watch"),
    **dict.fromkeys(("rm", "remove"), "delete"),
    **dict.fromkeys(("cancel", "suspend", "pause", "kill"), "stop"),
    **dict.fromkeys(("start", "unsuspend", "continue"), "resume"),
    **dict.fromkeys(("submit", "launch", "create", "train", "local"), "run"),
    **dict.fromkeys(("log", "tail"), "logs"),
    **dict.fromkeys(("results", "metrics", "loss"), "result"),
    **dict.fromkeys(("events", "explain", "debug", "diagnose"), "why"),
    **dict.fromkeys(("cp", "ssh", "attach", "shell"), "exec"),
    **dict.fromkeys(("nodes", "offer"), "gpus"),
    "version": "--version",
    "help": "--help",
}
"""What people from other tools look for. Nothing else is suggested: a word that only looks like a
command, as `top` like `stop`, may be one that deletes pods."""


class _Commands(Mapping[str, click.Command]):
    def __init__(self) -> None:
        self._places = {name: at for group in GROUPS.values() for name, (at, _) in group.items()}
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            module, _, attribute = self._places[name].partition(":")
            command = getattr(import_module(f"ddp_client.cli.commands.{module}"), attribute)
            self._loaded[name] = command
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class _Completed(click.Command):
    """Takes the place of a command while a shell completes its job: it takes long to import."""

    def __init__(self, name: str, group: click.Group) -> None:
        super().__init__(name)
        job_argument(self)
        self._group = group

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete an option of the command."""
        return self._group.commands[str(self.name)].shell_complete(ctx, incomplete)


class CommandGroup(click.Group):
    """The program: lists, completes and explains its commands without loading them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": _Commands()})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by group."""
        del ctx
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name, summary) for name, (_, summary) in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command, or an option of the program."""
        summaries = {name: text for group in GROUPS.values() for name, (_, text) in group.items()}
        items = [
            CompletionItem(name, help=summaries[name])
            for name in sorted(summaries)
            if name.startswith(incomplete)
        ]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for one of another tool, name ours."""
        name, rest = args[0], args[1:]
        options = {word.partition("=")[0] for word in rest if word.startswith("-")}
        if ctx.resilient_parsing and name in OF_A_JOB and options <= _CONNECTION:
            return name, _Completed(name, self), rest
        if name in self.commands or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        program = ctx.command_path
        meant = f"use {program} {MEANT[name]}" if name in MEANT else f"see {program} --help"
        raise click.UsageError(f"{name[:40]!r} is no command: {meant}", ctx)
