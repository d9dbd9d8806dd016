import json
from typing import Any

import pytest
from ddp_client.views.redaction import REMOVED, RedactionTimeoutError, Redactor

SECRET = "s3cr3t-v4lue-0123456789"
HEX = "0123456789abcdef0123456789abcdef01234567"


def scrubbed(text: str) -> str:
    return Redactor().text(text)


def without_secrets(manifest: dict[str, Any]) -> dict[str, Any]:
    return Redactor().manifest(manifest)


def container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", "image": "train:1", **fields}]}}


@pytest.mark.parametrize(
    "manifest",
    [
        container(env=[{"name": "ANYTHING", "value": SECRET}]),
        container(args=["--lr", "1", "--api-key", SECRET]),
        container(args=[f"--wandb-token={SECRET}"]),
        container(args=["--wandb-key", SECRET]),
        container(args=["--pass", SECRET]),
        container(args=[f"--pw={SECRET}"]),
        container(command=["docker", "login", "-u", "me", "-p", SECRET]),
        container(command=["wandb", "login", "--relogin", HEX, SECRET]),
        container(command=["curl", "-u", f"user:{SECRET}", "https://example.com"]),
        container(command=["sh", "-c", f"export HF_TOKEN={SECRET}; python train.py"]),
        container(command=["sh", "-c", f"python train.py --password {SECRET} --lr 1"]),
        container(command=["sh", "-c", f"wandb login {SECRET} && python train.py"]),
        container(command=["sh", "-c", f"set -e\ngit clone https://{SECRET}@github.com/a/b"]),
        container(args=[f"s3://bucket:{SECRET}@host/data"]),
        container(livenessProbe={"httpHeaders": [{"name": "Authorization", "value": SECRET}]}),
        container(livenessProbe={"httpHeaders": [{"name": "X-Api-Key", "value": SECRET}]}),
        {"metadata": {"annotations": {"x/last-applied-configuration": SECRET}}},
        {"metadata": {"annotations": {"x/token": SECRET}}},
        {"metadata": {"annotations": {"x/story": SECRET * 100}}},
        {"metadata": {"managedFields": [SECRET]}},
        {"volumes": [{"csi": {"volumeAttributes": {"clientSecret": SECRET}}}]},
        {"status": {"message": f"cannot log in with password: {SECRET}"}},
        {"status": {"message": f"secret={SECRET[:6]}, api_key={SECRET}"}},
        {"status": {"message": f'{{"api_key": "{SECRET}"}}'}},
        {"status": {"message": f"Authorization: Bearer {SECRET}"}},
        {"status": {"message": f"sent authorization=Basic {SECRET} to it"}},
    ],
)
def test_secrets_are_removed(manifest: dict[str, Any]) -> None:
    made = json.dumps(without_secrets(manifest))
    assert SECRET not in made
    assert SECRET[:6] not in made


