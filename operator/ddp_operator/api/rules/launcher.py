"""Rules on the launcher that the operator copies into pods."""

from ddp_operator.api.command import Started, started, starts_ranks_cel
from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.rules.trainer import for_trainer, trainer_container
from ddp_operator.api.spec import DDPJobSpec

_WORDS = "(has(c.args) ? c.command + c.args : c.command)"


def _command(spec: DDPJobSpec) -> list[str]:
    return trainer_container(spec.template).get("command") or []


def _started(spec: DDPJobSpec) -> Started:
    return started([*_command(spec), *(trainer_container(spec.template).get("args") or [])])


LAUNCHER_RULES = (
    Rule(
        "spec.launcher: inject must know what to start, and the operator does not know an image's "
        "own entrypoint; give the trainer container a command, or remove launcher",
        "self.launcher != 'inject' || " + for_trainer("has(c.command) && c.command.size() > 0"),
        lambda spec: spec.launcher != "inject" or bool(_command(spec)),
    ),
    Rule(
        "spec.launcher: inject starts a process for each rank, and so does the trainer container's "
        "command; remove torchrun or ddp_trainer.launch from it (python train.py), or remove "
        "launcher",
        "self.launcher != 'inject' || "
        + for_trainer(
            "!has(c.command) || c.command.size() == 0"
            # A list of one gives a value a name in CEL.
            f" || ![{_WORDS}].exists(w, {starts_ranks_cel('w')})"
        ),
        lambda spec: spec.launcher != "inject" or not _started(spec).launcher,
        lambda spec: _started(spec).called,
        cel_sees_all=False,
    ),
)
