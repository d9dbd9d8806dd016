"""Releases of the chart on a test's API server, and the operators that they would run."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml
from ddp_operator.kube import ApiClient

from tests.good_manifests import Json
from tests.integration.operator_process import running_operator
from tools.chart.generated import CHART

NAME = "ddp"


class Release:
    """The release `ddp` of a namespace. Helm works in threads, because it waits for the server."""

    def __init__(self, kubeconfig: Path, admin: ApiClient, namespace: str) -> None:
        self._kubeconfig = kubeconfig
        self._admin = admin
        self.namespace = namespace

    async def install(self, values: Json | None = None) -> None:
        await self._do("install", CHART, NAME, values, create_namespace=True)

    async def upgrade(self, values: Json | None = None) -> None:
        await self._do("upgrade", CHART, NAME, values)

    async def rollback(self) -> None:
        await self._do("rollback", NAME)

    async def uninstall(self) -> None:
        await self._do("uninstall", NAME, wait="legacy")

    async def test(self) -> None:
        await self._do("test", NAME)

    async def _do(self, action: str, *arguments: Any, **options: Any) -> None:
        def call() -> None:
            with helm.Config(kubeconfig_path=self._kubeconfig, namespace=self.namespace) as config:
                getattr(config, action)(*arguments, **options)

        await asyncio.to_thread(call)

    async def deployment(self) -> Json:
        """Return the operator's Deployment."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/ddp-operator"
        found: Json = await self._admin.request("GET", path)
        return found

    async def arguments(self) -> list[str]:
        """Return the operator's arguments."""
        pod = (await self.deployment())["spec"]["template"]["spec"]
        [container] = pod["containers"]
        return list(container["args"])

    async def kubeconfig_of(self, account: str, folder: Path) -> Path:
        """Write a kubeconfig with the rights of one of the release's ServiceAccounts."""
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        body: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = (await self._admin.request("POST", path, body=body))["status"]["token"]
        config = yaml.safe_load(self._kubeconfig.read_text())
        for user in config["users"]:
            user["user"] = {"token": token}
        for context in config["contexts"]:
            context["context"]["namespace"] = self.namespace
        written = folder / f"{self.namespace}-{account}"
        written.write_text(json.dumps(config))
        return written

    @asynccontextmanager
    async def operator(self, kubeconfig: Path) -> AsyncIterator[None]:
        """Run the operator with the Deployment's arguments and the rights in a kubeconfig.

        It ends in order, which releases the Lease for the next one.
        """
        command, *options = await self.arguments()
        assert command == "run"
        log = kubeconfig.with_suffix(".log")
        with running_operator(kubeconfig, log, namespace=None, options=options) as process:
            yield
            process.terminate()
            assert await process.exit_code() == 0
