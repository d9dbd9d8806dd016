"""A job can name neither the operator's account nor a Secret with tokens, in any field."""

from typing import Any, Final

import pytest
import yaml
from ddp_operator.api.constants import SERVICE_ACCOUNT, TOKEN_SECRETS
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.job.pods.access import SECRET_PREFIX
from ddp_operator.process import startup

from tests.good_manifests import Json, container, template
from tests.unit.job.builders import stored_job
from tests.unit.kube.bad_requests import MANIFESTS

SECRET: Final = f"{SECRET_PREFIX}0123456789"
_NAMED: Final = {"name": SECRET}
_ENV: Final = [{"name": "A", "valueFrom": {"secretKeyRef": {**_NAMED, "key": "a"}}}]
_PROJECTED: Final = {"sources": [{"configMap": {"name": "a"}}, {"secret": _NAMED}]}
_CSI: Final = {"driver": "file.csi.azure.com", "volumeAttributes": {"secretname": SECRET}}


def volume(**source: Any) -> Json:
    return template(volumes=[{"name": "a", **source}])


@pytest.mark.parametrize(
    ("pods", "path"),
    [
        (template(container(env=_ENV)), "containers[0].env[0].valueFrom.secretKeyRef.name"),
        (
            template(container(envFrom=[{"secretRef": _NAMED}])),
            "containers[0].envFrom[0].secretRef.name",
        ),
        (
            template(container(), container("logs", env=_ENV)),
            "containers[1].env[0].valueFrom.secretKeyRef.name",
        ),
        (
            template(initContainers=[container("first", env=_ENV)]),
            "initContainers[0].env[0].valueFrom.secretKeyRef.name",
        ),
        (template(imagePullSecrets=[_NAMED]), "imagePullSecrets[0].name"),
        (volume(secret={"secretName": TOKEN_SECRETS}), "volumes[0].secret.secretName"),
        (volume(projected=_PROJECTED), "volumes[0].projected.sources[1].secret.name"),
        (
            volume(csi={"driver": "a", "nodePublishSecretRef": _NAMED}),
            "volumes[0].csi.nodePublishSecretRef.name",
        ),
        (volume(csi=_CSI), "volumes[0].csi.volumeAttributes.secretname"),
        (
            volume(fieldOfTomorrow={"secretRef": _NAMED}),
            "volumes[0].fieldOfTomorrow.secretRef.name",
        ),
    ],
)
def test_secret_with_tokens_is_refused_and_its_field_named(pods: Json, path: str) -> None:
    with pytest.raises(InvalidJobError) as refusal:
        DDPJob.parse(stored_job(template=pods))
    assert str(refusal.value).endswith(f": spec.template.spec.{path}")
    assert "remove it" in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"serviceAccountName": SERVICE_ACCOUNT}, "spec.template.spec.serviceAccountName: "),
        ({"imagePullSecrets": [_NAMED]}, "spec.template.spec: names a Secret"),
    ],
)
def test_override_with_the_operators_names_is_refused(changes: Json, message: str) -> None:
    own = {"indexes": ["1"], "template": {"spec": changes}}
    with pytest.raises(InvalidJobError) as refusal:
        DDPJob.parse(stored_job(replicas=2, overrides=[own]))
    assert f"spec.overrides[0] as applied to its pods: {message}" in str(refusal.value)


def test_path_of_many_long_names_is_cut() -> None:
    node: Any = SECRET
    for _ in range(100):
        node = {"n" * 1000: node}
    with pytest.raises(InvalidJobError) as refusal:
        DDPJob.parse(stored_job(template=template(affinity={"unknown": node})))
    assert len(str(refusal.value)) < 600


def test_names_are_those_of_the_installation() -> None:
    deployment = yaml.safe_load((MANIFESTS / "install/deployment.yaml").read_text())
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == SERVICE_ACCOUNT
    assert startup.SECRET_NAME.startswith(TOKEN_SECRETS)
    assert SECRET_PREFIX.startswith(TOKEN_SECRETS)
