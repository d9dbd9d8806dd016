"""An older torch than the trainer supports is refused in words, also by an injected trainer."""

from __future__ import annotations

import tomllib
from pathlib import Path

import ddp_trainer
import pytest
import torch
from ddp_client.views.job.known_errors import known_error
from ddp_protocol.error_texts import Class
from ddp_trainer.system import torch_release

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ddp_trainer.__all__)
def test_too_old_torch_is_refused_before_other_imports(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.6.0+cu124")
    monkeypatch.setitem(ddp_trainer._MODULES, name, "a module that older torches cannot import")
    with pytest.raises(ImportError) as refusal:
        getattr(ddp_trainer, name)
    assert str(refusal.value) == (
        f"ddp_trainer.{name} needs torch 2.7 or newer, but this is torch 2.6.0+cu124: use an "
        "image with a newer torch"
    )
    known = known_error(f"ImportError: {refusal.value}", "")
    assert known is not None
    assert known.class_ is Class.MISTAKE


@pytest.mark.parametrize("version", ["2.7.0", "2.10.0a0+git1.nv25.06", "3.0.0"])
def test_supported_torch_is_accepted(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert torch_release.shortcoming("this") is None


def test_packages_and_docs_name_the_oldest_torch() -> None:
    oldest = ".".join(map(str, torch_release.OLDEST))
    packages = tomllib.loads((ROOT / "trainer-image" / "pyproject.toml").read_text())
    assert f"torch>={oldest}" in packages["project"]["dependencies"]
    for page in ("docs/how-to/your-loop.md", "docs/how-to/run-a-script.md", "CHANGELOG.md"):
        assert f"torch {oldest} or " in (ROOT / page).read_text(), page
