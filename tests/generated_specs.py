"""DDPJob specs that schema and parser accept, and that keep or break any of the rules."""

from ddp_operator.api.constants import (
    ARCHITECTURE_LABEL,
    GKE_ACCELERATOR_LABEL,
    GKE_PARTITION_LABEL,
    GKE_SHARING_LABEL,
    RESERVED_ENVIRONMENT,
)
from hypothesis import strategies as st

from tests.bad_manifests import BAD_MANIFESTS
from tests.good_manifests import GOOD_MANIFESTS, Json

_env = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from([*RESERVED_ENVIRONMENT, "MASTER_ADDR", "A"])}),
    max_size=3,
)
_amount = st.integers(-1, 12) | st.sampled_from(
    [
        *("0", "1", "2", "8", "500m", "-1", "1e3", "2.0", "", "٣", "1\n", "128", "129"),
        *("99999999999", "1Gi", ".5Gi", "1E9", "+2e9", "1025Mi", "-1Gi", "2Gib"),
    ]
)
_limits = st.dictionaries(
    st.sampled_from(
        [
            "cpu",
            "memory",
            "nvidia.com/gpu",
            "nvidia.com/mig-1g.10gb",
            "nvidia.com/gpumem",
            "amd.com/gpu",
        ]
    ),
    _amount,
    max_size=3,
)
_restart_rules = st.lists(st.just({"action": "Restart"}), max_size=1)
_NEAR = ["/ddp-memory/", "/ddp-memory/mine", "/data/../ddp-memory", "/ddp-memory2"]
_init_container = st.fixed_dictionaries(
    {"name": st.just("first")},
    optional={"restartPolicy": st.just("Always"), "restartPolicyRules": _restart_rules},
)
_command = st.lists(
    st.sampled_from(
        ["python", "/a/torchrun", "-mtorch.distributed.run", "bash", "-c", "torchrun a", "a.py"]
    ),
    max_size=3,
)
_container = st.fixed_dictionaries(
    {"name": st.sampled_from(["trainer", "main", "logs"])},
    optional={
        "env": _env,
        "command": _command,
        "args": _command,
        "resources": st.fixed_dictionaries({}, optional={"limits": _limits}),
        "restartPolicy": st.sampled_from(["Never", "Always", "OnFailure", ""]),
        "restartPolicyRules": _restart_rules,
        "volumeMounts": st.lists(
            st.fixed_dictionaries(
                {}, optional={"mountPath": st.sampled_from(["/", "/ddp-memory", *_NEAR])}
            ),
            max_size=2,
        ),
    },
)
# The API server refuses pods with two containers of one name.
_containers = st.lists(_container, min_size=1, max_size=3, unique_by=lambda c: str(c["name"]))
_LABELS = [GKE_PARTITION_LABEL, GKE_SHARING_LABEL, ARCHITECTURE_LABEL]
_VALUES = st.sampled_from(["x", "amd64", "arm64"])
_accelerator = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["nvidia-l4", "nvidia-gb200", "nvidia-b200", "nvidia-of-tomorrow"]),
        "computeClass": st.just("gpus"),
        "provisioning": st.sampled_from(["standard", "spot", "queued", "reservation"]),
        "maxRunSeconds": st.sampled_from([30, 599, 600, 604_800, 604_801]),
        "reservation": st.fixed_dictionaries(
            {"name": st.just("ours")},
            optional={"blocks": st.just("one"), "subBlocks": st.just("two")},
        ),
        "count": st.sampled_from([1, 2, 4, 8, 9]),
        "network": st.sampled_from(["none", "auto", "tcpx", "rdma"]),
        "nodeSelector": st.dictionaries(
            st.sampled_from([*_LABELS, GKE_ACCELERATOR_LABEL, "disk"]), _VALUES, max_size=2
        ),
    },
)
_rule = st.fixed_dictionaries(
    {"action": st.sampled_from(["RestartPod", "RestartGang", "FailJob", "Ignore"])},
    optional={
        "exitCodes": st.just([3]),
        "reasons": st.just(["OOMKilled"]),
        "messageRegex": st.just("NaN"),
        "ranks": st.just([0]),
        "classes": st.just(["Application"]),
        "charged": st.booleans(),
    },
)
_override = st.fixed_dictionaries(
    {
        "indexes": st.lists(
            st.builds(lambda a, b: f"{a}-{b}", st.integers(0, 5), st.integers(0, 5))
            | st.integers(0, 5).map(str),
            min_size=1,
            max_size=3,
        )
    },
    optional={
        "nprocPerNode": st.just("auto") | st.integers(1, 3),
        "accelerator": _accelerator,
        "template": st.just({"spec": {"priority": 1}}),
    },
)
_restart = st.fixed_dictionaries(
    {},
    optional={
        "scope": st.sampled_from(["Gang", "Pod", "InPlace", "Auto"]),
        "rules": st.lists(_rule, max_size=3),
        "backoff": st.fixed_dictionaries(
            {}, optional={"initialSeconds": st.integers(0, 400), "maxSeconds": st.integers(0, 400)}
        ),
        "nodeFailureLimit": st.integers(0, 2),
        "slowRank": st.fixed_dictionaries(
            {},
            optional={
                "for": st.sampled_from(["0s", "1h0m", "0h00m1s"]),
                "action": st.sampled_from(["Report", "Replace"]),
            },
        ),
    },
)
_elastic = st.fixed_dictionaries(
    {},
    optional={"minReplicas": st.integers(1, 4), "maxReplicas": st.sampled_from([1, 3, 9_999])},
)
_scheduling = st.fixed_dictionaries(
    {},
    optional={
        "queueName": st.just("team-a"),
        "gang": st.sampled_from(["none", "native", "coscheduling", "volcano"]),
        "topology": st.just({"level": "block"}),
    },
)
_spec = st.fixed_dictionaries(
    {
        "template": st.fixed_dictionaries(
            {
                "spec": st.fixed_dictionaries(
                    {"containers": _containers},
                    optional={
                        "restartPolicy": st.sampled_from(["Never", "Always", "OnFailure", ""]),
                        "initContainers": st.lists(_init_container, max_size=1),
                        "hostname": st.just("h"),
                        "subdomain": st.just("s"),
                        "hostNetwork": st.booleans(),
                        "nodeSelector": st.dictionaries(
                            st.sampled_from(_LABELS), _VALUES, max_size=2
                        ),
                    },
                )
            },
            optional={
                "metadata": st.fixed_dictionaries(
                    {},
                    optional={
                        "labels": st.dictionaries(
                            st.sampled_from(["kueue.x-k8s.io/queue-name", "team"]), st.just("x")
                        ),
                        "annotations": st.dictionaries(
                            st.sampled_from(
                                [
                                    "kueue.x-k8s.io/podset-required-topology",
                                    "kubectl.kubernetes.io/default-container",
                                ]
                            ),
                            st.sampled_from(["x", "logs"]),
                        ),
                    },
                )
            },
        )
    },
    optional={
        "scheduling": _scheduling,
        "launcher": st.sampled_from(["auto", "inject"]),
        "nprocPerNode": st.just("auto") | st.integers(1, 12),
        "backend": st.sampled_from(["auto", "nccl", "gloo"]),
        "accelerator": _accelerator,
        "replicas": st.integers(1, 6),
        "overrides": st.lists(_override, max_size=3),
        "progress": st.sampled_from(
            [{"logPattern": p} for p in (r"(?P<step>\d+)", r"(?<step>\d+)", r"(?P<loss>\d+)")]
        ),
        "isolation": st.sampled_from(["None", "Job"]),
        "managedBy": st.sampled_from(["kueue.x-k8s.io/multikueue", "example.com/other"]),
        "statusPort": st.sampled_from([29500, 29502]),
        "restart": _restart,
        "elastic": _elastic,
        "memoryCheckpoint": st.fixed_dictionaries(
            {"sizeLimit": st.sampled_from(["16M", "16Mi", "0.5Gi", "1Gi", "2G", "3.125Ti"])},
            optional={"copies": st.integers(0, 3)},
        ),
        "checkpoint": st.fixed_dictionaries(
            {},
            optional={
                "persistentVolumeClaim": st.just("claim"),
                "gcsBucket": st.just("bucket"),
                "hostPath": st.just("/mnt"),
            },
        ),
    },
)


def _mixed(one: Json, other: Json, fields: set[str]) -> Json:
    return one | {field: other[field] for field in fields & other.keys()}


_known = [
    *(manifest["spec"] for manifest in GOOD_MANIFESTS.values()),
    *(bad.manifest["spec"] for bad in BAD_MANIFESTS if bad.refused_by != "schema"),
]
_fields = sorted({field for spec in _known for field in spec})
SPECS: st.SearchStrategy[Json] = _spec | st.builds(
    _mixed, st.sampled_from(_known), st.sampled_from(_known), st.sets(st.sampled_from(_fields))
)
"""Half of them are made up, half mix two of the good and bad manifests."""
