"""A scheduler with the plugin Coscheduling, as a process beside a control plane."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.cluster import ControlPlane
from tests.cluster.client import ApiClient, wait_until
from tests.cluster.components import START_DEADLINE_S
from tests.cluster.foreign import create, documents, location
from tests.cluster.preparation import coscheduling
from tests.integration.queues.queue import is_true

SCHEDULER: Final = "gangs"
"""The scheduler's name in a pod's template."""


def start(beside: ControlPlane) -> None:
    """Start a scheduler with the plugin, and its controller of PodGroups.

    Raises ClusterUnavailableError if they are not built.
    """
    programs = coscheduling.find()
    plugin = {"name": "Coscheduling"}
    plugins = {
        "multiPoint": {"enabled": [plugin]},
        "queueSort": {"enabled": [plugin], "disabled": [{"name": "*"}]},
    }
    # Pods hold their nodes this long for the rest of their group.
    settings = {**plugin, "args": {"permitWaitingTimeSeconds": 2}}
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(beside.kubeconfig), "qps": 100, "burst": 200},
        "profiles": [{"schedulerName": SCHEDULER, "plugins": plugins, "pluginConfig": [settings]}],
    }
    file = beside.logs.parent / "coscheduling.json"
    file.write_text(json.dumps(config))
    _install(beside.client, coscheduling.crds())
    # The plugin misses free nodes, so a gang waits until the scheduler retries all pods.
    options = [f"--config={file}", "--secure-port=0", "--pod-max-in-unschedulable-pods-duration=5s"]
    beside.spawn_beside("coscheduling", [programs / "scheduler", *options])
    options = [f"--kubeconfig={beside.kubeconfig}", "--metricsAddr=0", "--probeAddr=0"]
    beside.spawn_beside("coscheduling-controller", [programs / "controller", *options])


def _install(client: ApiClient, files: Sequence[Path]) -> None:
    """Create CRDs, and wait until they are served."""
    definitions = [d for file in files for d in documents(file.read_text())]
    for definition in definitions:
        create(client, definition)

    def served() -> bool:
        stored = [client.get(location(definition)) for definition in definitions]
        return all(is_true(definition, "Established") for definition in stored)

    wait_until(served, what="CRDs of Coscheduling", deadline_s=START_DEADLINE_S)
