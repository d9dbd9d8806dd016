"""GPUDirect-TCPX: a3-highgpu-8g, four network cards and a daemon that receives for the GPUs.

Based on gpudirect-tcpx/nccl-test-latest.yaml and nccl-config.yaml of
https://github.com/GoogleCloudPlatform/container-engine-accelerators at 992db812 (June 2026). Two
differences: the daemon is a native side car, so it ends with the trainer. Its socket has its own
mount path, since a mount over /tmp would hide the trainer's files.
"""

from typing import Final

from ddp_operator.job.pods.fabrics import edits

DAEMON: Final = "tcpx-daemon"
_SOCKET: Final = "/run/tcpx"
_NETWORKS: Final = tuple((f"eth{n}", f"vpc{n}") for n in range(1, 5))
_NCCL: Final = {
    # No script on the node sets these. The bindings assign the machine's CPUs to its cards.
    "NCCL_SOCKET_IFNAME": "eth0",
    "NCCL_ALGO": "Ring,Tree",
    "NCCL_PROTO": "Simple",
    "NCCL_CROSS_NIC": "0",
    "NCCL_NET_GDR_LEVEL": "PIX",
    "NCCL_P2P_PXN_LEVEL": "0",
    "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2,eth3,eth4",
    "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0",
    "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX": _SOCKET,
    "NCCL_DYNAMIC_CHUNK_SIZE": "524288",
    "NCCL_P2P_NET_CHUNKSIZE": "524288",
    "NCCL_P2P_PCI_CHUNKSIZE": "524288",
    "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
    "NCCL_BUFFSIZE": "4194304",
    "NCCL_NSOCKS_PERTHREAD": "4",
    "NCCL_SOCKET_NTHREADS": "1",
    "NCCL_GPUDIRECTTCPX_TX_BINDINGS": (
        "eth1:8-21,112-125;eth2:8-21,112-125;eth3:60-73,164-177;eth4:60-73,164-177"
    ),
    "NCCL_GPUDIRECTTCPX_RX_BINDINGS": (
        "eth1:22-35,126-139;eth2:22-35,126-139;eth3:74-87,178-191;eth4:74-87,178-191"
    ),
    "NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS": "500000",
}


def tcpx(draft: edits.Draft, trainer: str, image: str) -> None:
    """Give the pod TCPX; `image` is the daemon's."""
    edits.give_interfaces(draft, _NETWORKS)
    edits.give_devices(draft, DAEMON, edits.GPU_DEVICES)
    edits.add_host_path(draft, "ddp-tcpx-socket", _SOCKET)
    edits.add_daemon(draft, trainer, _daemon(image))
    trains = edits.container(draft, trainer)
    edits.mount(trains, "ddp-tcpx-socket", _SOCKET)
    edits.set_variables(trains, **_NCCL)
    edits.allow(trains, "IPC_LOCK")


def _daemon(image: str) -> edits.Draft:
    options = {
        "--gpu_nic_preset": "a3vm",
        "--gpu_shmem_type": "fd",
        "--uds_path": _SOCKET,
        "--setup_param": r"\"--verbose 128 2 0 \"",
    }
    words = [word for option in options.items() for word in option]
    daemon: edits.Draft = {
        "name": DAEMON,
        "image": image,
        "command": ["/tcpgpudmarxd/build/app/tcpgpudmarxd", *words],
    }
    edits.mount(daemon, "ddp-tcpx-socket", _SOCKET)
    edits.allow(daemon, "NET_ADMIN")
    return daemon
