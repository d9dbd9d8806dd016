"""Mistakes of users, and the answers of kubectl and the job's status."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import yaml

from tests.e2e.jobs import Job, digits_job
from tests.e2e.kubectl import Kubectl, Manifest, wait_for


def _refusal(kubectl: Kubectl, manifest: Manifest) -> str:
    """Return the error of `kubectl apply` for a manifest that is refused."""
    result = kubectl.attempt("apply", "--filename", "-", stdin=yaml.safe_dump(manifest))
    assert result.returncode != 0, "kubectl took it"
    return result.stderr


def test_wrong_image_is_named_and_can_be_corrected(kubectl: Kubectl) -> None:
    image = "ddp-trainer:does-not-exist"
    kubectl.apply(digits_job("mended", "--epochs=1", image=image))
    job = Job(kubectl, "mended")
    wait_for(
        lambda: job.status().reason in ("ErrImagePull", "ImagePullBackOff"),
        what="reason in the status",
        describe=job.status,
    )
    status = job.status()
    assert status.phase == "Starting"
    assert image in status.message
    assert "mended-0-" in status.message
    told = [event for event in job.events() if event["type"] == "Warning"]
    assert told
    assert image in told[0]["message"]

    # The trainer refuses its configuration: at once, permanently, and with its own message.
    kubectl.apply(digits_job("refused", "--workload=nonsense"))
    refused = Job(kubectl, "refused").wait_until("Failed")
    assert refused.reason == "ConfigurationError"
    assert "--workload nonsense is unknown: choose from digits" in refused.message
    assert (refused.restarts, refused.attempt) == (0, 0)
    assert refused.failures[0].exit_code == 64

    kubectl.apply(digits_job("mended", "--epochs=1"))
    status = job.wait_until("Succeeded")
    assert (status.attempt, status.restarts, status.disruptions) == (1, 0, 0)


def test_kubectl_names_the_field_of_a_typing_error(kubectl: Kubectl) -> None:
    said = _refusal(kubectl, digits_job("typo", replica=2))
    assert "unknown field" in said
    assert "replica" in said


def test_kubectl_names_the_field_of_a_bad_value_and_what_is_allowed(kubectl: Kubectl) -> None:
    said = _refusal(kubectl, digits_job("bad", backend="mpi"))
    assert 'spec.backend: Unsupported value: "mpi"' in said
    assert "gloo" in said
    assert "spec.replicas" in _refusal(kubectl, digits_job("bad", replicas=0))


def test_kubectl_says_which_rule_is_broken(kubectl: Kubectl) -> None:
    manifest: Any = deepcopy(digits_job("ranked"))
    manifest["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "RANK", "value": "0"}]
    said = _refusal(kubectl, manifest)
    assert "remove the variables that only the operator can set from the trainer's env" in said
