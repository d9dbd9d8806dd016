"""Prometheus is unpacked into the cache completely, or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.errors import ClusterUnavailableError
from tests.cluster.preparation import packages, prometheus


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def offer(monkeypatch: pytest.MonkeyPatch, *programs: str) -> list[str]:
    """Have Debian's package hold these programs; returns what is downloaded from then on."""
    downloaded: list[str] = []

    def unpacked(package: str, *, into: Path) -> Path:
        downloaded.append(package)
        folder = into / "files"
        (folder / "usr/bin").mkdir(parents=True)
        for program in programs:
            (folder / "usr/bin" / program).write_text(program)
        return folder

    monkeypatch.setattr(packages, "unpacked", unpacked)
    return downloaded


def test_only_both_programs_are_kept_from_one_download(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClusterUnavailableError, match=r"no prometheus .*`make prepare`"):
        prometheus.find()
    downloaded = offer(monkeypatch, "prometheus", "promtool", "other")
    prometheus.fetch()
    prometheus.fetch()
    assert downloaded == ["prometheus"]
    folder = prometheus.find()
    assert folder.is_relative_to(cache)
    assert {path.name for path in folder.iterdir()} == {"lock", "prometheus", "promtool"}


def test_package_without_one_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "prometheus")
    with pytest.raises(ClusterUnavailableError, match="no promtool in Debian's package"):
        prometheus.fetch()
    assert not prometheus.is_there()
