"""Resets this machine to a newcomer's and runs README's two commands: `make bare`.

It removes what earlier runs have left: running test clusters, the Debian packages that were
installed for them (and nothing that was there before or that something else needs), caches, and
what `make` has put into this checkout. pip's and apt's own caches belong to the user and stay; pip
does not use its cache here. Needs Python alone, since the virtual environment goes first.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster.cache import cache_dir
from tests.cluster.preparation import packages
from tests.cluster.state import instances
from tests.cluster.teardown import remove

ROOT = Path(__file__).resolve().parent.parent
IN_CHECKOUT = (
    ".venv",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    ".import_linter_cache",
)
COMMANDS = (("make", "demo"), ("make", "test"))


def main() -> int:
    """Clear away, run both commands; return 0 when both succeed."""
    for instance in instances():
        if instance.owner is not None and instance.owner.alive():
            print(f"a test cluster is in use by process {instance.owner.pid}: let it end first")
            return 1
        remove(instance)
        print(f"removed cluster {instance.name}")
    remove_packages()
    for folder in (cache_dir(), *(ROOT / name for name in IN_CHECKOUT)):
        if folder.exists():
            shutil.rmtree(folder)
            print(f"removed {folder}")
    worst, times = 0, []
    for command in COMMANDS:
        began = time.monotonic()
        environment = {**os.environ, "PIP_NO_CACHE_DIR": "1"}
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        worst = max(worst, abs(code))
        ended = "passed" if code == 0 else f"FAILED ({code})"
        times.append(f"{' '.join(command)}: {ended} in {time.monotonic() - began:.0f} s")
    print("\n".join(("== from a bare machine", *times)))
    return worst


def remove_packages() -> None:
    """Remove the Debian packages on record, unless others need them now."""
    record = packages.installed_here()
    if not record.exists():
        return
    names = record.read_text().split()
    purge = [*packages.APT_GET, "purge", "-y", "-qq", *names]
    environment = {**os.environ, **packages.APT_ENVIRONMENT}
    plan = subprocess.run(
        [*purge, "--simulate"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    removed = {line.split()[1] for line in plan.splitlines() if line.startswith(("Purg", "Remv"))}
    if others := removed - {name.partition(":")[0] for name in names}:
        print(f"packages of earlier runs stay, since others need them: {' '.join(sorted(others))}")
        return
    subprocess.run(purge, env=environment, stdout=subprocess.DEVNULL, check=True)
    record.unlink()
    print(f"removed Debian packages: {' '.join(names)}")


if __name__ == "__main__":
    sys.exit(main())
