"""Actions of users on jobs, and on names that jobs need."""

from typing import Any

from ddp_operator.api.constants import LABEL_JOB_NAME, LABEL_SERVING
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity

from tests.good_manifests import container, template
from tests.simulation.history import Choices
from tests.simulation.simulation import Simulation
from tests.simulation.world.fleet import requesting_gpus
from tests.simulation.world.launchers import WITHOUT_LAUNCHER
from tests.simulation.world.server import REFUSED_IMAGE

_RULES: tuple[list[dict[str, Any]], ...] = (
    [],
    [],
    [{"exitCodes": [2], "action": "Ignore"}, {"messageRegex": "CUDA", "action": "RestartGang"}],
    [{"exitCodes": [139], "action": "FailJob"}, {"ranks": [0], "action": "RestartPod"}],
    [{"classes": ["Disruption"], "action": "RestartGang", "charged": True}],
    [{"reasons": ["Error"], "action": "RestartPod", "charged": False}],
)


TWO_PROCESSES_IN_POD_0 = {"indexes": ["0"], "nprocPerNode": 2}

_PLAIN_IMAGE = "registry.example/trainer:1"


def new_spec(choices: Choices) -> dict[str, Any]:
    """A job as a user may write it."""
    spec: dict[str, Any] = {
        "replicas": 1 + choices.upto(2),
        "restart": {
            "scope": choices.of(("Gang", "Pod", "InPlace", "Auto")),
            "maxRestarts": choices.upto(3),
            "rules": choices.of(_RULES),
        },
        "cleanPodPolicy": choices.of(("Running", "All", "None")),
    }
    one_of_eight = choices.upto(7)
    spec["suspend"] = one_of_eight == 7
    spec["successPolicy"] = "Rank0" if one_of_eight in (1, 3, 5) else "AllPods"
    if choices.upto(3) == 3:
        spec["activeDeadlineSeconds"] = 1500
    if choices.upto(3) == 3:
        spec["ttlSecondsAfterFinished"] = choices.of((300, 0))
    if choices.upto(1):
        spec["progressDeadlineSeconds"] = 60
    if choices.upto(1):
        spec["schedulingTimeoutSeconds"] = 30
    fields: dict[str, Any] = {"resources": {"limits": {"memory": "1Gi"}}} if choices.upto(1) else {}
    image = choices.of((_PLAIN_IMAGE, _PLAIN_IMAGE, _PLAIN_IMAGE, WITHOUT_LAUNCHER))
    tolerations = [{"operator": "Exists"}] if choices.upto(1) else []
    spec["template"] = template(container(**fields, image=image), tolerations=tolerations)
    if choices.upto(1):
        spec["isolation"] = "Job"
    if choices.upto(1):
        spec["overrides"] = [TWO_PROCESSES_IN_POD_0]
    if choices.upto(1):
        spec["scheduling"] = {"gang": "coscheduling"}
    if spec["restart"]["scope"] != "Gang" and choices.upto(1):
        spec["spares"] = 1 + choices.upto(1)
    if spec["restart"]["scope"] != "Gang" and choices.upto(1):
        spec["elastic"] = {
            "minReplicas": 1,
            "maxReplicas": choices.of((3, 4)),
            "shrinkAfterSeconds": choices.of((30, 0)),
            "growAfterSeconds": choices.of((60, 0)),
        }
    if "spares" in spec or "elastic" in spec:
        spec.pop("overrides", None)
    if "spares" in spec:
        spec.pop("scheduling", None)
    if choices.upto(1):
        spec["scheduling"] = {**spec.get("scheduling", {}), "topology": {"level": "block"}}
    return spec


