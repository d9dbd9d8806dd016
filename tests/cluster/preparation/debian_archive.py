"""Debian's archive beside the system's own apt: other suites and sources, nothing installed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.errors import ClusterUnavailableError

_MODERN = Path("/etc/apt/sources.list.d/debian.sources")
_CLASSIC = Path("/etc/apt/sources.list")


def apt_get(folder: Path, kind: str, *, suite: str | None = None) -> list[str]:
    """Return the beginning of an apt-get command with lists, cache and state of its own.

    `folder`: where they are; made here. `kind`: ``deb`` or ``deb-src``. `suite`: instead of those
    that this machine uses; it has no packages installed, so that nothing counts as there already.

    Raises ClusterUnavailableError when this machine has no Debian mirror to go to.
    """
    for part in ("sources.d", "lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    (folder / "sources.d/own.sources").write_text(_entries(kind, suite))
    (folder / "status").touch()
    return [
        "apt-get",
        *("-o", "Dir::Etc::SourceList=/dev/null"),
        *("-o", f"Dir::Etc::SourceParts={folder / 'sources.d'}"),
        *("-o", f"Dir::State::Lists={folder / 'lists'}"),
        *("-o", f"Dir::State::Status={folder / 'status'}"),
        *("-o", f"Dir::Cache={folder / 'cache'}"),
        *("-o", "APT::Sandbox::User=root"),
    ]


def _entries(kind: str, suite: str | None) -> str:
    """Return deb822 entries for the Debian mirrors that this machine uses already."""
    if _MODERN.exists():
        entries = re.split(r"\n\s*\n", _MODERN.read_text().strip())
    else:
        entries = []
        for line in _CLASSIC.read_text().splitlines() if _CLASSIC.exists() else ():
            if match := re.match(r"deb\s+(?:\[[^]]*\]\s+)?(\S+debian\S*)\s+(\S+)\s+(.+)", line):
                uri, name, components = match.groups()
                entries.append(
                    f"Types: deb\nURIs: {uri}\nSuites: {name}\nComponents: {components}\n"
                )
    if suite is not None:  # security's mirror has corrections of other suites only
        entries = [
            re.sub(r"(?m)^Suites:.*$", f"Suites: {suite}", entry)
            for entry in entries
            if not re.search(r"(?m)^(URIs|Suites):.*-security", entry)
        ]
    wanted = dict.fromkeys(re.sub(r"(?m)^Types:.*$", f"Types: {kind}", entry) for entry in entries)
    if not wanted:
        raise ClusterUnavailableError("this machine has no Debian package sources")
    return "\n\n".join(wanted)
