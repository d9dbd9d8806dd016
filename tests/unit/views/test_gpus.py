from typing import Any

from ddp_client.views.gpus import stocks, table

from tests.unit.views.test_doctor import node, of

PRODUCT = "nvidia.com/gpu.product"


def pod(on: str, gpus: int) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus), "cpu": "1"}
    return {"spec": {"nodeName": on, "containers": [{"resources": {"limits": limits}}]}}


NODES = [
    node("a", {PRODUCT: "NVIDIA-L4"}, gpus=8),
    node("b", {PRODUCT: "NVIDIA-L4"}, gpus=4),
    node("c", {PRODUCT: "NVIDIA-L4"}, gpus=4, ready=False),
    node("d", gpus=2),
    node("e"),
]
PODS = [pod("a", 5), pod("a", 1), pod("d", 2), {"spec": {"containers": [{}]}}]


def test_free_gpus_are_those_that_no_pod_requests() -> None:
    l4, other = stocks(NODES, PODS)
    assert (l4.type, l4.nodes, l4.total, l4.free, l4.most_free) == ("NVIDIA-L4", 3, 16, 6, 4)
    assert (other.type, other.total, other.free) == ("", 2, 0)


def test_table_says_how_to_ask_for_each_type() -> None:
    lines = table(stocks(NODES, PODS), known=True)
    assert lines[1].split(maxsplit=6) == [
        *("NVIDIA-L4", "nvidia.com/gpu", "3", "16", "6", "4", "--gpus nvidia-l4:N")
    ]
    assert lines[2].endswith("--gpus N")
    assert lines[-1] == f"types by the node label {PRODUCT}"
    assert table(stocks(NODES, None), known=False)[1].split()[4:6] == ["?", "?"]


def test_doctor_tells_which_gpus_are_free() -> None:
    [found] = [each for each in of("GPUs", nodes=NODES, pods=PODS) if each.level == "ok"]
    assert "4 of 5 nodes offer 18 GPUs or slices, 6 free: NVIDIA-L4, nvidia.com/gpu" in found.text
