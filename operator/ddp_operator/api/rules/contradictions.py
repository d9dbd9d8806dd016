"""Finds contradictions between the trainer container's command and the rest of the job.

The operator tells torchrun the number of pods and processes, node rank and address of rank 0 in
variables (PET_*). Options override them, so that a command line of one machine trains alone in each
pod, or waits forever.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from ddp_operator.api.command import Started, started
from ddp_operator.api.launch_options import Option, Options, options, why_alone
from ddp_operator.api.rules.trainer import gpu_limit, gpu_limits, is_whole, trainer_container
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.values.limits import MAX_SEARCHED, linear

Kind = Literal["pods", "place", "processes", "variable", "unquoted"]

_LONGEST: Final = 80
_NUMBER: Final = linear(r"[0-9]{1,6}")
_RANGE: Final = linear(r"([0-9]{1,6}):([0-9]{1,6})")
_OWN_HOST: Final = r"(?i:localhost(?:\.localdomain|6)?|127\.[0-9.]+|\[?::1\]?|0\.0\.0\.0)"
_OWN_ADDRESS: Final = linear(rf"{_OWN_HOST}(?::[0-9]*)?")
_OWN_URL: Final = linear(rf"tcp://{_OWN_HOST}(?::[0-9]*)?(?:[/?]|$)")
"""An init_method of torch, for instance of a script's --dist-url."""
_SHELL_OPERATORS: Final = frozenset({"&&", "||", ";", "|"})
_UNREPLACED: Final = linear(r"\$(?:[^(]|$)")
_OURS: Final = linear(
    r"\$\{?(?:RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|MASTER_ADDR"
    r"|MASTER_PORT|PET_[A-Z_]+|DDP_[A-Z_]+)\b"
)
"""A shell's spelling of a variable that the operator sets."""
_REFERENCE: Final = linear(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}$]*))?\}?")
"""A variable of a shell, with the value that it has by default."""
_VARIABLES: Final = {
    "nnodes": "PET_NNODES",
    "nproc-per-node": "PET_NPROC_PER_NODE",
    "node-rank": "NODE_RANK",
    "master-addr": "MASTER_ADDR",
    "master-port": "MASTER_PORT",
    "rdzv-endpoint": "MASTER_ADDR",
}
"""Variables of the pods with the values of torchrun's options."""
_OF_PROCESSES: Final = {"nnodes": "WORLD_SIZE", "node-rank": "RANK"}
"""Variables that count pods in a PyTorchJob, but processes here."""
_ROUND: Final = str.maketrans("()", "{}")


class Contradiction(NamedTuple):
    """A part of the command that does not fit the job."""

    text: str
    """The part, and what it differs from; of an uncertain one, also what to do."""
    is_certain: bool = True
    """False: it may be meant so, or may never run."""


class _Command(NamedTuple):
    """The trainer container's command, as it was written and as it was read."""

    argv: tuple[str, ...]
    found: Started
    own: Options


def contradictions(spec: DDPJobSpec, kind: Kind) -> Sequence[Contradiction]:
    """Return the contradictions of a kind between the trainer container's command and the job."""
    container = trainer_container(spec.template)
    written = container.get("command") or ()
    if not written:  # the image's own entrypoint is unknown
        return ()
    variables = [(one.get("name"), one.get("value")) for one in container.get("env") or ()]
    assigned = tuple(f"{name}={value}" for name, value in variables if value)
    command = _read((*written, *(container.get("args") or ())), assigned)
    is_certain = command.found.is_certain
    return [
        one._replace(is_certain=one.is_certain and is_certain)
        for one in _FINDERS[kind](spec, command)
    ]


def warnings(spec: DDPJobSpec) -> Sequence[str]:
    """Return the uncertain contradictions of a job that breaks no rule."""
    found = (one for kind in _FINDERS for one in contradictions(spec, kind))
    return [one.text for one in found if not one.is_certain]