@pytest.mark.parametrize(
    "text",
    [
        f"ACCOUNT=DefaultEndpointsProtocol=https;AccountName=x;AccountKey={SECRET};Suffix=core",
        f"AccountKey={SECRET}",
        f"DB_PASS={SECRET}",
        f"PGPASS: {SECRET}",
        f"MYSQL_PWD={SECRET}",
        f"HF_TOKEN={SECRET}",
        f"authtoken={SECRET}",
        f"wandb login {SECRET}",
        f"huggingface-cli login --token {SECRET}",
        f"GET https://acc.blob.core.windows.net/c?sv=2022-11-02&sig={SECRET}",
        f"GET https://storage.googleapis.com/b/o?X-Goog-Signature={SECRET}&X-Goog-Expires=1",
        f"GET https://s3.amazonaws.com/b?X-Amz-Expires=1&X-Amz-Signature={SECRET}",
        f"GET https://s3.amazonaws.com/b?X-Amz-Security-Token={SECRET}",
        f"GET https://maps.example.com/?key={SECRET}&amp;code={SECRET}",
        f"git clone https://{SECRET}@github.com/org/repo.git",
        f"postgres://user:{SECRET}@db:5432/x",
        f"redis://:a@{SECRET}@cache:6379/0",
        f"curl -u user:{SECRET} https://example.com",
        f"curl --user 'user:{SECRET}' https://example.com",
        f"mysql -h db -p{SECRET}",
        f"sshpass -p {SECRET} ssh host",
        f"redis-cli -h cache -a {SECRET}",
        f"train.py --pass {SECRET} --wandb-key {SECRET} -p {SECRET}",
        f"password: 'two words {SECRET}'",
        f"password: two words {SECRET}",
        f"password: two words {SECRET} of https://user:{SECRET}@host",
        f"password=a;b,{SECRET}",
        f"Password = {SECRET}",
        f"Cookie: session={SECRET}; other={SECRET}",
        f"Set-Cookie: session={SECRET}; Path=/",
        f"{{'token': '{SECRET}', 'lr': 1}}",
        f'os.environ["WANDB_API_KEY"] = "{SECRET}"',
        f'{{\\"password\\": \\"{SECRET}\\"}}',
        f"SECRET_ACCESS_KEY is {SECRET}A",
        f"x-api-key: {SECRET}",
        f"cloudant_password={SECRET} softlayer_api_key => {SECRET}",
        f"ibm_cloud_iam_api_key: {SECRET} cos_secret_access_key={SECRET}",
        f"Authorization: Basic {SECRET}",
        f"sent bearer {SECRET}",
        f'"private_key": "-----BEGIN PRIVATE KEY-----\\n{SECRET}\\n-----END PRIVATE KEY-----\\n"',
        f"-----BEGIN RSA PRIVATE KEY-----\nabc\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
    ],
)
def test_secret_by_its_name_or_place_is_removed(text: str) -> None:
    for around in ("{}", "2026-03-01T12:00:00Z rank 0: {}", "[1,rank0]<stdout>: {}\nstep 2"):
        made = scrubbed(around.format(text))
        assert SECRET not in made
        assert REMOVED in made


def test_private_key_without_its_beginning_is_removed() -> None:
    body = f"{HEX}{HEX[:24]}\n" * 3
    text = f"{body}{HEX[:20]}==\n-----END PRIVATE KEY-----\nstep 1"
    assert scrubbed(text) == f"{REMOVED}\nstep 1"


_LETTERS = "aB3" * 60
"""Invented; the prefix and the length are the only marks of these tokens."""


@pytest.mark.parametrize(
    "token",
    [
        "hf_" + "abcdefghij" * 3 + "abcd",
        "ghp_" + _LETTERS[:36],
        "gho_" + _LETTERS[:36],
        "github_pat_" + _LETTERS[:82],
        "glpat-" + _LETTERS[:20],
        "sk-proj-" + "b2" * 20,
        "sk-ant-api03-" + _LETTERS[:93] + "AA",
        "npm_" + _LETTERS[:36],
        "dckr_pat_" + _LETTERS[:27],
        "pypi-AgEIcHlwaS5vcmc" + _LETTERS[:70],
        "nvapi-" + _LETTERS[:64],
        "xoxb-123456789012-123456789012-" + _LETTERS[:24],
        "AKIAIOSFODNN7EXAMPLE",
        "AIza" + _LETTERS[:35],
        "ya29." + _LETTERS[:60],
        "dop_v1_" + "0a" * 32,
        "glsa_" + _LETTERS[:32] + "_0123abcd",
        "hvs." + _LETTERS[:95],
        "SG." + _LETTERS[:22] + "." + _LETTERS[:43],
        "dapi" + "0a" * 16,
        "https://hooks.slack.com/services/T00000000/B00000000/" + _LETTERS[:24],
        "sk_live_" + _LETTERS[:24],
        "SK" + "0a" * 16,
        "0a" * 16 + "-us12",
        "sq0csp-" + _LETTERS[:43],
        "M" + _LETTERS[:23] + "." + _LETTERS[:6] + "." + _LETTERS[:27],
        _LETTERS[:86] + "==",
        "AGE-SECRET-KEY-1" + "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7LQPZRY9X8GF2TVDW0S3JN54KHCE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2ln",
    ],
)
def test_known_forms_of_secrets_are_removed_from_any_text(token: str) -> None:
    assert token not in scrubbed(f"rank 0 says {token} and continues")
    assert scrubbed(f"rank 0 says {token}").startswith(f"rank 0 says {REMOVED}")


DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


@pytest.mark.parametrize(
    "text",
    [
        "step 120/960 loss 0.12, tokens=4096, max_tokens: 128000, 8123 tokens/s",
        '{"step": 120, "loss": 0.4122, "lr": 1e-05, "tokens_per_second": 81234.5}',
        "Tokenizer: bert-base-uncased, eos_token: </s>, bos_token='<|begin_of_text|>'",
        "token_type_ids: [0, 1, 1], token_id=50256",
        "token: 170000",
        f"image: registry.example.com/team/train@sha256:{DIGEST}",
        f"imageID: docker-pullable://registry.example.com/team/train@sha256:{DIGEST}",
        f"imageID: docker-pullable://train@sha256:{DIGEST}",
        f"containerID: containerd://{DIGEST}",
        f"checkpoint step-00001100 saved, sha256 {DIGEST}",
        f"git commit {HEX}",
        "uid: 4f2b9c1e-8d3a-4e5f-9a6b-7c8d9e0f1a2b",
        "ddp-operator.io/spec-hash: 1f2e3d4c5b6a79880f1e2d3c4b5a6978",
        'resourceVersion: "123456789", pod-template-hash: 6d4cf56db6',
        "pod digits-0-2 (node rank 2) exited with code 1 on node gke-train-pool-1a2b3c4d-x5yz",
        "wandb: View run at https://wandb.ai/team/project/runs/1a2b3c4d",
        "wandb: Run data is saved locally in /workspace/wandb/run-20260301_120000-1a2b3c4d",
        "NCCL INFO comm 0x55d0c0a8f2e0 rank 0 nranks 2 cudaDev 0 busId 1b000 commId 0x5f9e9b5a",
        "NCCL INFO Channel 00/02 : 0 1 2 3 4 5 6 7",
        "NCCL INFO NET/Socket : Using [0]eth0:10.8.0.12<0>",
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.",
        '  File "/workspace/train.py", line 120, in <module>',
        "KeyError: 'encoder.layer.0.attention.self.query.weight'",
        'RuntimeError: Missing key(s) in state_dict: "fc.weight".',
        "to initialize process group for rank: 0, key: store_based_barrier_key:1 (world_size=2)",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=120, OpType=ALLREDUCE)",
        'MountVolume.SetUp failed for volume "wandb" : secret "wandb-api" not found',
        "couldn't find key apikey in Secret research/wandb-api",
        "cannot log in: the API token is invalid",
        "forward_pass: 12.3ms, backward_pass=33ms, passed: 3, bypass=true, author: Jane",
        "python -u -m torch.distributed.run --rdzv-endpoint digits-0:29500 train.py --lr 1",
        "mkdir -p checkpoints && cp -r /data /tmp; docker run -p 8080:80 -u 1000:1000 image",
        "ssh -p 22 host",
        "topologyKey: kubernetes.io/hostname, cache_key=abc123def456, primary_key: id",
        "PWD=/workspace OLDPWD=/home/trainer",
        "TOKEN_FILE=/var/run/secrets/tokens/gcp-ksa/token secretName: wandb-api",
        "use_auth_token=True password=None api_key=${WANDB_API_KEY}",
        "GPU-8f3c1a2b-4d5e-6f70-8192-a3b4c5d6e7f8",
        "https://storage.googleapis.com/bucket/data?alt=media&rank=3",
        "s3://bucket/prefix/part-0001.parquet",
        "basic training configuration: {'hidden_size': 4096}",
        "sk-learn-contrib-imbalanced==0.12 npm_lifecycle_event=build",
    ],
)
def test_ordinary_output_stays(text: str) -> None:
    redactor = Redactor()
    assert redactor.text(text) == text
    assert not redactor.removed()


