"""The launcher's flags, checked before anything starts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings import timeouts
from ddp_trainer.settings.flags import Parser, Unchosen
from ddp_trainer.settings.options import Options
from ddp_trainer.settings.options import parser as trainer_parser


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The command to run for each rank of the pod, and how to run it."""

    command: Sequence[str]
    """The command after `--`, or the flags of the bundled trainer."""
    is_script: bool
    """True: a user's script; the launcher gives its exit codes no meaning."""
    max_restarts: int
    restart_window_seconds: float
    kill_after_seconds: float
    silence_seconds: float
    """How long a rank may be frozen; 0: no limit."""
    preload: bool = True
    """True: fork a Python script from a process that has already imported torch."""

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> LaunchOptions:
        """Read the launcher's flags and check the trainer's.

        Raises:
            ConfigurationError: a flag is wrong.
        """
        before, script = _split(arguments)
        values, trainer_flags = _parser().parse_known_args(before)
        for name in ("max_restarts", "restart_window_seconds", "kill_after_seconds"):
            if getattr(values, name) < 0:
                raise ConfigurationError(f"--{name.replace('_', '-')}: set it to 0 or more")
        if script is None and not values.preload:
            raise ConfigurationError("--no-preload: needs a command after --; remove it")
        silence_seconds, kill_after_seconds = 0.0, values.kill_after_seconds
        if script is None:
            # Check once here, instead of in every rank.
            options = Options.parse(trainer_flags)
            silence_seconds = options.heartbeat_timeout_seconds
            kill_after_seconds = _kill_after(options, values.kill_after_seconds)
            command = trainer_flags
        elif not script:
            raise ConfigurationError("no command after --: add a command, or remove --")
        elif trainer_flags:
            raise ConfigurationError(
                f"{' '.join(trainer_flags)}: a flag of the bundled trainer, which does not run if "
                "there is a command after --; put flags of the command behind its name"
            )
        else:
            command = script
        return cls(
            command=command,
            is_script=script is not None,
            max_restarts=values.max_restarts,
            restart_window_seconds=values.restart_window_seconds,
            kill_after_seconds=kill_after_seconds,
            silence_seconds=silence_seconds,
            preload=values.preload,
        )


def _kill_after(options: Options, seconds: float) -> float:
    """Return how long ranks may take to stop: at least as long as a last save may take."""
    given = set() if isinstance(seconds, Unchosen) else {"kill_after_seconds"}
    settled = timeouts.settle(
        {
            "stop_within_seconds": options.stop_within_seconds,
            "kill_after_seconds": seconds,
        },
        {"stop_within_seconds"} | given,
        timeouts.STOPPING,
    )
    return settled["kill_after_seconds"]


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Return the flags before `--`, and the command after it; None without `--`."""
    if "--" not in arguments:
        return list(arguments), None
    at = list(arguments).index("--")
    return list(arguments[:at]), list(arguments[at + 1 :])


def _parser() -> Parser:
    flags = Parser(
        prog="python -m ddp_trainer.launch",
        description="Starts the ranks of one pod: the bundled trainer, or the command after --.",
        epilog="Flags of the bundled trainer:\n"
        + trainer_parser().format_help().partition("options:\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    flags.add_argument(
        "--max-restarts",
        type=int,
        default=3,
        help="restarts of failed ranks within the window before the pod fails; only for the "
        "bundled trainer and scripts that use ddp_trainer.join (default: 3)",
    )
    flags.add_argument(
        "--restart-window-seconds",
        type=float,
        default=600.0,
        help="the window in which restarts are counted (default: 600)",
    )
    flags.add_argument(
        "--kill-after-seconds",
        type=float,
        default=Unchosen(30.0),
        help="how long the other ranks of a pod may take to stop when one fails (default: 30, or "
        "--stop-within-seconds if that is longer)",
    )
    flags.add_argument(
        "--no-preload",
        dest="preload",
        action="store_false",
        help="start a new Python for each rank of a script, instead of forking it from a process "
        "that has imported torch; for scripts that set variables that torch reads on import",
    )
    return flags
