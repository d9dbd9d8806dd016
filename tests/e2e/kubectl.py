"""kubectl as a user types it: every action of these tests on the cluster goes through it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tests.cluster.preparation import binaries

Manifest = Mapping[str, Any]
_T = TypeVar("_T")

DEADLINE_SECONDS = 300.0
"""Of every wait; it only bounds how long a failure takes to show."""
_POLL_SECONDS = 0.5
_COMMAND_SECONDS = 90


class KubectlError(AssertionError):
    """A command failed that should not have; the message is what a user would read."""


@dataclass(frozen=True)
class Kubectl:
    """kubectl with one cluster and, unless a command says it itself, one namespace."""

    kubeconfig: Path
    namespace: str = ""

    def within(self, namespace: str) -> Kubectl:
        """The same cluster, another namespace."""
        return replace(self, namespace=namespace)

    def attempt(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command that may fail."""
        return subprocess.run(
            self.argv(*words),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_SECONDS,
            env=self.environment(),
        )

    def run(self, *words: str, stdin: str | None = None) -> str:
        """Run a command and return what it prints.

        Raises:
            KubectlError: it failed.
        """
        result = self.attempt(*words, stdin=stdin)
        if result.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(words)}: {result.stderr.strip()}")
        return result.stdout

    def get(self, *words: str) -> Any:
        """Return the decoded output of `kubectl get … --output json`."""
        return json.loads(self.run("get", *words, "--output", "json"))

    def items(self, *words: str) -> list[Any]:
        """The items of a list."""
        items: list[Any] = self.get(*words)["items"]
        return items

    def apply(self, *manifests: Manifest) -> None:
        """`kubectl apply` of one or more objects."""
        self.run("apply", "--filename", "-", stdin=yaml.safe_dump_all(manifests))

    def server_version(self) -> tuple[int, int]:
        """Major and minor version of the API server."""
        found = json.loads(self.run("version", "--output", "json"))["serverVersion"]
        return int(found["major"]), int(re.sub(r"\D", "", found["minor"]))

    @contextmanager
    def following(self, file: Path, *words: str) -> Iterator[None]:
        """Write what a command prints, such as `logs --follow`, to a file while it runs."""
        with (
            file.open("wb") as output,
            subprocess.Popen(
                self.argv(*words), stdout=output, stderr=output, env=self.environment()
            ) as process,
        ):
            try:
                yield
            finally:
                process.kill()

    def argv(self, *words: str) -> list[str]:
        """The command line of a command."""
        namespace = ["--namespace", self.namespace] if self.namespace else []
        return [binaries.kubectl(), *namespace, *words]

    def environment(self) -> dict[str, str]:
        """The variables of its commands."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}


def wait_for(
    look: Callable[[], _T | None],
    *,
    what: str,
    deadline_seconds: float = DEADLINE_SECONDS,
    describe: Callable[[], object] = lambda: "",
) -> _T:
    """Return what `look` finds, as soon as that is neither None nor False.

    Raises:
        AssertionError: it found nothing before the deadline; with what `describe` returns.
    """
    deadline = time.monotonic() + deadline_seconds
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        assert time.monotonic() < deadline, (
            f"{what}: not within {deadline_seconds:.0f} s {describe()}"
        )
        time.sleep(_POLL_SECONDS)
