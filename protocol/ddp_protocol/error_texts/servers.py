"""Texts about downloads and other servers."""

from typing import Final

from ddp_protocol.error_texts.known import Class, Known

DOWNLOADS: Final = (
    Known(
        r"\bgated repo|GatedRepoError",
        Class.UNDECIDED,
        "the Hugging Face model or data set needs its owners' permission",
        "accept its terms on its page, and pass a token of that account as HF_TOKEN from a Secret",
        "OSError: You are trying to access a gated repo.",
    ),
    Known(
        r"Repository Not Found for url|RepositoryNotFoundError|Invalid username or password"
        r"|is not a valid model identifier listed on|DatasetNotFoundError",
        Class.UNDECIDED,
        "the Hugging Face repository does not exist, or is private and the token is missing or "
        "wrong",
        "check its name, and pass a token as HF_TOKEN from a Secret",
        "Repository Not Found for url: https://huggingface.co/api/models/me/private.",
    ),
    Known(
        r"(?:Remote)?(?:Entry|Revision)NotFoundError",
        Class.UNDECIDED,
        "the Hugging Face repository has no such file or revision",
        "check the names of file and revision; a repository may have safetensors files only",
        "huggingface_hub.errors.EntryNotFoundError: 404 Client Error.",
    ),
    Known(
        r"requires you to execute the .* file in|contains custom code which must be executed",
        Class.UNDECIDED,
        "the model brings code of its own, which must be allowed",
        "read its code, then set trust_remote_code=True and pin a revision",
        "ValueError: Loading a/b requires you to execute the configuration file in that repo on "
        "your local machine.",
    ),
    Known(
        r"couldn't connect to 'https?://|LocalEntryNotFoundError|OfflineModeIsEnabled",
        Class.UNDECIDED,
        "a model or data set is not in the local cache and cannot be downloaded",
        "let the pod reach the internet or a mirror (HF_ENDPOINT), or mount the files and set "
        "HF_HOME",
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
    ),
    Known(
        r"does not have storage\.[\w.]+ access",
        Class.UNDECIDED,
        "the pod's identity may not use the Cloud Storage bucket",
        "grant the pod's Kubernetes service account a role on the bucket, such as Storage Object "
        "User",
        "google.api_core.exceptions.Forbidden: 403 GET https://storage.googleapis.com/b/x: Caller "
        "does not have storage.objects.get access to the Google Cloud Storage object.",
    ),
    Known(
        r"default credentials were not found|Unable to locate credentials",
        Class.UNDECIDED,
        "the pod has no credentials of the cloud",
        "give the pod a service account with workload identity, and let it reach the metadata "
        "server",
        "google.auth.exceptions.DefaultCredentialsError: Your default credentials were not found.",
    ),
    Known(
        r"api_key not configured \(no-tty\)",
        Class.UNDECIDED,
        "Weights & Biases has no key and cannot ask for it",
        "pass WANDB_API_KEY from a Secret, or set WANDB_MODE=offline",
        "wandb.errors.errors.UsageError: api_key not configured (no-tty). call "
        "wandb.login(key=[your_api_key])",
    ),
    Known(
        r"Cannot connect to proxy|Tunnel connection failed",
        Class.UNDECIDED,
        "the HTTP proxy cannot be reached, or refuses the host",
        "correct HTTPS_PROXY, and list the cluster's own names and addresses in NO_PROXY",
        "(Caused by ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 403 "
        "Forbidden')))",
    ),
    Known(
        r"\b429 (?:Client Error|Too Many Requests|GET|POST|PUT|PATCH)|rateLimitExceeded"
        r"|\(SlowDown\)|Please reduce your request rate",
        Class.UNDECIDED,
        "a server refuses requests because there are too many",
        "let one rank per node download, retry with backoff, and use a token or a mirror",
        "google.api_core.exceptions.TooManyRequests: 429 GET https://storage.googleapis.com/b/x",
    ),
    Known(
        r"\b50[0234] (?:Server Error|Service Unavailable|Bad Gateway|Gateway Time-?out|GET|POST|PUT"
        r"|PATCH)|\((?:50[0234]|InternalError|ServiceUnavailable)\) when calling",
        Class.SERVICE,
        "a server, such as Cloud Storage, failed for some time",
        "retry with backoff in the script; a restart resumes from the checkpoint",
        "google.api_core.exceptions.ServiceUnavailable: 503 GET https://storage.googleapis.com/b/x",
    ),
    Known(
        r"\b(?:401|403) (?:Client Error|Unauthorized|Forbidden)",
        Class.UNDECIDED,
        "a server refuses the request's credentials, or there are none",
        "check the token in the Secret, and what its account may do",
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: "
        "https://api.example.com/x",
    ),
    Known(
        r"\b404 (?:Client Error|Not Found|GET|HEAD)|\((?:404|NoSuchKey"
        r"|NoSuchBucket)\) when calling",
        Class.UNDECIDED,
        "a server does not have the file, or bucket, that was requested",
        "check its name; a bucket's name must be exact, and a private file may look missing",
        "google.api_core.exceptions.NotFound: 404 GET https://storage.googleapis.com/b/x: The "
        "specified bucket does not exist.",
    ),
    Known(
        r"\((?:AccessDenied|403|Forbidden)\) when calling",
        Class.UNDECIDED,
        "the pod's identity may not use the S3 bucket",
        "allow its role the action that the message names, or correct the keys in the Secret",
        "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the "
        "GetObject operation: Access Denied",
    ),
    Known(
        r"\(?ExpiredToken\w*\b|[Tt]oken (?:has |is )?expired|RequestTimeTooSkewed",
        Class.UNDECIDED,
        "credentials have expired during the training",
        "use an identity of the pod that renews them (workload identity, IRSA), instead of fixed "
        "tokens",
        "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the "
        "PutObject operation: The provided token has expired.",
    ),
    Known(
        r"metadata\.google\.internal",
        Class.UNDECIDED,
        "the pod cannot reach Google's metadata server, which gives it credentials",
        "admit 169.254.169.254 and 169.254.169.252 port 988 in NetworkPolicies; enable workload "
        "identity on the node pool",
        "google.auth.exceptions.TransportError: Failed to retrieve "
        "http://metadata.google.internal/computeMetadata/v1/instance/",
    ),
    Known(
        r"wandb.*CommError|Run initialization has timed out",
        Class.UNDECIDED,
        "Weights & Biases cannot be reached",
        "admit api.wandb.ai in egress rules and proxy, or set WANDB_MODE=offline",
        "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec.",
    ),
    Known(
        r"MlflowException: API request",
        Class.UNDECIDED,
        "the MLflow server cannot be reached, or refuses the request",
        "check MLFLOW_TRACKING_URI, and that the pod may reach it",
        "mlflow.exceptions.MlflowException: API request to "
        "http://mlflow/api/2.0/mlflow/runs/create failed with exception",
    ),
    Known(
        r"Could not find a version that satisfies the requirement|No matching distribution found",
        Class.UNDECIDED,
        "pip finds no such package for the image's Python, or reaches no index",
        "check the version and the index; install packages when you build the image",
        "ERROR: Could not find a version that satisfies the requirement flash-attn==9.9 (from "
        "versions: none)",
    ),
    Known(
        r"could not read Username for|Host key verification failed|Permission denied \(publickey\)",
        Class.UNDECIDED,
        "git has no credentials for a private repository",
        "put the code into the image, or pass a token or key from a Secret",
        "fatal: could not read Username for 'https://github.com': No such device or address",
    ),
    Known(
        r"ChunkedEncodingError|IncompleteRead|Connection broken: ",
        Class.UNDECIDED,
        "a download broke off",
        "retry it in the script, or mount the data instead of downloading it in each pod",
        "requests.exceptions.ChunkedEncodingError: ('Connection broken: IncompleteRead(1 bytes "
        "read, 2 more expected)')",
    ),
    Known(
        r"CERTIFICATE_VERIFY_FAILED|certificate signed by unknown authority",
        Class.UNDECIDED,
        "the server's certificate is not trusted, often because a proxy replaces it",
        "add your organization's CA to the image and set SSL_CERT_FILE and REQUESTS_CA_BUNDLE",
        "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
        "self-signed certificate in certificate chain",
    ),
    Known(
        r"Temporary failure in name resolution",
        Class.SERVICE,
        "no DNS server has answered",
        "check the cluster's DNS, and that a NetworkPolicy admits it",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
    ),
    Known(
        r"Name or service not known|Could not resolve host",
        Class.UNDECIDED,
        "DNS does not know the host's name",
        "check the name, the cluster's DNS, and that a NetworkPolicy admits DNS; a pod's name is "
        "unknown while the pod is gone",
        "socket.gaierror: [Errno -2] Name or service not known",
    ),
    Known(
        r"HTTPS?ConnectionPool\(host=.*(?:Max retries exceeded|[Tt]imed out)"
        r"|EndpointConnectionError",
        Class.UNDECIDED,
        "a server cannot be reached from the pod",
        "check egress rules, proxy and DNS; mount data instead of downloading it in each pod",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='example.com', port=443): "
        "Max retries exceeded with url: /x",
    ),
    Known(
        r"within timeout of [^;]+; verify the address is correct and the server is running",
        Class.SERVICE,
        "a server of torchft, in most cases its lighthouse, does not answer",
        "look at the lighthouse's pod, and check TORCHFT_LIGHTHOUSE and NetworkPolicies",
        "RuntimeError: failed to connect to http://torchft-lighthouse:29510 within timeout of 60s; "
        "verify the address is correct and the server is running and reachable, or increase "
        "connect_timeout: transport error",
    ),
    Known(
        r"\[Errno 111\] Connection refused",
        Class.UNDECIDED,
        "nothing listens at the address that the script connects to",
        "check address and port; if it is another pod of the job, look for that pod's failure",
        "ConnectionRefusedError: [Errno 111] Connection refused",
    ),
    Known(
        r"\[Errno (?:101|110|113)\]",
        Class.UNDECIDED,
        "an address does not answer, or no network leads to it",
        "check egress rules, NetworkPolicies and firewall, and the address itself",
        "OSError: [Errno 113] No route to host",
    ),
    Known(
        r"\[Errno 99\]",
        Class.UNDECIDED,
        "the script listens at an address that its pod does not have",
        "listen at 0.0.0.0, and leave MASTER_ADDR as it is set",
        "OSError: [Errno 99] Cannot assign requested address",
    ),
)
