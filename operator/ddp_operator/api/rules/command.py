"""Rules on the trainer container's command, which must fit the job that runs it.

CEL sees torchrun's options in their usual places. `contradictions` sees all, of any launcher.
"""

from collections.abc import Callable, Sequence
from typing import Final

from ddp_operator.api.command import MODULES, PROGRAMS, SHELLS, Started, started
from ddp_operator.api.rules.contradictions import Kind, contradictions
from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.rules.trainer import (
    HAS_OTHER_LIMIT,
    HAS_PLAIN_LIMIT,
    PLAIN_LIMIT,
    for_trainer,
    trainer_container,
)
from ddp_operator.api.spec import DDPJobSpec

_MOST: Final = 16
"""CEL sees numbers up to this, written as texts: parsing a text of any length costs too much."""
_OPTIONS: Final = 6
"""How many words after torchrun CEL reads."""
_PROCESSES: Final = ("--nproc_per_node", "--nproc-per-node")
_NODE_RANKS: Final = ("--node_rank", "--node-rank")
_ADDRESSES: Final = ("--master_addr", "--master-addr")
_PORTS: Final = ("--master_port", "--master-port")
_TAKE_VALUES: Final = ("--nnodes", *_PROCESSES, *_NODE_RANKS, *_ADDRESSES, *_PORTS)
_TORCHRUN_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch")


