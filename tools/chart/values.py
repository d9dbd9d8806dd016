"""What may be said to the chart, each value with its default and its meaning: `values.yaml`, its
schema and the chart's README all come from here.
"""

from typing import Annotated, Any, Final, Literal

from ddp_operator.job.pods.fabrics import SideCars as OperatorsSideCars
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Object = dict[str, Any]
"""Of Kubernetes, which checks it."""
Texts = dict[str, str]

_NAMESPACE: Final = r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$"
_SIDE_CAR: Final = f"^$|{OperatorsSideCars.model_json_schema()['properties']['tcpx']['pattern']}"
_PODS: Final = {"app.kubernetes.io/name": "ddp-operator"}


class _Values(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", frozen=True, populate_by_name=True
    )


class Image(_Values):
    """The operator's image."""

    registry: str = Field(
        default="", description="Put before the repository, such as ghcr.io/example."
    )
    repository: str = Field(default="ddp-operator", min_length=1, description="Its name there.")
    tag: str = Field(default="", description="By default the chart's appVersion.")
    digest: str = Field(
        default="",
        pattern="^(sha256:[0-9a-f]{64})?$",
        description="Such as sha256:…; counts where a tag is given besides.",
    )
    pull_secrets: list[Texts] = Field(
        default=[], description="Secrets of the operator's namespace to pull it with: - name: …"
    )


class Crds(_Values):
    """The CustomResourceDefinition of DDPJobs."""

    enabled: bool = Field(
        default=True, description="Install it, and upgrade it with the chart. One release has it."
    )
    keep: bool = Field(
        default=True, description="Leave it, and with it all jobs, when the release is uninstalled."
    )


class NetworkPolicy(_Values):
    """Who may come in to the operator."""

    enabled: bool = Field(default=False, description="Only those below, and only for metrics.")
    metrics_from: Texts = Field(
        default={"metrics": "enabled"}, description="Labels of the namespaces that may see metrics."
    )


class Auth(_Values):
    """Who may see the metrics."""

    enabled: bool = Field(
        default=False,
        description="By TLS, and only those whom the API server lets get /metrics: bind their "
        "ServiceAccount to the ClusterRole ddp-operator-metrics-reader.",
    )
    certificate_secret: str = Field(
        default="ddp-operator-metrics",
        min_length=1,
        description="Of type kubernetes.io/tls, such as cert-manager makes.",
    )


class Monitor(_Values):
    """What tells a Prometheus operator of the metrics."""

    kind: Literal["", "PodMonitor", "ServiceMonitor"] = Field(
        default="",
        description="PodMonitor, or ServiceMonitor with a Service of its own; empty for none.",
    )
    interval: str = Field(
        default="30s", pattern="^[0-9]+(ms|s|m)$", description="How often the metrics are taken."
    )
    labels: Texts = Field(default={}, description="By which your Prometheus chooses its monitors.")
    endpoint: Object = Field(
        default={},
        description="More of the endpoint, such as relabelings; with auth, authorization and "
        "tlsConfig.",
    )


class Alerts(_Values):
    """A PrometheusRule."""

    enabled: bool = Field(
        default=False, description="No operator acts, jobs hang, jobs restart again and again, …"
    )
    labels: Texts = Field(default={}, description="By which your Prometheus chooses its rules.")


class Dashboard(_Values):
    """Dashboards for Grafana, in a ConfigMap: of all jobs, and of one."""

    enabled: bool = Field(
        default=False,
        description="Jobs by phase, goodput, restarts, time to recover, … One release has it.",
    )
    labels: Texts = Field(
        default={"grafana_dashboard": "1"}, description="By which your Grafana's side car finds it."
    )


class Metrics(_Values):
    """The operator's metrics, on port 8081."""

    jobs: int = Field(
        default=1000,
        ge=0,
        le=10_000,
        description="Jobs with metrics of their own, by name, those that train first; 0 for none.",
    )
    auth: Auth = Auth()
    monitor: Monitor = Monitor()
    alerts: Alerts = Alerts()
    dashboard: Dashboard = Dashboard()


class SideCars(_Values):
    """Images of the daemons that fabrics want; by default those of the operator's release."""

    tcpx: str = Field(
        default="",
        pattern=_SIDE_CAR,
        description="For accelerator.network: tcpx, with a tag or a digest.",
    )
    tcpxo: str = Field(
        default="", pattern=_SIDE_CAR, description="For accelerator.network: tcpxo, likewise."
    )


class Values(_Values):
    """All values. What is not here is refused, by its name."""

    image: Image = Image()
    replicas: int = Field(default=2, ge=1, le=16, description="One acts, the others stand by.")
    resources: Object = Field(
        default={"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        description="Of the operator's container.",
    )
    watch_namespace: Annotated[str, Field(pattern=_NAMESPACE)] = Field(
        default="",
        description="Serve the jobs of this namespace alone, by Roles there instead of "
        "ClusterRoles; another release may serve another one. Empty: all namespaces.",
    )
    leader_election: bool = Field(default=True, description="Two replicas and more need it.")
    progress_poll_seconds: float = Field(
        default=10, ge=0.1, le=3600, description="How often the trainers of running jobs are asked."
    )
    log_format: Literal["text", "json"] = Field(
        default="text",
        description="json: each record as an object with time, severity, logger, message.",
    )
    node_selector: Texts = Field(
        default={}, description="Of the operator's pods, as are those below."
    )
    tolerations: list[Object] = []
    affinity: Object = {}
    topology_spread_constraints: list[Object] = [
        {
            "topologyKey": "kubernetes.io/hostname",
            "maxSkew": 1,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": _PODS},
        }
    ]
    priority_class_name: str = ""
    pod_disruption_budget: bool = Field(
        default=True,
        description="At most one replica is evicted at a time.",
    )
    crds: Crds = Crds()
    user_roles: bool = Field(
        default=True,
        description="The cluster's roles admin, edit and view learn of DDPJobs. One release has "
        "it.",
    )
    admission_policy: bool = Field(
        default=False,
        description="Bounds the operator's rights to what RBAC cannot say. One release has it.",
    )
    network_policy: NetworkPolicy = NetworkPolicy()
    metrics: Metrics = Metrics()
    dranet: bool = Field(
        default=False, description="Let jobs claim network cards (accelerator.network: dranet)."
    )
    side_cars: SideCars = SideCars()
    gangs: bool = Field(
        default=False,
        description="Let jobs be gangs (scheduling.gang: native, coscheduling or volcano), of "
        "whichever scheduler the cluster has.",
    )
    extra_labels: Texts = Field(
        default={}, description="For every object, and the operator's pods."
    )
    extra_annotations: Texts = Field(
        default={}, description="For every object, and the operator's pods."
    )
    extra_args: list[str] = Field(
        default=[], description="More flags of the operator, such as --verbose."
    )
    extra_env: list[Object] = Field(
        default=[], description="More variables: - name: … and value: …"
    )
    extra_objects: list[Object] = Field(
        default=[], description="More objects to install; strings in them may be templates."
    )
    global_: Object = Field(
        default={},
        alias="global",
        description="Of a chart that this is a dependency of; not used here.",
    )
    enabled: bool = Field(
        default=True, description="For a chart that this is a dependency of, as its condition."
    )


OF_PARENTS: Final = ("global_", "enabled")
"""What Helm itself, or a chart above, reads."""
