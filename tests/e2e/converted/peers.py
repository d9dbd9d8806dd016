"""The controllers of JobSet and Kubeflow Trainer beside the test cluster, for a while."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.server.peers import Controllers
from tests.cluster import Cluster, provider
from tests.cluster.node import Node
from tests.cluster.processes import stop
from tests.e2e.converted import inputs
from tests.e2e.kubectl import Kubectl, wait_for

_NAMES = ("jobset", "trainer")


@contextmanager
def running_peers(kubectl: Kubectl, scratch: Path, node: Cluster | None = None) -> Iterator[None]:
    """Run them for the length of a `with` block; their CRDs and all their jobs go at its end.

    They run beside `node`, by default the one that is running under the default name.
    """
    node = node or provider.running()
    assert isinstance(node, Node), "the controllers run beside a bare node alone"
    assert node.kubeconfig == kubectl.kubeconfig, "another cluster runs by that name"
    controllers = Controllers(node, scratch)
    processes = []
    try:
        controllers.install_crds()
        # A controller ends if one of its kinds is not served yet.
        kubectl.run("wait", "--for=condition=Established", "crd", "--all", "--timeout=80s")
        kubectl.apply(inputs.runtime())
        processes = [node.spawn_beside(name, controllers.command(name)) for name in _NAMES]
        controllers.install_webhooks()
        _wait_until_they_answer(kubectl)
        yield
    finally:
        # While the controllers run, which have finalizers on them.
        for jobs in ("trainjobs", "jobsets", "clustertrainingruntimes"):
            kubectl.attempt("delete", jobs, "--all-namespaces", "--all", "--timeout=60s")
        for kind in ("WebhookConfiguration", "CustomResourceDefinition"):
            for _, manifest in controllers.manifests(kind):
                name = manifest["metadata"]["name"]
                kubectl.attempt("delete", manifest["kind"], name, "--timeout=60s")
        stop(processes)


def _wait_until_they_answer(kubectl: Kubectl) -> None:
    """Ask both webhooks for nothing."""
    for one in (inputs.of_peers()[0], inputs.of_peers()[-1]):
        manifest = kubectl.within("default")

        def answers(one: inputs.Input = one, kubectl: Kubectl = manifest) -> bool:
            try:
                kubectl.run("create", "--dry-run=server", "-f", "-", stdin=_text(one))
            except AssertionError:
                return False
            return True

        wait_for(answers, what=f"the webhooks of {one.kind}")


def _text(one: inputs.Input) -> str:
    return json.dumps(one.manifest)
