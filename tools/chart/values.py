"""Types and limits of the chart's values; values.yaml has the defaults and the descriptions."""

from typing import Annotated, Any, Final, Literal

from ddp_operator.job.pods.fabrics import SideCars as OperatorSideCars
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Object = dict[str, Any]
"""Part of a Kubernetes object. The API server checks it."""
Texts = dict[str, str]

_SideCar = Annotated[
    str,
    Field(pattern=f"^$|{OperatorSideCars.model_json_schema()['properties']['tcpx']['pattern']}"),
]


class _Values(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True)


class Image(_Values):
    """Values of `image`."""

    registry: str
    repository: str = Field(min_length=1)
    tag: str
    digest: str = Field(pattern="^(sha256:[0-9a-f]{64})?$")
    pull_secrets: list[Texts]


class Crds(_Values):
    """Values of `crds`."""

    enabled: bool
    keep: bool


class AdmissionPolicy(_Values):
    """Values of `admissionPolicy`."""

    enabled: bool
    denied_namespaces: list[str]
    host_paths: list[Annotated[str, Field(pattern="^/")]]
    host_network: bool
    capabilities: list[Annotated[str, Field(pattern="^[A-Z_]+$")]]


class NetworkPolicy(_Values):
    """Values of `networkPolicy`."""

    enabled: bool
    metrics_from: Texts


class Auth(_Values):
    """Values of `metrics.auth`."""

    enabled: bool
    certificate_secret: str = Field(min_length=1)


class Monitor(_Values):
    """Values of `metrics.monitor`."""

    kind: Literal["", "PodMonitor", "ServiceMonitor"]
    interval: str = Field(pattern="^[0-9]+(ms|s|m)$")
    labels: Texts
    endpoint: Object


class Extra(_Values):
    """Values of `metrics.alerts` and of `metrics.dashboard`."""

    enabled: bool
    labels: Texts


class Metrics(_Values):
    """Values of `metrics`."""

    jobs: int = Field(ge=0, le=10_000)
    auth: Auth
    monitor: Monitor
    alerts: Extra
    dashboard: Extra


class SideCars(_Values):
    """Values of `sideCars`."""

    tcpx: _SideCar
    tcpxo: _SideCar


class Values(_Values):
    """All values of the chart."""

    image: Image
    replicas: int = Field(ge=1, le=16)
    resources: Object
    watch_namespace: str = Field(pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$")
    test_namespace: str = Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
    leader_election: bool
    progress_poll_seconds: float = Field(ge=0.1, le=3600)
    log_format: Literal["text", "json"]
    node_selector: Texts
    tolerations: list[Object]
    affinity: Object
    topology_spread_constraints: list[Object]
    priority_class_name: str
    pod_disruption_budget: bool
    crds: Crds
    user_roles: bool
    admission_policy: AdmissionPolicy
    isolation: Literal["None", "Job"]
    network_policy: NetworkPolicy
    metrics: Metrics
    dranet: bool
    compute_domains: bool
    side_cars: SideCars
    gangs: bool
    multikueue: bool
    priority_boost: int = Field(ge=0, le=1000)
    extra_labels: Texts
    extra_annotations: Texts
    extra_args: list[str]
    extra_env: list[Object]
    extra_objects: list[Object]
    global_: Object = Field(
        default={}, alias="global", description="Values that a parent chart shares; unused here."
    )
    enabled: bool = Field(
        default=True, description="The condition of this chart as a dependency of a parent chart."
    )


OF_PARENTS: Final = frozenset({"global", "enabled"})
"""Values that only a parent chart sets, so values.yaml does not have them."""
