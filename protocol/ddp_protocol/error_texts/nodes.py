"""Texts about broken GPUs and nodes."""

from typing import Final

from ddp_protocol.error_texts.known import Class, Known

_COUNT: Final = r"cudaGetDeviceCount\(\).* Error "
_XID: Final = r"\b(?:Xid \([^)]*\):|NVRM:? Xid:?) "
"""How the driver numbers GPU errors."""
_UNEXPECTED: Final = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
    "before calling NumCudaDevices() that might have already set an error? "
)

GPUS: Final = (
    Known(
        r"uncorrectable ECC error|cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE"
        rf"|{_COUNT}214: |{_XID}(?:48|63|64|94|95)(?:\D|$)",
        Class.DEVICE,
        "the GPU's memory has errors that ECC cannot correct",
        "drain the node and reset the GPU; replace it if the error returns",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ),
    Known(
        r"uncorrectable NVLink error|cudaErrorNvlinkUncorrectable|CUDA_ERROR_NVLINK_UNCORRECTABLE"
        rf"|{_COUNT}220: |{_XID}74(?:\D|$)",
        Class.DEVICE,
        "a link between GPUs of the node is faulty",
        "drain the node; look for NVLink errors with nvidia-smi nvlink -e",
        "CUDA error: uncorrectable NVLink error detected during the execution",
    ),
    Known(
        rf"Invalid access of peer GPU memory over nvlink or a hardware error|{_COUNT}721: ",
        Class.DEVICE,
        "a GPU could not read another GPU's memory, because of the link or the hardware",
        "drain the node and look for Xid errors in its kernel log",
        "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
    ),
    Known(
        rf"GPU (?:at .* )?(?:has fallen off the bus|is lost)|{_XID}79(?:\D|$)",
        Class.DEVICE,
        "the driver no longer reaches the GPU over PCIe",
        "restart the node's machine; replace it if the GPU is lost again",
        "NVRM: GPU at PCI:0000:10:1c.0 has fallen off the bus",
    ),
    Known(
        r"GPU requires reset",
        Class.DEVICE,
        "the GPU has stopped after an error and works again only after a reset",
        "drain the node and reset the GPU (nvidia-smi --gpu-reset), or restart the machine",
        "Unable to determine the device handle for GPU 0000:10:1C.0: GPU requires reset",
    ),
    Known(
        rf"{_XID}(?:119|120)(?:\D|$)",
        Class.DEVICE,
        "the GPU's own processor (GSP) does not answer the driver",
        "restart the node's machine, and update its driver if this happens often",
        "NVRM: Xid (PCI:0000:10:1c): 119, pid=1896, Timeout waiting for RPC from GSP!",
    ),
    Known(
        rf"{_XID}(?:\d|1[0-24-9]|2\d|3[02-9]|4[0-246-9]|[05-9]\d|\d\d\d+)(?:\D|$)",
        Class.DEVICE,
        "the driver reports an error of the GPU",
        "look the number up in NVIDIA's list of Xid errors; drain the node",
        "NVRM: Xid (PCI:0000:10:1c): 62, pid=1896, Internal micro-controller halt",
    ),
    Known(
        rf"{_XID}(?:13|31|43|45)(?:\D|$)",
        Class.UNDECIDED,
        "the driver stopped work of this process: a kernel failed or used a wrong address, or the "
        "process was killed",
        "debug the script's kernels as after an illegal memory access; suspect the GPU if other "
        "scripts fail on it too",
        "NVRM: Xid (PCI:0000:10:1c): 31, pid=1896, MMU Fault",
    ),
    Known(
        r"rank \d+ (?:differs from the other ranks after step \d+; .*|has changed since step \d+)"
        r": flipped bits in memory",
        Class.DEVICE,
        "bits flipped in a rank's memory: its replica differs from those of most ranks, or its "
        "part of a sharded model has changed between two steps",
        "test the node's GPU and memory before other jobs use it",
        "rank 2 differs from the other ranks after step 40; last equal at step 30: flipped bits in "
        "memory",
    ),
)

