"""A machine of a cluster as tests use it: its images, and what it offers to pods."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests.cluster.client import ApiClient
from tests.cluster.components import admin_client
from tests.cluster.errors import ClusterError
from tests.cluster.node_config import NodeConfig


class Machine:
    """A node with a containerd of its own."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config

    @property
    def node_name(self) -> str:
        """The name of its Node object."""
        return self._config.control_plane.node_name

    @property
    def client(self) -> ApiClient:
        """A minimal client with all rights."""
        return admin_client(self._config.control_plane)

    def is_ready(self) -> bool:
        """Tell whether the scheduler gives pods to the node."""
        try:
            node = self.client.get(f"/api/v1/nodes/{self.node_name}")
        except OSError:
            return False
        conditions: list[dict[str, Any]] = node["status"].get("conditions", [])
        tainted = node["spec"].get("taints")
        return not tainted and any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in conditions
        )

    def images(self) -> set[str]:
        """Return the full names of the images that pods can use."""
        return set(self._ctr("images", "ls", "-q").split())

    def load_image(self, archive: Path) -> None:
        """Load a docker-archive or OCI archive; large ones take half a minute."""
        self._ctr("images", "import", str(archive))

    def tag_image(self, name: str, *, as_name: str) -> None:
        """Let pods use the loaded image ``name`` also under another full name."""
        self._ctr("images", "tag", "--force", name, as_name)

    def remove_image(self, name: str) -> None:
        """Take an image's name away, and its content unless something else uses it."""
        self._ctr("images", "rm", name)

    def set_capacity(self, resource: str, quantity: int) -> None:
        """Make the node advertise a resource it does not have, such as ``nvidia.com/gpu``."""
        figures = {resource: str(quantity)}
        self.client.request(
            "PATCH",
            f"/api/v1/nodes/{self.node_name}/status",
            {"status": {"capacity": figures, "allocatable": figures}},
            content_type="application/merge-patch+json",
        )

    def _ctr(self, *words: str) -> str:
        result = subprocess.run(
            ["ctr", "--address", self._config.containerd_socket, "-n", "k8s.io", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise ClusterError(f"ctr {' '.join(words)}: {result.stderr.strip()}")
        return result.stdout
