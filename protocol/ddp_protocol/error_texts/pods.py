"""Texts of the scheduler and the kubelet."""

from typing import Final

from ddp_protocol.error_texts.known import Class, Known

# The scheduler's words count only where they are all that it says: mixed ones fit several causes.
PODS: Final = (
    Known(
        r"nodes are available: \d+ Insufficient (?:nvidia|amd)\.com/gpu\.",
        Class.UNDECIDED,
        "no node has enough free GPUs for the pod",
        "wait for other jobs or a growing node pool; compare GPUs per pod with the nodes' GPUs",
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    ),
    Known(
        r"nodes are available: \d+ node\(s\) had untolerated taint \S+ \S*\}\.",
        Class.UNDECIDED,
        "the nodes have a taint that the pod does not tolerate",
        "add a toleration to spec.template, or select other nodes",
        "0/3 nodes are available: 3 node(s) had untolerated taint {dedicated: research}.",
    ),
    Known(
        r"nodes are available: \d+ node\(s\) didn't match Pod's node affinity/selector\.",
        Class.UNDECIDED,
        "no node has the labels that the pod selects",
        "compare spec.accelerator and nodeSelector with kubectl get nodes --show-labels",
        "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
    ),
    Known(
        r"nodes are available: \d+ Insufficient (?:cpu|memory|ephemeral-storage)\.",
        Class.UNDECIDED,
        "no node has enough free CPU, memory or disk for the pod",
        "lower the requests in spec.template, or wait for a growing node pool",
        "0/3 nodes are available: 3 Insufficient memory.",
    ),
    Known(
        r"nodes are available: (?:\d+ )?pod has unbound immediate PersistentVolumeClaims\.",
        Class.UNDECIDED,
        "a claim of the pod has no volume yet",
        "look at kubectl describe pvc: its storageClassName, size or access mode may be wrong, or "
        "the quota used up",
        "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
    ),
    Known(
        r"nodes are available: \d+ node\(s\) had volume node affinity conflict\.",
        Class.UNDECIDED,
        "a volume of the pod is in another zone than the nodes",
        "select nodes in the volume's zone, or use a class with volumeBindingMode: "
        "WaitForFirstConsumer",
        "0/3 nodes are available: 3 node(s) had volume node affinity conflict.",
    ),
    Known(
        r"nodes are available: \d+ Too many pods\.",
        Class.UNDECIDED,
        "the nodes run as many pods as they may",
        "wait for a growing node pool, or raise its maximum of pods per node",
        "0/4 nodes are available: 4 Too many pods.",
    ),
    Known(
        r"nodes are available: \d+ node\(s\) didn't have free ports for the requested pod ports\.",
        Class.UNDECIDED,
        "a port that the pod needs on its node (hostPort, hostNetwork) is taken",
        "remove hostPort, or set spec.masterPort and spec.statusPort to free ports",
        "0/4 nodes are available: 4 node(s) didn't have free ports for the requested pod ports.",
    ),
    Known(
        r"nodes are available: \d+ node\(s\) were unschedulable\.",
        Class.UNDECIDED,
        "all nodes are cordoned",
        "wait until their maintenance ends, or run kubectl uncordon",
        "0/4 nodes are available: 4 node(s) were unschedulable.",
    ),
    Known(
        r"requested number of devices unavailable|cannot allocate unhealthy devices",
        Class.UNDECIDED,
        "the node's device plugin has fewer healthy GPUs than the scheduler assumed",
        "restart the device plugin or the kubelet of the node, and check its GPUs",
        "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. "
        "Requested: 1, Available: 0, which is unexpected",
    ),
    Known(
        r"The node was low on resource: memory",
        Class.UNDECIDED,
        "the node ran out of memory, and the kubelet evicted the pod",
        "request as much memory as the container uses",
        "The node was low on resource: memory. Container trainer was using 92Gi, request is 0",
    ),
    Known(
        r"The node was low on resource: ephemeral-storage|Pod ephemeral local storage usage exceeds"
        r"|Usage of EmptyDir volume .*exceeds the limit|exceeded its local ephemeral storage limit",
        Class.UNDECIDED,
        "the pod, or its node, has no disk space left",
        "write less, or to another volume; raise sizeLimit or the limit of ephemeral-storage",
        "Pod ephemeral local storage usage exceeds the total limit of containers 25Gi.",
    ),
    Known(
        r"Multi-Attach error for volume",
        Class.UNDECIDED,
        "a volume that only one node may use is still attached to another one",
        "use a volume with ReadWriteMany; after a node's failure wait, or delete the node",
        'Multi-Attach error for volume "pvc-8f21" Volume is already exclusively attached to one '
        "node",
    ),
    Known(
        r"MountVolume\..*(?:failed to get GCS bucket|storage: bucket doesn't exist"
        r"|googleapi: Error 40[34])",
        Class.UNDECIDED,
        "gcsfuse may not use the Cloud Storage bucket, or it does not exist",
        "check its name, and grant the pod's Kubernetes service account a role on it, such as "
        "Storage Object User",
        'MountVolume.SetUp failed for volume "gcs" : failed to get GCS bucket',
    ),
    Known(
        r"MountVolume\..*mount\.nfs",
        Class.UNDECIDED,
        "the NFS server does not answer the node, or refuses it",
        "check server and path of the volume, the firewall between them, and the server's exports",
        'MountVolume.SetUp failed for volume "data" : mount.nfs: Connection timed out',
    ),
    Known(
        r"(?:MountVolume|AttachVolume)\.\w+ failed for volume|Unable to attach or mount volumes",
        Class.UNDECIDED,
        "the kubelet cannot mount one of the pod's volumes",
        "read the rest of the message: a Secret or claim is missing, or the storage refuses the "
        "node",
        'MountVolume.SetUp failed for volume "data" : configmap "data" not found',
    ),
    Known(
        r"persistentvolumeclaim \".*\" not found",
        Class.UNDECIDED,
        "the claim does not exist in the job's namespace",
        "create the PersistentVolumeClaim, or correct its name",
        '0/3 nodes are available: persistentvolumeclaim "checkpoints" not found.',
    ),
    Known(
        r"container has runAsNonRoot and image",
        Class.UNDECIDED,
        "the pod must not run as root, but the image does, or names its user by a name",
        "set securityContext.runAsUser in spec.template.spec (kubectl ddp run --user)",
        "container has runAsNonRoot and image will run as root",
    ),
    Known(
        r"The node had condition: \[\w+|The node was low on resource: (?:pids|inodes)",
        Class.UNDECIDED,
        "the node lacks memory, disk or process numbers, and the kubelet evicted or refused the "
        "pod",
        "look for the pod that uses them up; request what the job needs",
        "The node had condition: [DiskPressure].",
    ),
    Known(
        r"(?i:failed to (?:create|start) (?:pod )?sandbox).*(?i:no ip addresses available"
        r"|failed to allocate)",
        Class.UNDECIDED,
        "the node has no free address for the pod",
        "enlarge the pods' address range, or lower the pods per node",
        "Failed to create pod sandbox: rpc error: code = Unknown desc = no IP addresses available",
    ),
    Known(
        r"(?i:failed to (?:create|start) (?:pod )?sandbox)",
        Class.UNDECIDED,
        "the container runtime, or the network plugin, could not start the pod on its node",
        "read the logs of kubelet, container runtime and network plugin on the node",
        "Failed to create pod sandbox: rpc error: code = DeadlineExceeded desc = context deadline "
        "exceeded",
    ),
)

