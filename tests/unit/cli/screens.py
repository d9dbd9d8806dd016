"""The screens that a command has drawn on a terminal."""

import re

_ESCAPE = r"\x1b\[[?\d;]*[A-Za-z]"


def screens_of(output: str) -> list[str]:
    """Split the output where the screen before is erased; return plain texts."""
    erased = re.split(rf"\r(?:{_ESCAPE})+", output)
    return [re.sub(_ESCAPE, "", screen) for screen in erased]
