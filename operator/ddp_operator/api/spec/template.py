"""The few fields of a pod template that the operator reads or extends.

All other fields are passed on: the API server checks them when pods are created. Both the CRD and
the parser have these shapes, so no other code must check whether a list is a list.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

# The lengths limit the cost of CEL rules that read a field. They are far beyond real use.
Quantity = Annotated[
    int | Annotated[str, Field(max_length=32)],
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": 32,
        }
    ),
]

RestartPolicy = Annotated[str, Field(max_length=16)]


class Shape(BaseModel):
    """Base of all shapes. Fields that are not named here are allowed and kept."""

    model_config = ConfigDict(alias_generator=to_camel, extra="allow", frozen=True, strict=True)


class EnvVar(Shape):
    """An environment variable."""

    name: Annotated[str, Field(max_length=256)]
    value: str | None = None


class VolumeMount(Shape):
    """A mount, to check whether a path is in use."""

    mount_path: Annotated[str, Field(max_length=4096)] | None = None


class Resources(Shape):
    """A container's resources; GPUs are in the limits."""

    limits: Annotated[dict[str, Quantity], Field(max_length=32)] | None = None


class InitContainer(Shape):
    """A container that runs before the others, or next to them."""

    image: str | None = None
    command: Annotated[list[str], Field(max_length=1024)] | None = None
    args: Annotated[list[str], Field(max_length=1024)] | None = None
    working_dir: str | None = None
    env: Annotated[list[EnvVar], Field(max_length=512)] | None = None
    restart_policy_rules: list[dict[str, Any]] | None = None


class Container(InitContainer):
    """A container, possibly the one that trains."""

    name: Annotated[str, Field(max_length=63)]
    resources: Resources | None = None
    volume_mounts: Annotated[list[VolumeMount], Field(max_length=512)] | None = None
    restart_policy: RestartPolicy | None = None


class SecretSource(Shape):
    """A Secret as the source of a volume."""

    secret_name: Annotated[str, Field(max_length=253)] | None = None


class Volume(Shape):
    """A volume; claims, host folders and other sources are passed on."""

    secret: SecretSource | None = None


class PodAffinity(Shape):
    """Pods to be near."""

    required_during_scheduling_ignored_during_execution: list[dict[str, Any]] | None = None
    preferred_during_scheduling_ignored_during_execution: list[dict[str, Any]] | None = None


class Affinity(Shape):
    """Where a pod must or should run."""

    pod_affinity: PodAffinity | None = None


class PodSpec(Shape):
    """A pod's spec."""

    containers: Annotated[list[Container], Field(min_length=1, max_length=16)]
    init_containers: Annotated[list[InitContainer], Field(max_length=64)] | None = None
    restart_policy: RestartPolicy | None = None
    hostname: Annotated[str, Field(max_length=63)] | None = None
    subdomain: Annotated[str, Field(max_length=63)] | None = None
    host_network: bool | None = None
    volumes: Annotated[list[Volume], Field(max_length=512)] | None = None
    service_account_name: Annotated[str, Field(max_length=253)] | None = None
    service_account: Annotated[str, Field(max_length=253)] | None = None
    affinity: Affinity | None = None
    node_selector: dict[str, str] | None = None
    tolerations: list[dict[str, Any]] | None = None


class Metadata(Shape):
    """A pod's metadata."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class PodTemplate(Shape):
    """A pod template."""

    metadata: Metadata | None = None
    spec: PodSpec
