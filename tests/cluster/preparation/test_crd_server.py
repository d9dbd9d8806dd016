"""A build of the API server for CRDs from an archive that moves; apt, dpkg and Go are stand-ins.

An extracted package is a file of its name. The stand-in for Go misses an import unless the library
`golang-big-dev` is there where a file ``wants-big`` lies in the cache, and does not compile where a
file ``broken`` does.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.errors import ClusterUnavailableError
from tests.cluster.preparation import debian_archive
from tests.cluster.preparation.crd_server import LIBRARY, CrdServerBuild, find, is_built

APT_GET = rf"""#!/bin/sh
echo "$*" >>"$XDG_CACHE_HOME/apt"
case "$*" in
*print-uris*)
  for file in "{LIBRARY}_1%3a2.3-4_all.deb 1000" "golang-1.9-go_1.9_amd64.deb 20000000" \
    "golang-small-dev_1_all.deb 1000" "golang-big-dev_1_all.deb 40000000" "libc6_2_amd64.deb 10"
  do echo "'http://mirror.example/${{file% *}}' $file MD5Sum:0"; done;;
*download*)
  for word; do case $word in golang-*) touch "$word.deb";; esac; done;;
esac
"""
DPKG_DEB = """#!/bin/sh
touch "$3/$(basename "$2" .deb)"
mkdir -p "$3/usr/lib/go-1.9/bin"
cp "$(dirname "$0")/go" "$3/usr/lib/go-1.9/bin/go"
"""
GO = """#!/bin/sh
case "$*" in
list*) [ -e golang-big-dev ] || [ ! -e "$XDG_CACHE_HOME/wants-big" ] || exit 1;;
build*)
  [ -e "$XDG_CACHE_HOME/broken" ] && { echo "x.go: syntax error"; exit 1; }
  [ -e golang-big-dev ] || [ ! -e "$XDG_CACHE_HOME/wants-big" ] || exit 1
  touch "$4";;
esac
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty cache, where all programs are the stand-ins."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("apt-get", APT_GET), ("dpkg-deb", DPKG_DEB), ("go", GO)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    sources = tmp_path / "debian.sources"
    sources.write_text("Types: deb\nURIs: http://mirror.example\nSuites: any\nComponents: main\n")
    monkeypatch.setattr(debian_archive, "_MODERN", sources)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def downloads(cache: Path) -> list[list[str]]:
    """The packages of each download so far."""
    lines = (cache / "apt").read_text().splitlines() if (cache / "apt").exists() else []
    return [line.split("download -qq ")[1].split() for line in lines if " download " in line]


def test_a_build_from_nothing(cache: Path) -> None:
    with pytest.raises(ClusterUnavailableError, match="make prepare"):
        find()
    CrdServerBuild().build()
    assert find().parent.name.startswith("1:2.3-4-")
    assert downloads(cache) == [[LIBRARY, "golang-1.9-go", "golang-small-dev"]]
    assert not (cache / "ddp-operator/crd-server-build").exists()
    CrdServerBuild().build()
    assert len(downloads(cache)) == 1


def test_large_libraries_are_had_where_they_are_imported(cache: Path) -> None:
    (cache / "wants-big").touch()
    CrdServerBuild().build()
    assert downloads(cache)[1:] == [["golang-big-dev"]]
    assert is_built()


def test_a_build_that_was_cut_off_goes_on_in_its_tree(cache: Path) -> None:
    build = CrdServerBuild()
    build.fetch()
    (cache / "apt").unlink()
    build.build()
    assert is_built()
    assert not (cache / "apt").exists()


def test_packages_that_do_not_compile_are_had_anew_the_next_time(cache: Path) -> None:
    (cache / "broken").touch()
    with pytest.raises(ClusterUnavailableError) as failed:
        CrdServerBuild().build()
    log = cache / "ddp-operator/crd-server-build.log"
    assert "failed (x.go: syntax error)" in str(failed.value)
    assert str(failed.value).endswith(f"its log is {log}")
    (cache / "broken").unlink()
    CrdServerBuild().build()
    assert len(downloads(cache)) == 2
    assert is_built()


def test_an_archive_without_it_is_told_in_one_line(cache: Path) -> None:
    (cache.parent / "programs/apt-get").write_text("#!/bin/sh\necho 'E: no route' >&2; exit 100\n")
    with pytest.raises(ClusterUnavailableError) as failed:
        CrdServerBuild().build()
    assert "\n" not in str(failed.value)
    assert str(failed.value).startswith(f"cannot have {LIBRARY} of Debian's sid: apt-get")
    assert "(E: no route)" in str(failed.value)
    assert not is_built()