def _listed(words: Sequence[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)


_NUMBERS: Final = _listed([str(number) for number in range(_MOST + 1)])
_HAS_COMMAND: Final = "has(c.command) && c.command.size() > 0"
_WORDS: Final = "[has(c.args) ? c.command + c.args : c.command]"
"""A list of one gives a value a name in CEL."""


def _option_cel(condition: str) -> str:
    """CEL: whether torchrun in the words `w` has an option, at index `i`, with a condition."""
    by_name = "(w[0] == 'torchrun' || w[0].endsWith('/torchrun'))"
    by_python = (
        "w.size() > 3 && (w[0].endsWith('python') || w[0].endsWith('python3')) && w[1] == '-m'"
        f" && w[2] in [{_listed(_TORCHRUN_MODULES)}]"
    )
    is_option = (
        f"w[b + j] in ['--standalone', {_listed(_TAKE_VALUES)}]"
        f" || [{_listed(_TAKE_VALUES)}].exists(f, w[b + j].startsWith(f + '='))"
        f" || j > 0 && w[b + j - 1] in [{_listed(_TAKE_VALUES)}]"
    )
    places = ", ".join(map(str, range(_OPTIONS)))
    return (
        f"({by_name} || {by_python}) && [{by_name} ? 1 : 3].exists(b, [{places}].exists(k,"
        f" w.size() > b + k && [{places}].all(j, j >= k || {is_option})"
        f" && [b + k].exists(i, {condition})))"
    )


def _has_number(options: Sequence[str], differs: Callable[[str], str]) -> str:
    """CEL: whether the word at `i` is one of the options with a number `n` that differs."""
    return (
        f"[{_NUMBERS}].exists(n, {differs('n')} && [{_listed(options)}].exists(f,"
        " w[i] == f + '=' + n || w[i] == f && w.size() > i + 1 && w[i + 1] == n))"
    )


def _cel(condition: str, only_if: str = "") -> str:
    """CEL: that no word of the trainer's command is an option with a condition.

    `only_if`: another condition, which does not depend on the word.
    """
    seen = f"{_WORDS}.exists(w, {_option_cel(condition)})"
    excepted = f" || !({only_if})" * bool(only_if)
    return for_trainer(f"(!({_HAS_COMMAND}){excepted} || !{seen})")


def _has(spec: DDPJobSpec, kind: Kind) -> list[str]:
    return [one.text for one in contradictions(spec, kind) if one.is_certain]


def _rule(kind: Kind, message: str, cel: str) -> Rule:
    def names(spec: DDPJobSpec) -> str:
        return _has(spec, kind)[0]

    return Rule(message, cel, lambda spec: not _has(spec, kind), names, cel_sees_all=False)


_OTHER_PODS: Final = _has_number(("--nnodes",), lambda n: f"{n} != string(self.replicas)")
_OTHER_PROCESSES: Final = _has_number(
    _PROCESSES,
    lambda n: (
        f"{n} != '0' && (type(self.nprocPerNode) == int ? {n} != string(int(self.nprocPerNode))"
        f" : int({PLAIN_LIMIT}) > 0 && int({n}) > int({PLAIN_LIMIT}))"
    ),
)
_ARE_KNOWN: Final = (
    "type(self.nprocPerNode) == int"
    f" || self.backend != 'gloo' && {HAS_PLAIN_LIMIT} && !{HAS_OTHER_LIMIT}"
)
"""CEL: whether the processes of a pod are known: as asked, or as many as its GPUs."""
_FIXED_RANK: Final = _has_number(_NODE_RANKS, lambda _: "true")
_OWN_ADDRESS: Final = (
    f"[{_listed(_ADDRESSES)}].exists(f, ['localhost', '127.0.0.1'].exists(a, w[i] == f + '=' + a"
    " || w[i] == f && w.size() > i + 1 && w[i + 1] == a))"
)
_UNREPLACED: Final = (
    f"[{_listed(_TAKE_VALUES)}].exists(f, w[i].startsWith(f + '=$')"
    " && !w[i].startsWith(f + '=$(') || w[i] == f && w.size() > i + 1"
    " && w[i + 1].startsWith('$') && !w[i + 1].startsWith('$('))"
)


def starts_ranks_cel(words: str) -> str:
    """CEL: whether a list of words starts a launcher, as far as CEL can tell.

    It sees launchers by name or path as the first or second word, modules that `python` and
    `python3` run, and shell lines that begin with a launcher. `started` sees all launchers.
    """
    first, second, third = (f"{words}[{number}]" for number in range(3))
    python = f"({first}.endsWith('python') || {first}.endsWith('python3'))"
    option = f"{words}.size() > 2 && {second} in ['-u', '-B', '-O', '-I', '-s', '-E']"
    module = f"({_is_module_cel(words, 1)} || {option} && {_is_module_cel(words, 2)})"
    flag = f"{second}.startsWith('-') && !{second}.startsWith('--') && {second}.endsWith('c')"
    line = " || ".join(f"{third}.startsWith('{name} ')" for name in PROGRAMS)
    shell = f"{words}.size() > 2 && {_is_one_cel(first, SHELLS)} && {flag} && ({line})"
    return (
        f"({_is_one_cel(first, PROGRAMS)}"
        f" || {words}.size() > 1 && {_is_one_cel(second, PROGRAMS)}"
        f" || {python} && {module} || {shell})"
    )


def _is_one_cel(word: str, names: Sequence[str]) -> str:
    paths = "".join(f" || {word}.endsWith('/{name}')" for name in names)
    return f"({word} in [{_listed(names)}]{paths})"


def _is_module_cel(words: str, at: int) -> str:
    joined = [f"-m{module}" for module in MODULES]
    return (
        f"({words}.size() > {at} && {words}[{at}] in [{_listed(joined)}] || {words}.size() >"
        f" {at + 1} && {words}[{at}] == '-m' && {words}[{at + 1}] in [{_listed(MODULES)}])"
    )


COMMAND_RULES = (
    _rule(
        "pods",
        "spec.replicas: the trainer container's command asks for another number of pods; make both "
        "equal, or remove the option, which torchrun does not need here",
        "has(self.elastic) || "
        + _cel(f"(self.replicas > 1 && w[i] == '--standalone' || {_OTHER_PODS})"),
    ),
    _rule(
        "place",
        "spec.template: the trainer container's command gives all pods the rank or address of one; "
        "remove the option, which torchrun does not need here, or write $(NODE_RANK) or "
        "$(MASTER_ADDR)",
        f"self.replicas == 1 || {_cel(f'({_FIXED_RANK} || {_OWN_ADDRESS})')}",
    ),
    _rule(
        "processes",
        "spec.nprocPerNode: the trainer container's command starts another number of processes in "
        "each pod; make both equal, or remove the option, which torchrun does not need here",
        _cel(_OTHER_PROCESSES, only_if=_ARE_KNOWN),
    ),
    _rule(
        "variable",
        "spec.template: no shell runs the trainer container's command, so $NAME stays as it is; "
        "write $(NAME), which Kubernetes replaces, or remove the option",
        _cel(_UNREPLACED),
    ),
    _rule(
        "unquoted",
        "spec.template: a shell runs only the word after -c; write the trainer container's whole "
        "command as one word: [bash, -c, python train.py]",
        for_trainer(
            f"(!({_HAS_COMMAND}) || !{_WORDS}.exists(w, w.size() > 3"
            f" && [{_listed(SHELLS)}].exists(s, w[0] == s || w[0].endsWith('/' + s))"
            " && w[1] in ['-c', '-lc', '-ec', '-xc'] && w[2] in ['python', 'python3', 'torchrun']))"
        ),
    ),
)


def _command(spec: DDPJobSpec) -> list[str]:
    return trainer_container(spec.template).get("command") or []


def _started(spec: DDPJobSpec) -> Started:
    return started([*_command(spec), *(trainer_container(spec.template).get("args") or [])])


LAUNCHER_RULES = (
    Rule(
        "spec.launcher: inject must know what to start, and the operator does not know an image's "
        "own entrypoint; give the trainer container a command, or remove inject",
        "self.launcher != 'inject' || " + for_trainer("has(c.command) && c.command.size() > 0"),
        lambda spec: spec.launcher != "inject" or bool(_command(spec)),
    ),
    Rule(
        "spec.launcher: inject starts a process for each rank, and so does the trainer container's "
        "command; remove torchrun or ddp_trainer.launch from it (python train.py), or remove "
        "inject",
        "self.launcher != 'inject' || "
        + for_trainer(
            "!has(c.command) || c.command.size() == 0"
            f" || !{_WORDS}.exists(w, {starts_ranks_cel('w')})"
        ),
        lambda spec: spec.launcher != "inject" or not _started(spec).launcher,
        lambda spec: f"the command starts {_started(spec).called}",
        cel_sees_all=False,
    ),
)