# Words of the kubelet that mean something only with its reason.
PULL_TEXTS: Final = (
    Known(
        r"(?i:toomanyrequests|429 too many requests|pull rate limit)",
        Class.UNDECIDED,
        "the registry limits how often images are pulled",
        "pull with an account (imagePullSecrets), or from a registry or mirror of your own",
        "toomanyrequests: You have reached your unauthenticated pull rate limit.",
    ),
    Known(
        r"(?i:no match)",
        Class.NO_IMAGE,
        "the image does not exist for the node's CPU architecture",
        "build it for that architecture too (docker buildx build --platform), or select nodes by "
        "kubernetes.io/arch",
        'failed to pull and unpack image "a/b:1": no match for platform in manifest: not found',
    ),
    Known(
        r"(?i:denied|unauthorized|forbidden|authentication required)",
        Class.NO_IMAGE,
        "the registry does not let the node pull the image, or the image does not exist",
        "add imagePullSecrets to the template; on GKE, grant the nodes' service account Artifact "
        "Registry Reader instead. Check the image's name and tag",
        "pulling from host gcr.io failed with status code [manifests 1.0.0]: 403 Forbidden",
    ),
    Known(
        r"(?i:no such host)",
        Class.NO_IMAGE,
        "the registry's host name is unknown",
        "correct the image's name in spec.template",
        "dial tcp: lookup registry.exmaple.com: no such host",
    ),
    Known(
        r"(?i:invalid reference)",
        Class.NO_IMAGE,
        "the image's name is not valid",
        "correct the image's name in spec.template",
        'failed to parse image "a/B:1": invalid reference format',
    ),
    Known(
        r"(?i:not found|no such (?:image|manifest)|does not exist"
        r"|(?:manifest|name|repository|tag)[ _]unknown)",
        Class.NO_IMAGE,
        "the registry has no such image",
        "check the image's name and tag, and that it was pushed",
        "manifest unknown: Failed to fetch 1.0.1",
    ),
    Known(
        r"x509: ",
        Class.UNDECIDED,
        "the node does not trust the registry's certificate",
        "configure the registry's CA in the nodes' container runtime",
        "tls: failed to verify certificate: x509: certificate is valid for a.com, not b.com",
    ),
    Known(
        r"i/o timeout|connection refused|context deadline exceeded|TLS handshake timeout",
        Class.UNDECIDED,
        "the node cannot reach the registry, or it answers too slowly",
        "check the node's way to the registry (Cloud NAT, Private Google Access, firewall)",
        'Get "https://registry-1.docker.io/v2/": dial tcp 3.216.34.172:443: i/o timeout',
    ),
)

CONFIG_TEXTS: Final = (
    Known(
        r"couldn't find key",
        Class.NO_OBJECT,
        "a Secret or ConfigMap lacks the key that the container uses",
        "add the key, or correct its name in spec.template",
        "couldn't find key token in Secret research/hugging-face",
    ),
    Known(
        r"not found",
        Class.NO_OBJECT,
        "a Secret or ConfigMap that the container uses does not exist in the job's namespace",
        "create it, or correct its name in spec.template",
        'secret "hugging-face" not found',
    ),
)