def _for_fleet(simulation: Simulation, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a spec with pods that request GPUs, if the cluster's nodes have some."""
    fleet, request = simulation.server.fleet, simulation.gpu_request
    return requesting_gpus(spec, request) if fleet.has_gpus else spec


def the_job_is_suspended(simulation: Simulation, choices: Choices) -> None:
    del choices
    if simulation.server.job and not simulation.server.job["spec"].get("suspend"):
        simulation.server.edit_job({"suspend": True})
        simulation.log("a user suspends the job")


def the_job_is_resumed(simulation: Simulation, choices: Choices) -> None:
    """Maybe with other replicas."""
    if simulation.server.job and simulation.server.job["spec"].get("suspend"):
        if choices.upto(1):
            replicas = 1 + choices.upto(2)
            simulation.server.edit_job({"replicas": replicas})
            simulation.log(f"a user edits replicas: {replicas}")
        simulation.server.edit_job({"suspend": False})
        simulation.log("a user resumes the job")


def the_template_changes(simulation: Simulation, choices: Choices) -> None:
    if simulation.server.job:
        others = ("registry.example/trainer:2", _PLAIN_IMAGE)
        image = choices.of((*2 * others, WITHOUT_LAUNCHER, REFUSED_IMAGE))
        spec = _for_fleet(simulation, {"template": template(container(image=image))})
        simulation.server.edit_job(spec)
        simulation.log(f"a user edits the template: {image}")


INVALID_PATTERN = r"step (?P<step>\d+"
"""The API server accepts it: only the operator compiles it."""


def a_pattern_gets_a_typo(simulation: Simulation, choices: Choices) -> None:
    """Or it is corrected."""
    del choices
    if not correct_pattern(simulation):
        break_pattern(simulation)


def break_pattern(simulation: Simulation) -> None:
    """A user makes a mistake in a field that may change while the job runs."""
    if simulation.job() is not None:
        simulation.server.edit_job({"progress": {"logPattern": INVALID_PATTERN}})
        simulation.log("a user edits progress.logPattern, with a typo")


def correct_pattern(simulation: Simulation) -> bool:
    """A user corrects the mistake, if there is one."""
    job = simulation.server.job
    if job is None or "progress" not in job["spec"]:
        return False
    simulation.server.edit_job({"progress": None})
    simulation.log("a user corrects progress.logPattern")
    return True


def the_isolation_changes(simulation: Simulation, choices: Choices) -> None:
    if simulation.server.job:
        isolation = choices.of(("Job", "None"))
        simulation.server.edit_job({"isolation": isolation})
        simulation.log(f"a user edits isolation: {isolation}")


def the_budget_changes(simulation: Simulation, choices: Choices) -> None:
    """Or how many spares there are, where there are any; or how many pods, where they may."""
    if simulation.server.job and simulation.server.job["spec"].get("elastic") and choices.upto(1):
        replicas = 1 + choices.upto(2)
        simulation.server.edit_job({"replicas": replicas})
        simulation.log(f"a user scales the job: {replicas}")
    elif simulation.server.job and simulation.server.job["spec"].get("spares") and choices.upto(1):
        spares = choices.upto(2)
        simulation.server.edit_job({"spares": spares})
        simulation.log(f"a user edits spares: {spares}")
    elif simulation.server.job:
        limit = choices.upto(4)
        restart = {**simulation.server.job["spec"]["restart"], "maxRestarts": limit}
        simulation.server.edit_job({"restart": restart})
        simulation.log(f"a user edits maxRestarts: {limit}")


def the_job_is_deleted(simulation: Simulation, choices: Choices) -> None:
    """And, mostly, applied again at once, before its pods are gone."""
    if simulation.server.job is not None:
        simulation.server.remove_job()
        simulation.log("a user deletes the job")
        if choices.upto(3):
            a_job_is_applied(simulation, choices)


def a_job_is_applied(simulation: Simulation, choices: Choices) -> None:
    """Where none is, under the name of those before."""
    if simulation.server.job is None:
        apply(simulation, new_spec(choices))


def apply(simulation: Simulation, spec: dict[str, Any]) -> None:
    """A user applies a job."""
    spec = _for_fleet(simulation, spec)
    simulation.server.create_job(spec)
    simulation.log(f"a user applies {spec}")


def garbage_is_collected(simulation: Simulation, choices: Choices) -> None:
    """Pods of jobs that are gone go, too, and so do strangers."""
    del choices
    simulation.server.collect_garbage()
    simulation.server.remove_foreign_pods()


def a_foreign_pod_takes_a_name(simulation: Simulation, choices: Choices) -> None:
    """A pod of nobody bears a name that the job may need, with its labels or without."""
    job = simulation.job()
    if job is None:
        return
    status = job.status
    identity = Identity(choices.upto(2), status.attempt + choices.upto(1))
    manifest = manifests.pod(job, identity)
    labels = {**manifest["metadata"]["labels"], LABEL_SERVING: "false"}
    if choices.upto(1):
        del labels[LABEL_JOB_NAME]
    metadata = {**manifest["metadata"], "labels": labels, "ownerReferences": []}
    if simulation.key_of(manifest) not in simulation.server.pods:
        foreign = {**manifest, "metadata": metadata, "status": {"phase": "Running"}}
        simulation.server.store_pod(foreign)
        simulation.log(f"a foreign pod takes the name {identity.pod_name(job.name)}")
