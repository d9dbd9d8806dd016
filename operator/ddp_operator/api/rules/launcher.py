"""Rules on the launcher that is copied into pods."""

from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.rules.trainer import for_trainer, trainer_container
from ddp_operator.api.spec import DDPJobSpec

_STARTS_RANKS = (
    "ddp_trainer.launch",
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
)
"""Words of commands that start a pod's processes themselves: below the launcher, each of its ranks
would start them all."""
_WORDS = ", ".join(f"'{word}'" for word in _STARTS_RANKS)


def _command(spec: DDPJobSpec) -> list[str]:
    return trainer_container(spec.template).get("command") or []


LAUNCHER_RULES = (
    Rule(
        "spec.launcher: inject has to know what to start, and an image's own entrypoint is not "
        "known to the operator; give the trainer container a command, or leave launcher out",
        "self.launcher != 'inject' || " + for_trainer("has(c.command) && c.command.size() > 0"),
        lambda spec: spec.launcher != "inject" or bool(_command(spec)),
    ),
    Rule(
        "spec.launcher: inject starts a process for each rank, and so does the trainer container's "
        "command; take torchrun or ddp_trainer.launch out of it (python train.py), or leave "
        "launcher out",
        "self.launcher != 'inject' || "
        + for_trainer(f"!has(c.command) || !c.command.exists(w, w in [{_WORDS}])"),
        lambda spec: spec.launcher != "inject" or not {*_STARTS_RANKS} & {*_command(spec)},
    ),
)
