"""A control plane without nodes, as plain processes: for integration tests and benchmarks.

It needs no root, starts in a few seconds, and any number of them run side by side.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.client import ApiClient
from tests.cluster.components import (
    Components,
    admin_client,
    begin_control_plane,
    finish_control_plane,
    start_apiserver,
)
from tests.cluster.control_plane_config import ControlPlaneConfig
from tests.cluster.errors import ClusterError
from tests.cluster.preparation import binaries, packages
from tests.cluster.processes import ProcessId, stop
from tests.cluster.state import Instance, create
from tests.cluster.teardown import remove, remove_named, sweep


class ControlPlane:
    """A running control plane; made by `control_plane` or `start`."""

    def __init__(self, instance: Instance, config: ControlPlaneConfig) -> None:
        self._instance = instance
        self._config = config
        self._components = Components(instance.folder, record=instance.record)

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of a user who may do everything."""
        return self._config.kubeconfig("admin")

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self._config.server

    @property
    def logs(self) -> Path:
        """The folder of the components' log files."""
        return self._instance.logs

    @property
    def client(self) -> ApiClient:
        """A minimal client with all rights."""
        return admin_client(self._config)

    def kubeconfig_for(self, user: str) -> Path:
        """Return the kubeconfig of one of `control_plane_config.USERS`, such as ``operator``."""
        path = self._config.kubeconfig(user)
        if not path.exists():
            raise ClusterError(f"the test control plane has no user {user!r}")
        return path

    def process(self, name: str) -> ProcessId:
        """Return the process of a component, such as ``kube-controller-manager``."""
        return self._components.process(name)

    def spawn_beside(self, name: str, argv: Sequence[str | Path]) -> ProcessId:
        """Start a program that uses this API server; it ends with the control plane."""
        self._components.spawn(name, [*argv])
        return self.process(name)

    def stop_apiserver(self) -> None:
        """Kill the API server without warning; connections to it break."""
        if left := stop([self._components.process("kube-apiserver")]):
            raise ClusterError(f"the API server survived SIGKILL: {left}")

    def start_apiserver(self) -> None:
        """Start the API server again on the same port and data, and wait until it is ready."""
        start_apiserver(self._components, self._config)

    def restart_apiserver(self) -> None:
        """Kill the API server and start it again: watches break and the port stays the same."""
        self.stop_apiserver()
        self.start_apiserver()

    def bring_up(self, *, controllers: bool, scheduler: bool) -> None:
        """Start every component and wait until objects can be created."""
        begin_control_plane(self._components, self._config)
        finish_control_plane(
            self._components, self._config, controllers=controllers, scheduler=scheduler
        )


def start(
    name: str,
    *,
    controllers: bool,
    scheduler: bool,
    owner: ProcessId | None,
    **settings: Any,
) -> ControlPlane:
    """Start a control plane that runs until it is removed by name, or its owner ends.

    `settings`: further fields of its `ControlPlaneConfig`.
    """
    packages.check(packages.CONTROL_PLANE)
    programs = binaries.find(binaries.API_SERVER)
    instance = create(name, "control-plane", owner=owner, ports=3)
    port, etcd_port, etcd_peer_port = instance.ports
    running = ControlPlane(
        instance,
        ControlPlaneConfig(
            binaries=programs,
            folder=instance.folder,
            data_dir=instance.data_dir,
            address="127.0.0.1",
            bind_address="127.0.0.1",
            port=port,
            etcd_port=etcd_port,
            etcd_peer_port=etcd_peer_port,
            has_nodes=False,
            **settings,
        ),
    )
    try:
        running.bring_up(controllers=controllers, scheduler=scheduler)
    except BaseException:
        remove(instance)
        raise
    return running


@contextmanager
def control_plane(
    *,
    controllers: bool = True,
    scheduler: bool = False,
    collects_pods: bool = False,
    watch_lists: bool = True,
) -> Iterator[ControlPlane]:
    """Run a control plane of one's own for the length of a ``with`` block.

    Without ``controllers`` nothing happens but what the API server does itself: no Endpoints, no
    garbage collection of dependents, no namespace deletion. With ``collects_pods`` pods go that can
    run nowhere, as in a real cluster; their nodes have to exist. Without ``watch_lists`` a client
    may watch without a resource version also where etcd is 3.4. The next control plane that
    starts removes one that was killed.

    Raises ClusterUnavailableError when this machine cannot have one.
    """
    sweep()
    name = f"cp-{secrets.token_hex(4)}"
    running = start(
        name,
        controllers=controllers,
        scheduler=scheduler,
        owner=ProcessId.current(),
        collects_pods=collects_pods,
        watch_lists=watch_lists,
    )
    try:
        yield running
    finally:
        remove_named(name)
