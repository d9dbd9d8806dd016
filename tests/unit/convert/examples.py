"""One job of each kind with many fields, and helpers that convert them."""

from collections.abc import Iterable
from typing import Any

import yaml
from ddp_client.convert import Conversion, of_manifests

PYTORCHJOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: digits
  namespace: team-a
  uid: 5c5d
  labels: {kueue.x-k8s.io/queue-name: gpus, kueue.x-k8s.io/priority-class: high, team: vision}
  annotations: {note: mine, training.kubeflow.org/trace: "1"}
  ownerReferences: [{kind: Experiment}]
spec:
  nprocPerNode: "2"
  runPolicy:
    cleanPodPolicy: All
    ttlSecondsAfterFinished: 600
    activeDeadlineSeconds: 7200
    backoffLimit: 5
    suspend: true
    managedBy: kueue.x-k8s.io/multikueue
    schedulingPolicy:
      minAvailable: 2
      queue: night
      priorityClass: urgent
      scheduleTimeoutSeconds: 300
      minResources: {cpu: 4}
  elasticPolicy:
    minReplicas: 2
    maxReplicas: 6
    maxRestarts: 9
    rdzvBackend: c10d
    nProcPerNode: 7
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: Never
      template:
        metadata:
          labels: {role: head}
        spec:
          serviceAccountName: trains
          schedulerName: volcano
          containers:
            - name: tensorboard
              image: registry.example.com/board:1
            - name: pytorch
              image: registry.example.com/digits:1
              command: [torchrun, --nnodes=4, --rdzv_backend, c10d, --log-dir=/logs, train.py]
              env:
                - {name: MASTER_ADDR, value: digits-master-0}
                - {name: NCCL_DEBUG, value: INFO}
                - {name: PEER, value: "http://digits-master-0:9000/x"}
              ports: [{name: pytorchjob-port, containerPort: 23457}]
              resources: {limits: {nvidia.com/gpu: 2}}
              volumeMounts: [{name: data, mountPath: /data}]
          nodeSelector:
            cloud.google.com/gke-accelerator: nvidia-l4
            cloud.google.com/gke-spot: "true"
          volumes: [{name: data, persistentVolumeClaim: {claimName: digits}}]
    Worker:
      replicas: 3
      restartPolicy: ExitCode
      template:
        metadata:
          labels: {role: hand}
        spec:
          schedulerName: volcano
          hostname: fixed
          containers:
            - name: pytorch
              image: registry.example.com/digits:2
              command: [torchrun, train.py]
              resources: {limits: {nvidia.com/gpu: 2}}
          nodeSelector:
            cloud.google.com/gke-accelerator: nvidia-l4
            cloud.google.com/gke-spot: "true"
status: {startTime: "2026-01-01T00:00:00Z"}
"""

JOBSET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: lines
  annotations: {alpha.jobset.sigs.k8s.io/exclusive-topology: rack}
spec:
  suspend: true
  ttlSecondsAfterFinished: 60
  managedBy: example.com/other
  network: {enableDNSHostnames: false, subdomain: net}
  successPolicy: {operator: Any}
  startupPolicy: {startupPolicyOrder: InOrder}
  coordinator: {replicatedJob: ranks, podIndex: 2}
  failurePolicy:
    maxRestarts: 4
    restartStrategy: BlockingRecreate
    rules: [{name: one, action: FailJobSet}]
  replicatedJobs:
    - name: ranks
      template:
        metadata:
          annotations: {seen: "yes"}
        spec:
          parallelism: 3
          completions: 3
          completionMode: Indexed
          backoffLimit: 2
          activeDeadlineSeconds: 900
          podReplacementPolicy: Failed
          podFailurePolicy: {rules: [{action: FailJob}]}
          template:
            metadata:
              labels: {kueue.x-k8s.io/queue-name: cpus, app: lines}
            spec:
              restartPolicy: OnFailure
              containers:
                - name: ranks
                  image: registry.example.com/lines:1
                  command: [bash, -c, "torchrun --nproc_per_node=2 --node_rank=$RANK train.py"]
                  args: [--host, lines-ranks-0-0.net]
                  env:
                    - {name: MASTER_ADDR, value: lines-ranks-0-0.net}
                    - {name: MASTER_PORT, value: "3389"}
                    - name: POD
                      valueFrom:
                        fieldRef:
                          fieldPath: >-
                            metadata.annotations['batch.kubernetes.io/job-completion-index']
                - name: side
                  image: registry.example.com/side:1
"""

RUNTIME = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata:
  name: ours
spec:
  mlPolicy:
    numNodes: 5
    torch: {numProcPerNode: 3, envInjection: {targets: [{jobName: node}]}}
  podGroupPolicy:
    volcano: {networkTopology: {mode: hard}}
  template:
    metadata:
      annotations: {scheduling.volcano.sh/queue-name: night, other: thing}
    spec:
      ttlSecondsAfterFinished: 30
      replicatedJobs:
        - name: fetch
          template: {spec: {template: {spec: {containers: [{name: fetch, image: fetch}]}}}}
        - name: node
          dependsOn: [{name: fetch, status: Complete}]
          template:
            metadata:
              labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}
            spec:
              backoffLimit: 3
              template:
                spec:
                  containers:
                    - name: node
                      image: registry.example.com/torch:1
                      env: [{name: A, value: theirs}, {name: B, value: b}]
                  volumes: [{name: scratch, emptyDir: {}}, {name: data, emptyDir: {sizeLimit: 1Gi}}]
"""

TRAINJOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: words
  labels: {who: me}
spec:
  runtimeRef: {kind: TrainingRuntime, name: ours}
  suspend: true
  activeDeadlineSeconds: 50
  managedBy: kueue.x-k8s.io/multikueue
  initializer: {dataset: {storageUri: "hf://x/y"}}
  labels: {old: way}
  trainer:
    image: registry.example.com/words:1
    command: [torchrun]
    args: [train.py, --peer, "words-node-0-0.words:1"]
    env: [{name: A, value: mine}, {name: PET_NNODES, value: "9"}]
    numNodes: 2
    numProcPerNode: 4
    resourcesPerNode: {requests: {cpu: "3"}}
  podTemplateOverrides:
    - targetJobs: [{name: node}]
      metadata: {labels: {tier: gold}}
      spec:
        serviceAccountName: trains
        containers: [{name: node, volumeMounts: [{name: data, mountPath: /data}]}]
    - targetJobs: [{name: fetch}]
      spec: {serviceAccountName: fetches}
  runtimePatches:
    - manager: example.com/me
      trainingRuntimeSpec:
        template:
          metadata: {labels: {cost: low}}
          spec:
            replicatedJobs:
              - name: node
                template: {spec: {template: {spec: {nodeSelector: {disk: fast}}}}}
"""


def convert(text: str) -> Conversion:
    """Convert the only job of a file."""
    (found,) = (one for one in of_manifests(text) if one.manifest or one.problem)
    return found


def convert_object(*documents: dict[str, Any]) -> Conversion:
    """Convert the only job of some objects."""
    return convert(dump(documents))


def dump(documents: Iterable[Any]) -> str:
    """Write objects as YAML, ten times as fast as `yaml.safe_dump_all`."""
    return yaml.dump_all(documents, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))


def load(text: str) -> dict[str, Any]:
    """Read a single object."""
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def spec_of(found: Conversion) -> dict[str, Any]:
    """Return the spec of the result."""
    assert found.manifest is not None, found.problem
    spec: dict[str, Any] = found.manifest["spec"]
    return spec


def fields(found: Conversion) -> set[str]:
    """Return the fields that have a note."""
    return {note.field for note in found.notes}
