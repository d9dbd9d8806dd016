"""Reads pickles of plain data. A script may have written the dump, so its pickle may be an attack.

Python's own unpickler is not safe here even without globals: a few bytes make it reserve
gigabytes, and colliding keys keep it busy for hours. This one knows only the opcodes that torch's
flight recorder and `pickle.dump` write for containers, text and numbers. Any other opcode ends it.
Time and memory are linear in the size of the pickle, which the caller bounds. A list may appear in
the result many times: do not expand what was already seen.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

MAX_OPCODES: Final = 2_500_000
"""A dump of 20,000 entries with stacks has about 2 million. Each may take 64 bytes of memory."""
_MAX_DEPTH: Final = 32
"""Most open containers; a dump has 6."""
_MAX_INT_BYTES: Final = 9


class BadPickleError(ValueError):
    """The bytes are no pickle of plain data; the message says why."""


class _Machine:
    """The state of the unpickler: input, stack, open containers and memo."""

    __slots__ = ("at", "data", "marks", "memo", "stack")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        begin, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise BadPickleError("it is cut off")
        return self.data[begin : self.at]

    def number(self, size: int) -> int:
        """Return the next bytes as an unsigned number."""
        return int.from_bytes(self.take(size), "little")

    def marked(self) -> list[Any]:
        """Remove and return the values after the last mark."""
        begin = self.marks.pop()
        values = self.stack[begin:]
        del self.stack[begin:]
        return values

    def top(self, kind: type) -> Any:
        """Return the container that receives values."""
        container = self.stack[-1]
        if type(container) is not kind or (self.marks and len(self.stack) <= self.marks[-1]):
            raise BadPickleError("it fills something that is no container")
        return container


def _mark(machine: _Machine) -> None:
    if len(machine.marks) >= _MAX_DEPTH:
        raise BadPickleError(f"it is nested deeper than {_MAX_DEPTH}")
    machine.marks.append(len(machine.stack))


def _text(size: int) -> Callable[[_Machine], None]:
    def push(machine: _Machine) -> None:
        machine.stack.append(machine.take(machine.number(size)).decode(errors="replace"))

    return push


def _unsigned(size: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(machine.number(size))


def _int(machine: _Machine) -> None:
    machine.stack.append(int.from_bytes(machine.take(4), "little", signed=True))


def _long(machine: _Machine) -> None:
    size = machine.number(1)
    if size > _MAX_INT_BYTES:
        raise BadPickleError("a number is too large")
    machine.stack.append(int.from_bytes(machine.take(size), "little", signed=True))


def _float(machine: _Machine) -> None:
    machine.stack.append(struct.unpack(">d", machine.take(8))[0])


def _put(size: int) -> Callable[[_Machine], None]:
    def put(machine: _Machine) -> None:
        machine.memo[machine.number(size)] = machine.stack[-1]

    return put


def _memoize(machine: _Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _get(size: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(machine.memo[machine.number(size)])


def _append(machine: _Machine) -> None:
    value = machine.stack.pop()
    machine.top(list).append(value)


def _appends(machine: _Machine) -> None:
    values = machine.marked()
    machine.top(list).extend(values)


def _set(target: dict[str, Any], key: Any, value: Any) -> None:
    # Hashes of text are salted; those of numbers are not, and a pod could make them collide.
    if type(key) is not str:
        raise BadPickleError("a key is no text")
    target[key] = value


def _setitem(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _set(machine.top(dict), key, value)


def _setitems(machine: _Machine) -> None:
    values = machine.marked()
    target = machine.top(dict)
    for key, value in zip(values[::2], values[1::2], strict=True):
        _set(target, key, value)


def _tuple(machine: _Machine) -> None:
    machine.stack.append(tuple(machine.marked()))


def _tuple_of(size: int) -> Callable[[_Machine], None]:
    def push(machine: _Machine) -> None:
        if len(machine.stack) < size:
            raise BadPickleError("a value is missing")
        values = tuple(machine.stack[-size:])
        del machine.stack[-size:]
        machine.stack.append(values)

    return push


def _skip(size: int) -> Callable[[_Machine], None]:
    """Skip a protocol number, or the size of a frame, which holds opcodes like the rest."""

    def skip(machine: _Machine) -> None:
        machine.take(size)

    return skip


_STOP: Final = ord(".")
_OPCODES: Final[dict[int, Callable[[_Machine], None]]] = {
    0x80: _skip(1),
    0x95: _skip(8),
    ord("("): _mark,
    ord("}"): lambda machine: machine.stack.append({}),
    ord("]"): lambda machine: machine.stack.append([]),
    ord(")"): lambda machine: machine.stack.append(()),
    ord("N"): lambda machine: machine.stack.append(None),
    0x88: lambda machine: machine.stack.append(True),
    0x89: lambda machine: machine.stack.append(False),
    ord("X"): _text(4),
    0x8C: _text(1),
    ord("K"): _unsigned(1),
    ord("M"): _unsigned(2),
    ord("J"): _int,
    0x8A: _long,
    ord("G"): _float,
    ord("q"): _put(1),
    ord("r"): _put(4),
    0x94: _memoize,
    ord("h"): _get(1),
    ord("j"): _get(4),
    ord("a"): _append,
    ord("e"): _appends,
    ord("s"): _setitem,
    ord("u"): _setitems,
    ord("t"): _tuple,
    0x85: _tuple_of(1),
    0x86: _tuple_of(2),
    0x87: _tuple_of(3),
}


def unpickle(data: bytes) -> object:
    """Return the dicts, lists, tuples, text and numbers of a pickle.

    Raises:
        BadPickleError: it is cut off, too large or too deep, or would create other objects.
    """
    machine = _Machine(data)
    opcodes = _OPCODES
    try:
        for _ in range(MAX_OPCODES):
            code = data[machine.at]
            machine.at += 1
            if code == _STOP:
                return machine.stack.pop()
            opcodes[code](machine)
    except BadPickleError:
        raise
    except IndexError:
        said = "it is cut off" if machine.at >= len(data) else "a value is missing"
        raise BadPickleError(said) from None
    except KeyError:
        raise BadPickleError("it has more than containers, text and numbers") from None
    except (ValueError, TypeError):
        raise BadPickleError("it is damaged") from None
    raise BadPickleError(f"it has more than {MAX_OPCODES} opcodes")
