"""JobSet and Kubeflow Trainer, built from Go modules, and the operator: each with its own jobs.

Their CRDs, webhooks and settings are those of their releases, but for what `SETTINGS` names.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ddp_operator import __version__
from ddp_operator.api.constants import LABEL_JOB_NAME

from tests.bench.server import workload
from tests.bench.server.client import BareClient, wait_for
from tests.bench.server.control_plane import jobs_path
from tests.bench.server.process import ControllerProcess, running_operator, running_program
from tests.bench.server.workload import Manifest
from tests.cluster import ControlPlane, foreign
from tests.cluster.cache import cache_dir
from tests.cluster.foreign import WebhookServer
from tests.cluster.node import Node
from tests.cluster.preparation import go_modules
from tests.cluster.preparation.go_modules import MODULES, GoPrograms
from tests.cluster.preparation.steps import Stage, go_programs, prepare
from tests.ports import free_port

SETTINGS = (
    "all: certificates of the tests; no leader election, no health and metrics servers",
    "JobSet: 500 requests a second, as released",
    "Trainer: 500 requests a second instead of 50; its torch runtime with our template",
    "kube-controller-manager: 1000 requests a second instead of 20, for all of them",
    "gang restarts: JobSet's maxRestarts, with backoffLimit 0; the same in the runtime",
)
"""Differences from the defaults, in lines of at most 80 characters."""

_MODULE = MODULES / "peers"
_JOBSET, _TRAINER = "sigs.k8s.io/jobset", "github.com/kubeflow/trainer/v2"
_JOBSET_API, _TRAINER_API = "jobset.x-k8s.io/v1alpha2", "trainer.kubeflow.org/v1alpha1"
_LABEL_JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
_RUNTIME = "ddp"
_RUNTIMES_PATH = f"/apis/{_TRAINER_API}/clustertrainingruntimes"
_REQUESTS_PER_SECOND = 500
_MAX_RESTARTS = 3


@dataclass(frozen=True)
class Project:
    """A kind of job, and the controllers that make pods of it."""

    kind: str
    version: str
    controllers: Sequence[str]
    pod_label: str
    """The label by which a pod names its job."""
    path: Callable[[str], str]
    """Returns the path of a namespace's jobs."""
    job: Callable[[str, str, int], Manifest]
    """Returns the job of a namespace, a name and a number of pods, which restart together."""


def projects() -> list[Project]:
    """Return the operator and its peers."""
    jobset, trainer = (go_modules.required_version(_MODULE, path) for path in (_JOBSET, _TRAINER))
    return [
        Project("DDPJob", __version__, ["operator"], LABEL_JOB_NAME, jobs_path, _ddpjob),
        Project(
            "JobSet",
            jobset,
            ["jobset"],
            _LABEL_JOBSET_NAME,
            lambda namespace: f"/apis/{_JOBSET_API}/namespaces/{namespace}/jobsets",
            _jobset,
        ),
        Project(
            "TrainJob",
            trainer,
            ["jobset", "trainer"],
            _LABEL_JOBSET_NAME,
            lambda namespace: f"/apis/{_TRAINER_API}/namespaces/{namespace}/trainjobs",
            _trainjob,
        ),
    ]