@lru_cache(maxsize=1)  # the rules of one job
def _read(argv: tuple[str, ...], assigned: tuple[str, ...]) -> _Command:
    found = started(argv)
    found = replace(found, assigned=(*assigned, *found.assigned))
    own = options(found)
    values = {role: _shown(found, option.value) for role, option in own.roles.items()}
    is_certain = found.is_certain and all(certain for _, certain in values.values())
    shown = {role: replace(own.roles[role], value=value) for role, (value, _) in values.items()}
    return _Command(argv, replace(found, is_certain=is_certain), replace(own, roles=shown))


def _shown(found: Started, value: str) -> tuple[str, bool]:
    """Return an option's value after a shell has replaced a variable that the command shows, and
    whether it is certain.
    """
    reference = _REFERENCE.fullmatch(value[:_LONGEST]) if found.in_shell else None
    if reference is None:
        return value, True
    name, default = reference[1], reference[2]
    own = [word.partition("=")[2] for word in found.assigned if word.startswith(f"{name}=")]
    if own and "$" not in own[-1]:
        return own[-1], True
    if default and not own and not _OURS.match(f"${name}"):
        return default, False
    return value, True


def _pods(spec: DDPJobSpec, command: _Command) -> Iterator[Contradiction]:
    """Find a group of another number of pods."""
    found, own = command.found, command.own
    least, most = spec.min_size, spec.max_size
    option = own.roles.get("nnodes")
    fewest, greatest = _range(option.value) if option else (0, 0)
    alone = own.roles.get("standalone") if most > 1 else None
    if greatest and not (fewest <= most and least <= greatest):
        alone = option
    if alone is not None:
        # For one machine, accelerate leaves the number of pods to torchrun.
        is_certain = not (found.launcher.startswith("accelerate") and greatest == 1)
        text = f"{_written(found, alone)}, but replicas is {spec.replicas}"
        yield Contradiction(text, is_certain)
    elif most > 1 and (reason := why_alone(found, own, spec.replicas)):
        yield Contradiction(reason, is_certain=False)
    total, pods = own.roles.get("world-size"), spec.max_size
    expected = pods * _processes_of_pod(spec) if least == most else 0
    number = int(total.value) if total and _NUMBER.fullmatch(total.value[:_LONGEST]) else expected
    if total and expected and number != expected:
        text = f"{_written(found, total)}, but the job has {expected} processes in {pods} pods"
        yield Contradiction(text, is_certain=False)


def _place(spec: DDPJobSpec, command: _Command) -> Iterator[Contradiction]:
    """Find the rank or address of one pod in the command of all."""
    found, own = command.found, command.own
    if spec.max_size == 1:
        return
    for role in ("node-rank", "master-addr", "rdzv-endpoint"):
        option = own.roles.get(role)
        expected = _NUMBER if role == "node-rank" else _OWN_ADDRESS
        if option is not None and expected.fullmatch(option.value[:_LONGEST]):
            text = f"{_written(found, option)}, but the job has {spec.max_size} pods"
            yield Contradiction(text)
    for word in found.words[found.begin :]:
        if url := _OWN_URL.search(word[:_LONGEST]):
            yield Contradiction(
                f"{url[0]} is a different place in each pod, so they do not meet; use env://",
                is_certain=False,
            )


def _processes(spec: DDPJobSpec, command: _Command) -> Iterator[Contradiction]:
    """Find another number of processes in each pod."""
    found, own = command.found, command.own
    option = own.roles.get("nproc-per-node")
    if option is None or not _NUMBER.fullmatch(option.value[:_LONGEST]):
        return
    if not _processes_of_pod(spec):
        return  # another rule names the limits
    number, asked, written = int(option.value), spec.nproc_per_node, _written(found, option)
    if found.launcher.startswith("accelerate"):  # it counts the processes of all pods
        pods, expected = own.roles.get("nnodes"), _processes_of_pod(spec) * spec.max_size
        if pods is not None and pods.value == str(spec.max_size) != "1" and number != expected:
            text = f"{written} counts the processes of all pods, which are {expected}"
            yield Contradiction(text, is_certain=False)
        if pods is not None or spec.max_size > 1:
            return
    if asked != "auto":
        if number != asked:
            text = f"{written}, but spec.nprocPerNode is {asked}"
            yield Contradiction(text)
        return
    gpus = gpu_limit(spec)
    if gpus and number > gpus and spec.backend != "gloo":
        text = f"{written}, but each pod has {gpus} GPU{'s' * (gpus > 1)}"
        yield Contradiction(text)
    elif number not in (0, max(gpus, 1)):
        text = f"{written}: set spec.nprocPerNode to {number} too, or ranks are counted wrongly"
        yield Contradiction(text, is_certain=False)


