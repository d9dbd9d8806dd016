"""Makes the copy button of console blocks copy commands alone (a MkDocs hook).

The theme copies the attribute `data-copy` of a block if there is one, instead of all its text.
"""

import re
from html import escape, unescape
from typing import Any

_BLOCK = re.compile(r'<div class="highlight">(.*?)</div>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Add the attribute to each block with prompts (called by MkDocs)."""
    return _BLOCK.sub(_with_commands, html)


def _with_commands(block: re.Match[str]) -> str:
    copied = commands(unescape(re.sub(r"<[^>]*>", "", block[1])))
    if not copied or 'class="gp"' not in block[1]:  # a prompt
        return block[0]
    attribute = f'data-copy="{escape(copied).replace(chr(10), "&#10;")}"'
    return block[0].replace("<div ", f"<div {attribute} ", 1)


def commands(text: str) -> str:
    r"""Return the lines after `$ `, and those that continue them after a `\`, without output."""
    typed = []
    continued = False
    for line in text.splitlines():
        prompt = line.startswith("$ ")
        if prompt or continued:
            typed.append(line.removeprefix("$ ") if prompt else line)
            continued = line.endswith("\\")
    return "\n".join(typed)
