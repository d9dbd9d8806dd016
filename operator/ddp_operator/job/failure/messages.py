"""Error texts of torch, NCCL, gloo, CUDA and the driver, grouped by what they mean.

Operator and trainer share this table. `make generate` copies this file to the trainer's package, so
it imports only the standard library. The patterns work with RE2 and with Python's engine, and never
match across lines.

Source: torch 2.6 to 2.15 (torch/csrc/distributed/c10d, c10/cuda, torch/distributed/elastic), their
gloo, and NCCL 2.27 to 2.30 (src/init.cc, bootstrap.cc, misc, os, transport).
"""

from typing import Final

GLOO: Final = (
    # transport/tcp and rendezvous: the other side of a pair is gone or silent.
    r"gloo/(transport|rendezvous)/.*(Connection (closed|reset) by peer|Read error|Write error"
    r"|Broken pipe|Timed out|[Tt]imeout|Connection refused|[Ss]ocket (unexpectedly )?closed"
    r"|is not connected)",
    r"Application timeout caused pair closure",
    r"Gloo connectFullMesh failed",
    r"(failed to pass|timed out in) monitoredBarrier",
)
"""gloo has lost another rank. It reports that in an ordinary RuntimeError."""

PEER: Final = (
    *GLOO,
    r"Connection (closed|reset) by (remote )?peer",
    r"Remote peer closed the connection",
    # c10d: stores and sockets. Rank 0 holds the store.
    r"Did the remote server shutdown or crash",
    r"TCPStore server has shut ?down",
    r"[Tt]imed out after .* waiting for clients",
    r"The client socket has (timed out|failed to connect)",
    r"(wait|barrier) timeout after \d+ms, keys?:",
    r"Timeout waiting for key: ",
    r"\bSocket Timeout\b",
    r"(send|recv)(Bytes|Value|Vector|String)\w* failed on ",
    r"\bDist(Network|Store)Error: ",
    # NCCL through c10d: NCCLUtils, ProcessGroupNCCL. Before ncclRemoteError existed, NCCL reported
    # ncclSystemError when a remote peer ended.
    r"ncclRemoteError",
    r"ncclSystemError",
    r"remote process exit(ed|ing)",
    r"Watchdog caught collective operation timeout",
    r"NCCL communicator was aborted",
    r"NCCL timeout in communicator initialization",
    r"NCCL error in: .*, timeout, NCCL version",
    r"setting up NCCL communicators? and retr\w+ ncclUniqueId",
    r"store->\w+\(.*\) got error: ",
    r"dump signal (due to .*)?from +(another |other )?rank",
    # NCCL itself, in a warning or as its last error.
    r"socketStartConnect: Connect to .* failed",
    r"socketPollConnect: [Cc]onnect .*(failed|returned|timed out)",
    r"Call to (connect|recv|send)( (to|from) .*)? (failed|returned|timed out)",
    r"Got completion from peer .*(status=|error )"
    r"(IBV_WC_(WR_FLUSH|RETRY_EXC|RNR_RETRY_EXC|REM_\w+)_ERR|(5|9|10|11|12|13)\b)",
    # torch/distributed/elastic: another agent left or never joined.
    r"Rendezvous(Closed|Connection|GracefulExit|Timeout)Error",
    r"SignalException: Process \d+ got signal: 15",
)
"""Another rank is gone or silent: the failure is a consequence."""

CUDA: Final = (
    r"CUDA error: ",
    r"CUDA driver error: ",
    r"cuDNN error: ",
    r"CUBLAS_STATUS_",
    r"CUDNN_STATUS_",
    r"ncclUnhandledCudaError",
    r"unhandled cuda error",
    r"Cuda failure",
)
"""A CUDA error in this process, which each later call repeats. Libraries and NCCL report it in
their own words."""

OWN: Final = (
    *CUDA,
    # NCCL and c10d, next to words of `PEER`: this rank lacks a resource.
    r"creating shared memory segment",
    r"failed to create shared memory file",
    r"No space left on device",
    r"Cannot allocate memory",
    r"Too many open files",
    r"no socket interface found",
    r"No usable listening interface found",
    r"No IP interface found",
    r"no device found (matching|after excluding)",
    r"server socket .*has failed to (listen|bind)",
    r"[Aa]ddress already in use",
    r"Call to ibv_\w+ failed",
)
"""This rank failed by itself, even if the text also matches `PEER`."""

DEVICE: Final = (
    # CUDA's error strings (cudaGetErrorString) and names: memory, links.
    r"uncorrectable ECC error",
    r"uncorrectable NVLink error",
    r"Invalid access of peer GPU memory over nvlink or a hardware error",
    r"cudaError(ECC|Nvlink)Uncorrectable",
    r"CUDA_ERROR_(ECC|NVLINK)_UNCORRECTABLE",
    r"cudaGetDeviceCount\(\).* Error (214|220|721): ",
    # The driver's own words, and NVML's.
    r"GPU (at .* )?(has fallen off the bus|is lost)",
    r"GPU requires reset",
    # The trainer, of a rank whose replica differs from those of most ranks.
    r"rank \d+ differs from the other ranks after step \d+; .*: flipped bits in memory",
)
"""A GPU is broken or lost, or memory is faulty, and does not recover by itself."""

NODE: Final = (
    # CUDA's error strings: this node's driver, its daemons, or other users of its GPUs.
    r"CUDA-capable device(\(s\) is/are|s are) busy or unavailable",
    r"system not yet initialized",
    r"system has unsupported display driver",
    r"forward compatibility was attempted on non supported HW",
    r"CUDA driver version is insufficient for CUDA runtime version",
    r"cudaGetDeviceCount\(\).* Error (3|46|304|802|803|804|999): ",
    # c10/cuda, of the same.
    r"The NVIDIA driver on your system is too old",
    r"CUDA driver initialization failed",
    # NVML's words, and NCCL's of it; the driver's own.
    r"Driver/library version mismatch",
    r"Failed to initialize NVML: (Unknown Error|Driver Not Loaded)",
    r"nvmlInit(_v2)?\(\) failed: ",
    r"NVRM: API mismatch",
    r"MNNVL .* is available but not working on this system",
    # NCCL: a network card of this node.
    r"NET/IB ?: .*async fatal event",
    r"NET/IB ?: .*async event ?: .*port error",
    # The kernel, of a file on a mount that has lost its FUSE process or NFS server.
    r"(Transport endpoint is not connected|Stale file handle): ['\"]/",
    # nvidia-container-toolkit, as a runtime hook of the container.
    r"nvidia-container-cli: .*(initialization|detection) error",
)
"""The node is broken, not necessarily its GPUs."""