NODES: Final = (
    Known(
        rf"CUDA-capable device(?:\(s\) is/are|s are) busy or unavailable|{_COUNT}46: ",
        Class.NODE,
        "another process holds the GPU exclusively, or the driver has disabled it",
        "look for other processes with nvidia-smi on the node, and check the compute mode",
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
    ),
    Known(
        rf"system not yet initialized|{_COUNT}802: ",
        Class.NODE,
        "the fabric manager, which machines with NVSwitch need, is not ready or does not run",
        "check on the node that nvidia-fabricmanager runs and has the driver's version",
        "torch.AcceleratorError: CUDA error: system not yet initialized",
    ),
    Known(
        rf"system has unsupported display driver|{_COUNT}803: "
        r"|Driver/library version mismatch|NVRM: API mismatch",
        Class.NODE,
        "the node's driver modules and libraries have different versions, often after an update",
        "restart the node's machine, or install its driver again",
        "Failed to initialize NVML: Driver/library version mismatch",
    ),
    Known(
        rf"forward compatibility was attempted on non supported HW|{_COUNT}804: ",
        Class.NODE,
        "the image brings newer driver libraries (cuda-compat) that this GPU does not support",
        "use nodes with a newer driver, or remove cuda-compat from LD_LIBRARY_PATH in the image",
        "CUDA error: forward compatibility was attempted on non supported HW",
    ),
    Known(
        r"CUDA driver version is insufficient for CUDA runtime version"
        r"|The NVIDIA driver on your system is too old",
        Class.NODE,
        "the node's driver is older than the CUDA version of the image's torch",
        "use nodes with a newer driver, or an image with torch for an older CUDA",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12080).",
    ),
    Known(
        rf"CUDA driver initialization failed|{_COUNT}(?:3|304|999): ",
        Class.NODE,
        "the node's driver could not start CUDA",
        "run nvidia-smi on the node, read its kernel log, and restart the machine",
        f"{_UNEXPECTED}Error 999: unknown error",
    ),
    Known(
        r"Failed to initialize NVML: (?:Unknown Error|Driver Not Loaded)"
        r"|nvmlInit(?:_v2)?\(\) failed: ",
        Class.NODE,
        "the container cannot use the driver: it is not loaded, or the container lost its devices",
        "run nvidia-smi on the node; if it works there, the container lost its devices when "
        "systemd reloaded: configure the runtime with CDI",
        "Failed to initialize NVML: Unknown Error",
    ),
    Known(
        r"MNNVL .* is available but not working on this system",
        Class.NODE,
        "the NVLink network between the machines is not configured",
        "check the IMEX daemon and its channels on the node; NCCL_MNNVL_ENABLE=0 avoids it",
        "NCCL WARN MNNVL (cliqueSize 8) is available but not working on this system.",
    ),
    Known(
        r"NET/IB ?: .*async fatal event|NET/IB ?: .*async event ?: .*port error",
        Class.NODE,
        "an RDMA network card of the node failed, or its port lost the link",
        "check the card, cable and switch port of the device that the message names",
        "NET/IB : mlx5_0:1 async fatal event: local catastrophic error",
    ),
    Known(
        r"Transport endpoint is not connected: ['\"]/",
        Class.NODE,
        "the process behind a FUSE mount, such as gcsfuse, has ended",
        "read the log of the mount's sidecar, and give it more memory if it was killed",
        "OSError: [Errno 107] Transport endpoint is not connected: '/gcs/data'",
    ),
    Known(
        r"Stale file handle: ['\"]/",
        Class.NODE,
        "the file server no longer knows an open file or folder, for example after its restart",
        "check the NFS server; new pods mount it again",
        "OSError: [Errno 116] Stale file handle: '/nfs/data'",
    ),
    Known(
        r"nvidia-container-cli: requirement error: ",
        Class.NODE,
        "the image needs a newer driver than the node has",
        "use nodes with a newer driver, or an image with an older CUDA",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please "
        "update your driver to a newer version",
    ),
    Known(
        r"nvidia-container-cli: .*(?:initialization|detection) error",
        Class.NODE,
        "NVIDIA's container runtime cannot use the node's driver",
        "run nvidia-smi on the node; install the driver and the container toolkit again",
        "nvidia-container-cli: initialization error: driver rpc error: timed out",
    ),
)