def test_references_to_secrets_stay() -> None:
    source = {"secretKeyRef": {"name": "wandb", "key": "apikey"}}
    made = container(
        env=[{"name": "WANDB_API_KEY", "valueFrom": source}, {"name": "EMPTY", "value": ""}],
        args=["--lr", "1", "train.py"],
        volumeMounts=[{"name": "token-cache", "mountPath": "/cache"}],
    )
    made["spec"]["volumes"] = [{"secret": {"secretName": "wandb"}}]
    made["spec"]["topologySpreadConstraints"] = [{"topologyKey": "kubernetes.io/hostname"}]
    made["metadata"] = {"name": "digits", "annotations": {"a/b": "c"}, "generation": 3}
    made["metadata"]["labels"] = {"ddp-operator.io/job-name": "digits"}
    made["metadata"]["uid"] = "4f2b9c1e-8d3a-4e5f-9a6b-7c8d9e0f1a2b"
    made["status"] = {"containerStatuses": [{"imageID": f"docker-pullable://a@sha256:{DIGEST}"}]}
    assert without_secrets(made) == made


def test_number_as_a_password_is_removed() -> None:
    assert scrubbed("password: 123456") == f"password: {REMOVED}"
    assert scrubbed("HF_TOKEN=12345678") == f"HF_TOKEN={REMOVED}"


def test_text_around_a_secret_stays() -> None:
    assert scrubbed(f"login with password={SECRET};user=me,host=db failed") == (
        f"login with password={REMOVED};user=me,host=db failed"
    )
    assert scrubbed(f'{{"token": "{SECRET}", "step": 3}}') == f'{{"token": "{REMOVED}", "step": 3}}'


def test_removed_secrets_are_counted_by_kind() -> None:
    redactor = Redactor()
    redactor.manifest(container(env=[{"name": "A", "value": "b"}], args=["--token", SECRET]))
    redactor.text(f"DB_PASS={SECRET} npm_{_LETTERS[:36]}\nDB_PASS={SECRET}")
    assert redactor.removed() == {
        "environment variable": 1,
        "value after a flag": 1,
        "value named like a secret": 2,
        "token": 1,
    }
    assert not redactor.removed()


def test_names_of_variables_stay() -> None:
    made = without_secrets(container(env=[{"name": "NCCL_DEBUG", "value": "INFO"}]))
    assert made["spec"]["containers"][0]["env"] == [{"name": "NCCL_DEBUG", "value": REMOVED}]


def test_addresses_and_annotations_of_a_node_are_removed() -> None:
    made = Redactor().node(
        {
            "metadata": {"name": "a", "labels": {"zone": "b"}, "annotations": {"ip": "10.0.0.1"}},
            "spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": "gpu"}]},
            "status": {"addresses": ["10.0.0.1"], "conditions": [{"type": "Ready"}]},
        }
    )
    assert "10.0.0" not in json.dumps(made)
    assert made["metadata"]["labels"] == {"zone": "b"}
    assert made["status"]["conditions"] == [{"type": "Ready"}]
    assert made["spec"]["taints"] == [{"key": "gpu"}]


def test_long_line_is_cut() -> None:
    made = scrubbed(f"{'a' * 300_000} password={SECRET}")
    assert len(made) < 20_000
    assert made.endswith("a…")


def test_text_after_the_deadline_is_refused() -> None:
    redactor = Redactor(seconds=-1)
    with pytest.raises(RedactionTimeoutError):
        redactor.text("step 1")


@pytest.mark.parametrize(
    "piece",
    [
        *("a", "token", "--", "password ", "-----BEGIN PRIVATE KEY-----", "://", "a:@", "eyJaaaa."),
        *("token=  ", "--token ", "login -a ", "mysql -", 'token="', "a.", "password=a;b=c&"),
        *("-----END PRIVATE KEY-----", "AAAAAAAAAAAAAAAAAAAA ", "?sig=", "curl -H ", "azure key "),
    ],
)
def test_long_texts_are_searched_within_the_time(piece: str) -> None:
    text = piece * (32_768 // len(piece))
    lines = "\n".join(text[at : at + 4096] for at in range(0, len(text), 4096))
    redactor = Redactor(seconds=10)
    assert redactor.text(lines)
    assert redactor.text(text)