def _processes_of_pod(spec: DDPJobSpec) -> int:
    """Return the number of processes in each pod; 0 if its limits are no numbers."""
    if spec.nproc_per_node != "auto":
        return spec.nproc_per_node
    is_clear = all(map(is_whole, gpu_limits(spec).values()))  # another rule names them
    return max(gpu_limit(spec), 1) if is_clear else 0


def _variables(spec: DDPJobSpec, command: _Command) -> Iterator[Contradiction]:
    """Find variables of processes where pods are counted, and a shell's where no shell is."""
    found, own = command.found, command.own
    several = _processes_of_pod(spec) > 1
    for role, variable in _OF_PROCESSES.items():
        option = own.roles.get(role)
        reference = _REFERENCE.fullmatch(option.value.translate(_ROUND)) if option else None
        if several and option and reference and reference[1] == variable:
            text = f"{_written(found, option)} counts processes, not pods; use {_VARIABLES[role]}"
            yield Contradiction(text, is_certain=False)
    if found.in_shell:
        return
    refused: list[tuple[str, ...]] = []
    for role, variable in _VARIABLES.items():
        option = own.roles.get(role)
        if option is not None and _UNREPLACED.search(option.value[:_LONGEST]):
            refused.append(option.words)
            text = f"{_written(found, option)}; here it is $({variable})"
            yield Contradiction(text)
    room = MAX_SEARCHED
    named = {word for words in refused for word in words}
    for word in found.words:
        is_line = any(map(str.isspace, word[:room]))  # of a shell further on
        if room > 0 and word not in named and not is_line and (name := _OURS.search(word[:room])):
            yield Contradiction(
                f"{_cut(word)}: no shell replaces {name[0].rstrip('{')} in this command; write "
                f"$({name[0].strip('${')}), or start it with bash -c",
                is_certain=False,
            )
            return
        room -= len(word)


def _unquoted(_: DDPJobSpec, command: _Command) -> Iterator[Contradiction]:
    """Find words that a shell does not pass to the program of its line."""
    argv, found, own = command
    if not found.unused:
        return
    runs_nothing = (found.python is not None or found.launcher) and own.end >= len(found.words)
    if runs_nothing and found.words[0] in argv:  # the whole line
        text = f"{_cut(found.words[0])} would run without {_cut(found.unused[0])}"
        yield Contradiction(text)
    elif len(found.unused) > 1:  # one word is the name of the shell
        text = f"{_cut(' '.join(found.unused[:4]))}: the shell's line does not use these words"
        is_certain = not _SHELL_OPERATORS.isdisjoint(found.unused)
        text += '; write them in the line, or add "$@" to it' * (not is_certain)
        yield Contradiction(text, is_certain)


_FINDERS: Final[Mapping[Kind, Callable[[DDPJobSpec, _Command], Iterator[Contradiction]]]] = {
    "pods": _pods,
    "place": _place,
    "processes": _processes,
    "variable": _variables,
    "unquoted": _unquoted,
}


def _range(text: str) -> tuple[int, int]:
    """Return the fewest and the most pods of --nnodes; (0, 0) if it is no number."""
    if match := _RANGE.fullmatch(text[:_LONGEST]):
        return int(match[1]), int(match[2])
    number = int(text) if _NUMBER.fullmatch(text[:_LONGEST]) else 0
    return number, number


def _written(found: Started, option: Option) -> str:
    called = f"{found.called} " * option.words[0].startswith("-")
    return _cut(called + " ".join(option.words))


def _cut(text: str) -> str:
    return text[:_LONGEST]
