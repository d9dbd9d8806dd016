"""Finds what a container's command line starts: a launcher of ranks, Python, or another program.

`ddp run`, `ddp convert` and the rules use this module. A launcher that the words do not show, such
as one in a script of the image, is not found, nor one beyond 8 KiB of shell lines or 2000 commands.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from ddp_operator.api.values.limits import MAX_SEARCHED, linear

_TORCHRUN_PROGRAMS: Final = ("torchrun", "hyperpodrun", "ft_launcher")
_TORCHRUN_MODULES: Final = (
    *("torch.distributed.run", "torch.distributed.launch"),
    "nvidia_resiliency_ext.fault_tolerance.launcher",
)
OWN_LAUNCHER: Final = "ddp_trainer.launch"
PROGRAMS: Final = (
    *_TORCHRUN_PROGRAMS,
    *("accelerate", "accelerate-launch", "deepspeed", "mpirun", "mpiexec", "mpiexec.hydra"),
    *("horovodrun", "colossalai", "composer"),
)
MODULES: Final = (
    *_TORCHRUN_MODULES,
    *(OWN_LAUNCHER, "accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
    *("deepspeed.launcher.runner", "deepspeed.launcher.launch", "composer.cli.launcher"),
)
LAUNCHERS: Final = (*PROGRAMS, *MODULES)
"""Programs that start several processes, under another launcher as many for each rank."""
TUNE: Final = "tune run"
"""torchtune's launcher, which is one only if torchrun's options follow."""
FABRIC: Final = ("fabric run", "lightning run model")
"""Lightning's launchers, which run torchrun with options of their own."""
SHELLS: Final = ("sh", "bash", "dash", "ash", "zsh", "ksh")

_PYTHON: Final = linear(r"python(?:3(?:\.\d+)?t?)?")
_WRAPPERS: Final = frozenset(
    {
        *("env", "exec", "command", "time", "nohup", "nice", "ionice", "chrt", "timeout", "stdbuf"),
        *("setsid", "numactl", "taskset", "unbuffer", "catchsegv", "xvfb-run", "strace", "sudo"),
        *("gosu", "su-exec", "setpriv", "tini", "dumb-init", "catatonit", "uv", "uvx", "poetry"),
        *("pdm", "pipenv", "hatch", "rye", "pixi", "conda", "mamba", "micromamba", "nsys", "ncu"),
        *("rocprof", "rocprofv3", "opentelemetry-instrument", "ddtrace-run", "coverage", "py-spy"),
        *("then", "do", "else", "if", "while", "eval", "!", "{", "("),
    }
)
"""Programs that run the program after them, and shell words before a program."""
_PYTHON_VALUES: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})
"""Python's options that take the next word as a value."""
_SUBSTITUTION: Final = linear(r"\$\([^()]*\)|`[^`]*`")
"""Text that a shell or Kubernetes replaces; here it is part of a word."""
_SEPARATORS: Final = ";&|()\n"
_CONTROL: Final = frozenset(
    {
        *("if", "else", "elif", "while", "until", "for", "case", "select", "function", "{", "!"),
        *("[", "[[", "test", "eval", "trap", "exit"),
    }
)
"""Shell words after which it is not certain that a command runs."""
_BRANCHES: Final = linear(r"\|\||<<|=[\"'][^\"']*\s")
"""Other signs of that: alternatives, files within a line, and variables that hold commands."""
_LEAST_LINE: Final = 1024
"""How much of MAX_SEARCHED each line takes at least, so that 8 may be nested."""
_MOST_COMMANDS: Final = 2000
"""How many commands of a line are read; more than people write."""
_MAX_NESTED: Final = 2
"""How deep commands in variables may be nested."""


