"""Reads stacks in the format of Python's `faulthandler`. A rank may write anything in their place,
so only operations that take linear time are used.
"""

from __future__ import annotations

Frame = tuple[str, str, str]
"""File, line, function."""
_MOST_FRAMES = 128
"""Limit of a thread's frames; `faulthandler` writes 100."""
_MOST_THREADS = 1024
_TEXT = 300
"""Most characters of a file's or a function's name."""
_HEADS = ("Current thread 0x", "Thread 0x")
_FILE = '  File "'
_LINE = '", line '


def parse(text: str) -> list[list[Frame]]:
    """Return the frames of each thread, the innermost first.

    The main thread, which receives the signal, comes first.
    """
    threads: list[tuple[bool, list[Frame]]] = []
    frames: list[Frame] | None = None
    for line in text.splitlines():
        if line.startswith(_HEADS) and line.endswith(":"):
            frames = []
            threads.append((line.startswith(_HEADS[1]), frames))
        elif not line.startswith("  "):
            frames = None  # C stacks, which newer Pythons add
        elif frames is not None and line.startswith(_FILE):
            file, found, rest = line.removeprefix(_FILE).rpartition(_LINE)
            number, named, function = rest.partition(" in ")
            if found and named and len(number) < 8 and len(frames) < _MOST_FRAMES:
                frames.append((_cut(file), _cut(number), _cut(function)))
    threads.sort(key=lambda each: each[0])
    return [frames for _, frames in threads[:_MOST_THREADS]]


def _cut(text: str) -> str:
    """Return a text that can be encoded; of a long one, the end."""
    return text[-_TEXT:].encode(errors="replace").decode()
