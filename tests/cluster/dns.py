"""Cluster DNS in a few lines: Services and their pods' hostnames, answered from Endpoints.

Run as ``python -m tests.cluster.dns ADDRESS KUBECONFIG``. Names outside the cluster do not exist.
"""

from __future__ import annotations

import base64
import json
import ssl
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from dnslib import QTYPE, RCODE, RR, SOA, A, DNSRecord
from dnslib.server import BaseResolver, DNSLogger, DNSServer

from tests.cluster.control_plane_config import KUBERNETES_SERVICE_IP

SUFFIX = ".svc.cluster.local"
TTL_S = 1
# The server ends a watch after this time, and a fresh list follows: nothing stays stale for long.
WATCH_S = 60


def records(endpoints: dict[str, Any]) -> dict[str, list[str]]:
    """Return the names that one Endpoints object gives rise to, with their addresses."""
    meta = endpoints["metadata"]
    service = f"{meta['name']}.{meta['namespace']}{SUFFIX}"
    found: dict[str, list[str]] = {}
    for subset in endpoints.get("subsets") or []:
        # A Service that publishes addresses that are not ready has them here all the same.
        for address in subset.get("addresses") or []:
            found.setdefault(service, []).append(address["ip"])
            if hostname := address.get("hostname"):
                found.setdefault(f"{hostname}.{service}", []).append(address["ip"])
    return found


class ClusterResolver(BaseResolver):  # type: ignore[misc]
    """Answers from the latest known Endpoints."""

    def __init__(self) -> None:
        self.by_object: dict[str, dict[str, list[str]]] = {}

    def resolve(self, request: DNSRecord, handler: object) -> DNSRecord:  # noqa: ARG002
        """Answer one question; A only, as the pods' network is IPv4."""
        reply = request.reply()
        question = str(request.q.qname).rstrip(".").lower()
        addresses = [
            address
            for names in list(self.by_object.values())
            for address in names.get(question, [])
        ]
        if question == f"kubernetes.default{SUFFIX}":
            addresses = [KUBERNETES_SERVICE_IP]
        if not addresses:
            reply.header.rcode = RCODE.NXDOMAIN
            # The last of an SOA's five times is how long a resolver may remember the miss.
            start_of_authority = SOA("ns.cluster.local", "root.cluster.local", (1, 1, 1, 1, TTL_S))
            reply.add_auth(RR("cluster.local", QTYPE.SOA, ttl=TTL_S, rdata=start_of_authority))
        elif request.q.qtype == QTYPE.A:
            for address in dict.fromkeys(addresses):
                reply.add_answer(RR(request.q.qname, QTYPE.A, ttl=TTL_S, rdata=A(address)))
        return reply

    def follow(self, kubeconfig: Path) -> None:
        """List and watch Endpoints for ever; an interrupted watch starts over with a list."""
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        token = config["users"][0]["user"]["token"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)

        def get(query: str) -> Any:
            url = f"{cluster['server']}/api/v1/endpoints?{query}"
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
            return urllib.request.urlopen(request, timeout=WATCH_S + 10, context=context)

        while True:
            try:
                with get("") as response:
                    listed = json.load(response)
                self.by_object = {
                    item["metadata"]["uid"]: records(item) for item in listed["items"]
                }
                version = listed["metadata"]["resourceVersion"]
                query = f"watch=1&resourceVersion={version}&timeoutSeconds={WATCH_S}"
                with get(query) as response:
                    for line in response:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            break
                        uid = event["object"]["metadata"]["uid"]
                        deleted = event["type"] == "DELETED"
                        self.by_object[uid] = {} if deleted else records(event["object"])
            except OSError as error:
                print(f"endpoints: {error}; listing again", file=sys.stderr, flush=True)
                time.sleep(0.2)


def main() -> None:
    """Serve for ever."""
    address, kubeconfig = sys.argv[1:]
    resolver = ClusterResolver()
    quiet = DNSLogger("-request,-reply,-truncated,-data")
    for tcp in (False, True):
        DNSServer(resolver, address=address, port=53, tcp=tcp, logger=quiet).start_thread()
    threading.Thread(target=resolver.follow, args=[Path(kubeconfig)], daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
