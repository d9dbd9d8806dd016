"""Starting the parts of a cluster in order, and noticing at once when one of them gives up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cluster.client import ApiClient, wait_until
from tests.cluster.control_plane_config import (
    ControlPlaneConfig,
    apiserver_argv,
    controller_manager_argv,
    etcd_argv,
    scheduler_argv,
    tokens,
    write_credentials,
    write_kubeconfigs,
)
from tests.cluster.processes import ProcessId, spawn

# A loaded machine may take many times the usual three seconds.
START_DEADLINE_S = 90.0

# Programs in Go then collect garbage when their memory has grown fivefold, not twofold: several
# clusters share the cores.
_SPARING = {"GOGC": "400"}


class Components:
    """The processes of one instance, by name; each writes its own log file."""

    def __init__(self, folder: Path, *, record: Callable[[str, ProcessId], None]) -> None:
        self._folder = folder
        self._record = record
        self._running: dict[str, ProcessId] = {}

    def spawn(self, name: str, argv: list[str | Path]) -> None:
        """Start a component and record it."""
        log = self._log(name)
        identity = ProcessId.of(spawn(argv, log=log, marker=self._folder, env=_SPARING))
        if identity is not None:
            self._running[name] = identity
            self._record(name, identity)

    def process(self, name: str) -> ProcessId:
        """Return the process last started under ``name``."""
        return self._running[name]

    def death(self, *names: str) -> str | None:
        """Return why to give up: the last words of the first of ``names`` that has ended."""
        for name in names:
            process = self._running.get(name)
            if process is None or not process.alive():
                return f"{name} ended: {last_words(self._log(name))}"
        return None

    def _log(self, name: str) -> Path:
        return self._folder / "logs" / f"{name}.log"


def last_words(log: Path) -> str:
    """Return a log's last lines in one: the log itself goes away with its cluster."""
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return " | ".join(lines[-3:]) or "without a word"


def admin_client(config: ControlPlaneConfig) -> ApiClient:
    """Return a client with all rights."""
    return ApiClient(config.server, config.certificate, tokens(config.folder)["admin"])


def start_apiserver(components: Components, config: ControlPlaneConfig) -> None:
    """Start the API server (again) and wait until it is ready; etcd has to run."""
    components.spawn("kube-apiserver", apiserver_argv(config))
    _wait_for_apiserver(components, config)


def begin_control_plane(components: Components, config: ControlPlaneConfig) -> None:
    """Start etcd and the API server from nothing, and leave them to it."""
    write_credentials(config)
    components.spawn("etcd", etcd_argv(config))
    components.spawn("kube-apiserver", apiserver_argv(config))


def finish_control_plane(
    components: Components, config: ControlPlaneConfig, *, controllers: bool, scheduler: bool
) -> None:
    """Wait for what `begin_control_plane` started until objects can be created; start the rest."""
    _wait_for_apiserver(components, config)
    write_kubeconfigs(config)
    needed = ["kube-apiserver", "etcd"]
    what, path = "namespace default", "/api/v1/namespaces/default"
    if controllers:
        name = "kube-controller-manager"
        components.spawn(name, controller_manager_argv(config))
        needed.append(name)
        # They make it when they run. Before that they die of an API server that is down for 10 s.
        what, path = "controllers", f"{path}/serviceaccounts/default"
    if scheduler:
        components.spawn("kube-scheduler", scheduler_argv(config))
    wait_until(
        lambda: _exists(admin_client(config), path),
        what=what,
        deadline_s=START_DEADLINE_S,
        failed=lambda: components.death(*needed),
    )


def _wait_for_apiserver(components: Components, config: ControlPlaneConfig) -> None:
    wait_until(
        lambda: config.certificate.exists() and admin_client(config).ready(),
        what="API server",
        deadline_s=START_DEADLINE_S,
        failed=lambda: components.death("kube-apiserver", "etcd"),
    )


def _exists(client: ApiClient, path: str) -> bool:
    try:
        client.get(path)
    except OSError:
        return False
    return True
