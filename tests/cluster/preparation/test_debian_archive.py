"""Where packages come from: the mirrors of this machine, other suites of them, no other's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.errors import ClusterUnavailableError
from tests.cluster.preparation import debian_archive

MODERN = """Types: deb
# a remark
URIs: http://mirror.example/debian
Suites: stable stable-updates
Components: main
Signed-By: /keys.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: stable-security
Components: main
Signed-By: /keys.gpg
"""
CLASSIC = """deb [signed-by=/keys.gpg] http://mirror.example/debian stable main contrib
deb http://mirror.example/debian stable-updates main contrib
deb http://mirror.example/debian-security stable-security main contrib
deb http://other.example/apt any main
# deb http://mirror.example/debian older main
"""


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with neither list of sources."""
    monkeypatch.setattr(debian_archive, "_MODERN", tmp_path / "debian.sources")
    monkeypatch.setattr(debian_archive, "_CLASSIC", tmp_path / "sources.list")


def sources(folder: Path, kind: str, suite: str | None = None) -> list[dict[str, str]]:
    """The entries that apt-get is told of."""
    argv = debian_archive.apt_get(folder / kind, kind, suite=suite)
    assert f"Dir::Etc::SourceParts={folder / kind / 'sources.d'}" in argv
    text = (folder / kind / "sources.d/own.sources").read_text()
    return [
        dict(line.split(": ", 1) for line in entry.splitlines() if not line.startswith("#"))
        for entry in text.strip().split("\n\n")
    ]


def test_sources_of_what_is_installed_from(tmp_path: Path) -> None:
    (tmp_path / "debian.sources").write_text(MODERN)
    found = sources(tmp_path, "deb-src")
    assert [(entry["Types"], entry["Suites"]) for entry in found] == [
        ("deb-src", "stable stable-updates"),
        ("deb-src", "stable-security"),
    ]


@pytest.mark.parametrize(
    ("name", "text"), [("debian.sources", MODERN), ("sources.list", CLASSIC)], ids=["new", "old"]
)
def test_another_suite(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    [found] = sources(tmp_path, "deb", suite="sid")
    assert found["Types"] == "deb"
    assert found["URIs"] == "http://mirror.example/debian"
    assert found["Suites"] == "sid"


def test_a_machine_without_a_mirror(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnavailableError, match="no Debian package sources"):
        sources(tmp_path, "deb", suite="sid")
