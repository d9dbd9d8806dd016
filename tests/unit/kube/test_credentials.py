import base64
import json
import ssl
import stat
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import kopf
import pytest
import yaml
from ddp_operator.kube import CredentialsError, load_credentials


def write_kubeconfig(
    path: Path, *, user: dict[str, Any], cluster: dict[str, Any] | None = None
) -> str:
    config = {
        "current-context": "one",
        "clusters": [{"name": "c", "cluster": cluster or {"server": "https://one:6443/"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u"}},
            {"name": "two", "context": {"cluster": "c", "user": "u", "namespace": "lab"}},
        ],
    }
    path.write_text(yaml.safe_dump(config))
    return str(path)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("certificate")
    key, cert = directory / "key.pem", directory / "cert.pem"
    options = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=test -days 2"
    subprocess.run(
        ["openssl", "req", *options.split(), "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    return cert, key


async def test_kubeconfig_with_a_token(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", user={"token": "secret"})
    credentials = load_credentials(environ={"KUBECONFIG": path})
    assert credentials.server == "https://one:6443"
    assert credentials.default_namespace == "default"
    assert await credentials.authorization() == "Bearer secret"
    assert credentials.ssl_context is not None
    assert credentials.ssl_context.verify_mode is ssl.CERT_REQUIRED
    other = load_credentials(kubeconfig=path, context="two", environ={})
    assert (other.default_namespace, other.pod_namespace) == ("lab", None)


async def test_default_kubeconfig_comes_before_the_service_account(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write_kubeconfig(tmp_path / ".kube" / "config", user={"token": "secret"})
    environ = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert load_credentials(environ=environ).server == "https://one:6443"


def content(path: Path | str) -> bytes:
    return Path(path).read_bytes()


async def test_client_certificate_and_authority(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    data = base64.b64encode(cert.read_bytes()).decode()
    path = write_kubeconfig(
        tmp_path / "config",
        user={"client-certificate": str(cert), "client-key": str(key)},
        cluster={"server": "https://one", "certificate-authority-data": data},
    )
    credentials = load_credentials(kubeconfig=path, environ={})
    assert await credentials.authorization() is None
    assert credentials.ssl_context is not None
    assert len(credentials.ssl_context.get_ca_certs()) == 1
    connection = await credentials.connection()
    assert (connection.certificate_path, connection.private_key_path) == (str(cert), str(key))
    assert connection.ca_path is not None
    assert content(connection.ca_path) == content(cert)
    assert (connection.scheme, connection.token) == (None, None)


async def test_insecure_server_is_not_verified(tmp_path: Path) -> None:
    cluster = {"server": "https://one", "insecure-skip-tls-verify": True}
    path = write_kubeconfig(tmp_path / "config", user={"token": "t"}, cluster=cluster)
    credentials = load_credentials(kubeconfig=path, environ={})
    assert credentials.ssl_context is not None
    assert credentials.ssl_context.verify_mode is ssl.CERT_NONE
    assert (await credentials.connection()).insecure


async def test_password_is_basic_authorization(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", user={"username": "me", "password": "pw"})
    credentials = load_credentials(kubeconfig=path, environ={})
    expected = base64.b64encode(b"me:pw").decode()
    assert await credentials.authorization() == f"Basic {expected}"
    connection = await credentials.connection()
    assert (connection.scheme, connection.token) == ("Basic", expected)


async def test_exec_plugin_runs_again_when_its_token_expires(tmp_path: Path) -> None:
    counter = tmp_path / "count"
    plugin = tmp_path / "plugin"
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "TOKEN", "expirationTimestamp": "2020-01-01T00:00:00Z"},
    }
    plugin.write_text(
        f"#!{sys.executable}\n"
        "import pathlib\n"
        f"counter = pathlib.Path({str(counter)!r})\n"
        "count = int(counter.read_text()) + 1 if counter.exists() else 1\n"
        "counter.write_text(str(count))\n"
        f"print({json.dumps(answer)!r}.replace('TOKEN', f'token-{{count}}'))\n"
    )
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    path = write_kubeconfig(tmp_path / "config", user=user)
    now = 0.0
    credentials = load_credentials(kubeconfig=path, environ={}, clock=lambda: now)
    first = await credentials.authorization()
    runs = int(counter.read_text())
    assert first == f"Bearer token-{runs}"
    assert await credentials.authorization() == first
    assert int(counter.read_text()) == runs
    now = 31.0
    assert await credentials.authorization() == f"Bearer token-{runs + 1}"


@pytest.fixture
def service_account(tmp_path: Path, certificate: tuple[Path, Path]) -> Path:
    directory = tmp_path / "serviceaccount"
    directory.mkdir()
    (directory / "token").write_text("first")
    (directory / "namespace").write_text("operators")
    (directory / "ca.crt").write_bytes(certificate[0].read_bytes())
    return directory


def in_cluster(tmp_path: Path) -> dict[str, str]:
    return {
        "HOME": str(tmp_path),
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "KUBERNETES_SERVICE_PORT": "443",
    }


async def test_service_account_token_is_read_again(tmp_path: Path, service_account: Path) -> None:
    now = 0.0
    environ = in_cluster(tmp_path)
    credentials = load_credentials(
        environ=environ, service_account_dir=service_account, clock=lambda: now
    )
    assert credentials.server == "https://10.96.0.1:443"
    assert credentials.default_namespace == credentials.pod_namespace == "operators"
    assert await credentials.authorization() == "bearer first"
    (service_account / "token").write_text("second")
    assert await credentials.authorization() == "bearer first"
    now = 31.0
    assert await credentials.authorization() == "bearer second"
    connection = await credentials.connection()
    assert connection.token == "second"
    assert connection.ca_path == str(service_account / "ca.crt")


async def test_refused_token_is_read_again_every_few_seconds_at_most(
    tmp_path: Path, service_account: Path
) -> None:
    now = 0.0
    environ = in_cluster(tmp_path)
    credentials = load_credentials(
        environ=environ, service_account_dir=service_account, clock=lambda: now
    )
    (service_account / "token").write_text("second")
    now = 10.0
    await credentials.refresh(refused="bearer of before")
    assert await credentials.authorization() == "bearer first"
    await credentials.refresh(refused="bearer first")
    assert await credentials.authorization() == "bearer second"
    (service_account / "token").write_text("third")
    now = 11.0
    await credentials.refresh(refused="bearer second")
    assert await credentials.authorization() == "bearer second"


async def test_kopf_accepts_the_connection(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", user={"token": "secret"})
    connection = await load_credentials(kubeconfig=path, environ={}).connection()
    info = kopf.ConnectionInfo(**asdict(connection))
    assert info.as_http_headers()["Authorization"] == "Bearer secret"


async def test_proxy_is_used_unless_the_host_is_exempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {"server": "https://one", "proxy-url": "http://proxy:3128"}
    path = write_kubeconfig(tmp_path / "config", user={"token": "t"}, cluster=cluster)
    assert load_credentials(kubeconfig=path, environ={}).proxy_url == "http://proxy:3128"
    monkeypatch.setenv("no_proxy", "one")
    assert load_credentials(kubeconfig=path, environ={}).proxy_url is None


def test_missing_configuration_names_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"set KUBECONFIG .*KUBERNETES_SERVICE_HOST") as e:
        load_credentials(environ={"HOME": str(tmp_path)})
    assert "\n" not in str(e.value)
    path = write_kubeconfig(tmp_path / "config", user={"token": "secret"})
    with pytest.raises(CredentialsError, match="three"):
        load_credentials(kubeconfig=path, context="three", environ={})
    with pytest.raises(CredentialsError, match="token file does not exist"):
        load_credentials(environ=in_cluster(tmp_path), service_account_dir=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no kubeconfig at "),
        ("", "cannot use the cluster configuration: "),
        (":\n  - [", "cannot use the cluster configuration: "),
        ("clusters: []\ncontexts: []\nusers: []", "current-context"),
        (
            "current-context: one\n"
            "clusters: [{name: c, cluster: {server: https://one, certificate-authority: /no}}]\n"
            "contexts: [{name: one, context: {cluster: c, user: u}}]\n"
            "users: []\n",
            "/no",
        ),
    ],
)
def test_error_for_a_broken_kubeconfig_is_one_line(
    tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CredentialsError, match=message) as raised:
        load_credentials(kubeconfig=str(path), environ={})
    assert "\n" not in str(raised.value)
