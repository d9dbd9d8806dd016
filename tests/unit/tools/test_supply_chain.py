"""Packages, base images and actions are pinned by their content."""

import re
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).parents[3]
LOCKS: Final = sorted((ROOT / "requirements").glob("*.txt"))
DOCKERFILES: Final = [
    ROOT / "Dockerfile",
    ROOT / "trainer-image/Dockerfile",
    ROOT / "tests/cluster/plain_python/Dockerfile",
]


def logical_lines(path: Path) -> list[str]:
    """Return the lines without comments, and with continued lines joined."""
    text = re.sub(r"(?m)^ *#.*\n", "", path.read_text())
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("lock", LOCKS, ids=name_of)
def test_every_locked_package_has_a_version_and_a_hash(lock: Path) -> None:
    lines = logical_lines(lock)
    assert len(lines) > 20
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==\S+( ;[^-]+)?( +--hash=sha256:[0-9a-f]{64})+", line), line


def test_all_locks_agree_on_versions_besides_the_build_of_torch() -> None:
    versions = defaultdict(set)
    for lock in LOCKS:
        for line in logical_lines(lock):
            name, version = line.split()[0].split("==")
            versions[name].add(version)
    torch = versions.pop("torch")
    assert len(torch) == 2
    assert len({version.partition("+")[0] for version in torch}) == 1
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=name_of)
def test_image_is_made_of_pinned_content_and_of_wheels(dockerfile: Path) -> None:
    lines = logical_lines(dockerfile)
    stages: set[str] = set()
    for line in lines:
        if line.startswith("FROM "):
            _, image, *name = line.split()
            assert image in stages or re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", image), line
            stages.update(name[1:])
        if "pip" in line and " install " in line:
            # Building a package from source would fetch build tools without a hash.
            assert {"--require-hashes", "--only-binary=:all:"} <= set(line.split()), line
            assert "/src/requirements.txt" in line
            # Files that pip compiles contain a time.
            assert "--no-compile" in line


def test_compiled_files_contain_no_time() -> None:
    for dockerfile in DOCKERFILES[:2]:
        commands = [line for line in logical_lines(dockerfile) if "compileall" in line]
        assert len(commands) == 2
        for command in commands:
            assert "--invalidation-mode unchecked-hash" in command
            assert "PYTHONHASHSEED=0" in command


def test_release_runs_only_pinned_actions_and_tools_with_few_rights() -> None:
    workflow: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    actions = [step["uses"] for step in steps if "uses" in step]
    assert [action for action in actions if not re.search("@[0-9a-f]{40}$", action)] == []
    tools = {text for text in workflow["env"].values() if text.startswith("github.com/")}
    assert len(tools) == 2
    assert all(re.search(r"@v\d+\.\d+\.\d+$", tool) for tool in tools)
    commands = "\n".join(step.get("run", "") for step in steps)
    assert set(re.findall(r"go run (\S+)", commands)) == {'"$COSIGN"', '"$GRYPE"'}