class Controllers:
    """The programs of all projects beside one API server; `install` first."""

    def __init__(self, control_plane: ControlPlane | Node, scratch: Path) -> None:
        self._control_plane = control_plane
        self._scratch = scratch
        self._webhooks = {
            name: WebhookServer(_certificates(scratch / name), free_port())
            for name in ("jobset", "trainer")
        }
        for webhooks in self._webhooks.values():
            webhooks.certify()
        build = GoPrograms(
            module=_MODULE,
            packages=[_JOBSET, f"{_TRAINER}/cmd/trainer-controller-manager"],
            into=cache_dir("peers") / "-".join(project.version for project in projects()[1:]),
        )
        self._build = go_programs(build, "JobSet and Kubeflow Trainer", Stage.API_SERVER, 300)
        self._programs = {
            "jobset": build.into / "jobset",
            "trainer": build.into / "trainer-controller-manager",
        }

    async def install(self, client: BareClient) -> None:
        """Build the programs, and create the CRDs, the runtime and the webhooks.

        Raises ClusterUnavailableError where this machine cannot have them.
        """
        self.install_crds()
        # Before the webhooks: nobody answers them yet.
        await _create_runtime(client)
        self.install_webhooks()

    def install_crds(self) -> None:
        """Build the programs, write their settings, and create the CRDs.

        Raises ClusterUnavailableError where this machine cannot have them.
        """
        go_modules.fetch_go()
        prepare([self._build])
        jobset, trainer = (go_modules.module_source(_MODULE, path) for path in (_JOBSET, _TRAINER))
        for _, manifest in self.manifests("CustomResourceDefinition"):
            foreign.create(self._control_plane.client, manifest)
        released = {
            "jobset": jobset / "config/components/manager",
            "trainer": trainer / "manifests/base/manager",
        }
        for name, folder in released.items():
            config = yaml.safe_load((folder / "controller_manager_config.yaml").read_text())
            self._config(name).write_text(json.dumps({**config, **self._settings(name)}))

    def install_webhooks(self) -> None:
        """Have the API server ask the controllers; from here on they have to run."""
        for name, manifest in self.manifests("WebhookConfiguration"):
            redirected = self._webhooks[name].redirected(manifest)
            foreign.create(self._control_plane.client, redirected)

    def manifests(self, kind: str) -> list[tuple[str, Any]]:
        """Return both projects' objects with this end of their kind, and the project's name."""
        jobset, trainer = (go_modules.module_source(_MODULE, path) for path in (_JOBSET, _TRAINER))
        folders = [("jobset", jobset / "config/default")]
        folders += [("trainer", trainer / "manifests/base" / part) for part in ("crds", "webhook")]
        found = [(name, each) for name, folder in folders for each in foreign.manifests(folder)]
        return [(name, each) for name, each in found if each["kind"].endswith(kind)]

    def command(self, name: str) -> list[str | Path]:
        """Return the command line of a controller."""
        options = (
            f"--config={self._config(name)}",
            f"--kubeconfig={self._control_plane.kubeconfig}",
        )
        temporary = f"TMPDIR={self._scratch / name}"
        return ["env", temporary, self._programs[name], *options, "--zap-log-level=2"]

    @contextmanager
    def running(self, project: Project, run: str) -> Iterator[list[ControllerProcess]]:
        """Run a project's controllers for the length of a `with` block; `run` names the logs."""
        with ExitStack() as stack:
            started = [self._controller(name, run) for name in project.controllers]
            yield [stack.enter_context(each) for each in started]

    def _controller(self, name: str, run: str) -> AbstractContextManager[ControllerProcess]:
        kubeconfig, log = self._control_plane.kubeconfig, self._scratch / f"{name}-{run}.log"
        if name == "operator":
            return running_operator(kubeconfig, log=log)
        return running_program(self.command(name), log=log)

    def _config(self, name: str) -> Path:
        return self._scratch / f"{name}.json"

    def _settings(self, name: str) -> Mapping[str, Any]:
        certificates = "internalCertManagement" if name == "jobset" else "certManagement"
        limit = {"qps": _REQUESTS_PER_SECOND, "burst": _REQUESTS_PER_SECOND}
        return {
            "leaderElection": {"leaderElect": False},
            certificates: {"enable": False},
            "health": {"healthProbeBindAddress": "0"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self._webhooks[name].port},
            "clientConnection": limit,
        }


def _certificates(temporary: Path) -> Path:
    """Return where both controllers look for them, below the folder of temporary files."""
    return temporary / "k8s-webhook-server/serving-certs"


async def _create_runtime(client: BareClient) -> None:
    async def served() -> bool:
        return await client.get(_RUNTIMES_PATH) is not None

    await wait_for(served, what="the CRDs are served")
    await client.create(_RUNTIMES_PATH, _runtime())


def _ddpjob(namespace: str, name: str, replicas: int) -> Manifest:
    return workload.job(namespace, name, replicas=replicas, scope="Gang")


def _jobset(namespace: str, name: str, replicas: int) -> Manifest:
    return {
        "apiVersion": _JOBSET_API,
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": _jobset_spec(workload.template(), replicas),
    }


def _jobset_spec(template: Manifest, replicas: int) -> Manifest:
    template["spec"]["restartPolicy"] = "Never"
    job = {
        "completionMode": "Indexed",
        "parallelism": replicas,
        "completions": replicas,
        "backoffLimit": 0,
        "template": template,
    }
    return {
        "failurePolicy": {"maxRestarts": _MAX_RESTARTS},
        "replicatedJobs": [{"name": "node", "template": {"spec": job}}],
    }


def _trainjob(namespace: str, name: str, replicas: int) -> Manifest:
    return {
        "apiVersion": _TRAINER_API,
        "kind": "TrainJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"runtimeRef": {"name": _RUNTIME}, "trainer": {"numNodes": replicas}},
    }


def _runtime() -> Manifest:
    template = workload.template()
    template["spec"]["containers"][0]["name"] = "node"
    spec = _jobset_spec(template, 1)
    (replicated,) = spec["replicatedJobs"]
    ancestor = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    replicated["template"]["metadata"] = {"labels": ancestor}
    return {
        "apiVersion": _TRAINER_API,
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": _RUNTIME, "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": spec}},
    }