@dataclass(frozen=True)
class Started:
    """The first known program of a command line, and its position."""

    words: tuple[str, ...]
    """The command line; inside a shell's line, the words of that line."""
    launcher: str = ""
    """The launcher, by its program or module name; empty if it is none."""
    python: int | None = None
    """Index of the word that is Python, or before which Python is left out (`uv run train.py`)."""
    begin: int = 0
    """Index of the first word after the launcher, or after Python and its options."""
    in_shell: bool = False
    """True if the program is in a shell's line."""
    is_certain: bool = True
    """False: whether the program gets these words depends on other programs, such as a shell's
    condition."""
    unused: tuple[str, ...] = ()
    """Words after a shell's line that the line does not use."""
    assigned: tuple[str, ...] = ()
    """Words before the program that give it variables, such as MASTER_ADDR=localhost."""

    @property
    def by_torchrun(self) -> bool:
        """True if the launcher reads the number of processes and pods from PET_*."""
        return self.launcher in (*_TORCHRUN_PROGRAMS, *_TORCHRUN_MODULES)

    @property
    def called(self) -> str:
        """The launcher's name as people write it."""
        return f"python -m {self.launcher}" if "." in self.launcher else self.launcher


def started(argv: Sequence[str]) -> Started:
    """Read a command line as it is in a container."""
    return _started(tuple(argv), MAX_SEARCHED, in_shell=False)


def _started(words: tuple[str, ...], room: int, *, in_shell: bool) -> Started:
    """Read a command line, with `room` for so many characters of shell lines."""
    found = _program_of(words, room, in_shell=in_shell)
    own = words[: found.begin] if found.words is words else ()
    return replace(found, assigned=(*found.assigned, *filter(_assigned, own)))


def _program_of(words: tuple[str, ...], room: int, *, in_shell: bool) -> Started:
    at: int | None = _behind_assignments(words) if in_shell else 0
    is_certain = True
    while at is not None and at < len(words):
        program = _program(words[at])
        if program in LAUNCHERS:
            return Started(words, program, begin=at + 1, is_certain=is_certain)
        if program in SHELLS:
            return _in_shell(words, at, room)
        if is_python(program):
            return replace(_under_python(words, at, at + 1), is_certain=is_certain)
        if program == "uv" and (found := _under_uv(words, at)):
            return found
        if program not in _WRAPPERS:
            # For example an image's entrypoint, which ends with exec "$@".
            if not in_shell and at + 1 < len(words) and _is_known(words[at + 1]):
                at, is_certain = at + 1, False
                continue
            return _under_any(words, at)
        at = _behind_wrapper(words, at)
    return Started(words)


def is_python(word: str) -> bool:
    """Return whether a word is Python 3, with any path and version."""
    program = _program(word)
    return program.isascii() and _PYTHON.fullmatch(program) is not None


def _program(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2]


def _is_known(word: str) -> bool:
    program = _program(word)
    known = program in LAUNCHERS or program in SHELLS or program in _WRAPPERS
    return known or is_python(word)


def _under_python(words: tuple[str, ...], python: int, at: int) -> Started:
    """Read Python's options, up to what it runs."""
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        if word == "-m" and at + 1 < len(words):
            module, behind = words[at + 1], at + 2
        elif word.startswith("-m"):
            module, behind = word[2:], at + 1
        elif word in ("-c", "-"):
            break
        else:
            at += 2 if word in _PYTHON_VALUES else 1
            continue
        if module in LAUNCHERS:
            return Started(words, module, python, behind)
        return Started(words, "", python, at)
    if at < len(words) and _program(words[at]) in LAUNCHERS:  # such as /usr/local/bin/torchrun
        return Started(words, _program(words[at]), python, at + 1)
    return Started(words, "", python, at)


def _under_any(words: tuple[str, ...], at: int) -> Started:
    """Read a program of any name, which may be Python or `tune run`.

    `tune run` starts torchrun if torchrun's options come first, else one process.
    """
    if _program(words[at]) == "tune" and words[at + 1 : at + 2] == ("run",):
        starts_ranks = words[at + 2 : at + 3] and words[at + 2].startswith("-")
        return Started(words, TUNE if starts_ranks else "", begin=at + 2)
    for launcher in FABRIC:
        names = (_program(words[at]), *words[at + 1 : at + 1 + launcher.count(" ")])
        if names == tuple(launcher.split()):
            return Started(words, launcher, begin=at + len(names))
    found = _under_python(words, at, at + 1)
    return found if found.launcher in MODULES else Started(words)


def _under_uv(words: tuple[str, ...], uv: int) -> Started | None:
    """Read `uv run train.py` and `uv run -m train`, which leave Python out."""
    for at in range(uv + 1, len(words)):
        word = words[at]
        is_module = word in ("-m", "--module") and at + 1 < len(words)
        if is_module and words[at + 1] in LAUNCHERS:
            return Started(words, words[at + 1], at, at + 2)
        if is_module or word.endswith(".py"):
            return Started(words, "", at, at)
        if _is_known(word):
            return None
    return None


