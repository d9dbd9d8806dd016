"""Tests that need a mount run, or a message says that they do not."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.trainer.support.mounts import with_own_mounts


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Refuse all ways; return the commands that were tried."""
    tried = []

    def refuse(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        tried.append(command)
        return subprocess.CompletedProcess(command, 1, "", "unshare failed: not permitted")

    monkeypatch.setattr(subprocess, "run", refuse)
    return tried


def test_ci_fails_if_mounting_is_forbidden(
    refused: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(OSError, match="unshare failed: not permitted"):
        with_own_mounts()
    assert ["--user" in command for command in refused] == [True, False]


def test_without_ci_a_message_names_the_skipped_test(
    refused: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="NO MOUNTS FOR A FULL DISK ON THIS MACHINE"):
        with_own_mounts()
    assert len(refused) == 2