def _behind_wrapper(words: tuple[str, ...], wrapper: int) -> int | None:
    """Return the position of the program that a wrapper runs, or None if it cannot be found."""
    for at in range(wrapper + 1, len(words)):
        word, before = words[at], words[at - 1]
        if before == "--" or _is_known(word):
            return at
        is_option = word.startswith(("-", "+")) or _assigned(word) is not None
        is_value = before.startswith("-") and "=" not in before
        if not (is_option or is_value) and ("/" in word or "." in word):
            return None
    return None


def _in_shell(words: tuple[str, ...], shell: int, room: int) -> Started:
    """Read a shell's command line: a line after -c, or a script."""
    at, has_line = shell + 1, False
    while at < len(words) and words[at].startswith(("-", "+")) and words[at] != "--":
        short = not words[at].startswith("--")
        has_line |= short and "c" in words[at]
        at += 2 if short and words[at].endswith("o") else 1
    at += words[at : at + 1] == ("--",)
    if at >= len(words):
        return Started(words)
    if not has_line:
        program = _program(words[at])
        return Started(words, program, begin=at + 1) if program in LAUNCHERS else Started(words)
    line, name, arguments = words[at], words[at + 1 : at + 2], words[at + 2 :]
    rest = room - max(len(line), _LEAST_LINE)
    commands = tuple(islice(_commands(line, room), _MOST_COMMANDS))
    kept = [word for word in words[:shell] if _assigned(word)]
    found = []
    for command in commands:
        if command[0] == "export" or _behind_assignments(command) == len(command):
            kept += filter(_assigned, command)
        else:
            one = _started(command, rest, in_shell=True)
            found.append(replace(one, assigned=(*kept, *one.assigned)))
    if rest > 0 and ("$@" in line or "$*" in line):
        passed = (*(name if "$0" in line else ()), *arguments)
        found.append(_started(passed, rest, in_shell=True))
    launchers = [one for one in found if one.launcher]
    pythons = (one for one in found if one.python is not None)
    best = next(iter(launchers), None) or next(pythons, Started(words))
    is_plain = len(line) <= room and len(commands) < _MOST_COMMANDS and len(launchers) <= 1
    is_plain = (
        is_plain and not _BRANCHES.search(line) and _CONTROL.isdisjoint(c[0] for c in commands)
    )
    uses_words = "$" in line or any(command[0] in (".", "source") for command in commands)
    return replace(
        best,
        in_shell=True,
        is_certain=is_plain and best.is_certain,
        unused=() if uses_words else (*name, *arguments),
    )


def _commands(line: str, room: int, nested: int = 0) -> Iterator[tuple[str, ...]]:
    """Yield the simple commands of a shell's line, and commands that its variables hold.

    A command begins with the variables that it gets. Of a line without room, yield the commands
    that end within it.
    """
    is_cut, line = len(line) > room, line[: max(room, 0)]
    text = line.replace("\\\n", " ").encode(errors="replace").decode()
    lexer = shlex.shlex(_SUBSTITUTION.sub("$x", text), posix=True, punctuation_chars=_SEPARATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        words = list(lexer)
    except ValueError:  # an unclosed quotation
        words = line.split()
    command: list[str] = []
    has_program = False
    for word in words if is_cut else [*words, ";"]:
        if not word.strip(_SEPARATORS):
            if command and not command[0].startswith("#"):
                yield tuple(command)
            command, has_program = [], False
            continue
        value = None if has_program else _assigned(word)
        has_program = value is None
        if value and " " in value.strip() and nested < _MAX_NESTED:
            yield from _commands(value, room, nested + 1)
        command.append(word)


def _behind_assignments(command: Sequence[str]) -> int:
    """Return the index of the first word that gives no value to a variable."""
    places = (at for at, word in enumerate(command) if _assigned(word) is None)
    return next(places, len(command))


def _assigned(word: str) -> str | None:
    """Return the value that a word gives to a variable, or None if it gives none."""
    name, equals, value = word.partition("=")
    return value if equals and name.isascii() and name.isidentifier() else None
