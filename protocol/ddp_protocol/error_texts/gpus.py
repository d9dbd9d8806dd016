"""Texts about GPU memory, CUDA and its libraries."""

from typing import Final

from ddp_protocol.error_texts.known import Class, Known

_CUDA: Final = r"(?:CUDA error: |Cuda failure (?:\d+ )?')"

GPU_MEMORY: Final = (
    Known(
        r"CUDA out of memory\..* Process \d+ has \S+ \S+ memory in use",
        Class.UNDECIDED,
        "the GPU is full, and other processes use part of its memory",
        "call torch.cuda.set_device(LOCAL_RANK) before anything uses the GPU, load checkpoints "
        "with map_location, and do not share the GPU with other pods",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.56 GiB. GPU 0 has a "
        "total capacity of 47.37 GiB of which 17.60 GiB is free. Process 36 has 2.27 GiB memory "
        "in use.",
    ),
    Known(
        rf"OutOfMemoryError|CUDA out of memory|{_CUDA}out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        Class.UNDECIDED,
        "the GPU ran out of memory",
        "use smaller batches or gradient accumulation, activation checkpointing, or sharding; "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps if much is reserved but "
        "unallocated",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ),
)

PROGRAM_ON_GPU: Final = (
    Known(
        rf"{_CUDA}no kernel image is available",
        Class.CUDA,
        "torch or an extension in the image was not compiled for this type of GPU",
        "use an image with a torch build that supports the GPU, and compile extensions for it "
        "(TORCH_CUDA_ARCH_LIST)",
        "CUDA error: no kernel image is available for execution on the device",
    ),
    Known(
        rf"{_CUDA}the provided PTX was compiled with an unsupported toolchain",
        Class.CUDA,
        "a kernel was compiled with a newer CUDA than the node's driver knows",
        "use nodes with a newer driver, or torch and extensions for an older CUDA",
        "torch.AcceleratorError: CUDA error: the provided PTX was compiled with an unsupported "
        "toolchain.",
    ),
    Known(
        rf"{_CUDA}initialization error",
        Class.CUDA,
        "CUDA could not start in this process, usually because its parent used the GPU before it "
        "forked",
        "use no GPU before DataLoader workers start, or set multiprocessing_context='spawn'",
        "RuntimeError: CUDA error: initialization error",
    ),
    Known(
        rf"{_CUDA}invalid device ordinal",
        Class.CUDA,
        "the script asked for a GPU number that the container does not have",
        "use LOCAL_RANK as the GPU's number; compare nprocPerNode with the GPUs of the container",
        "RuntimeError: CUDA error: invalid device ordinal",
    ),
    Known(
        rf"{_CUDA}device-side assert triggered",
        Class.CUDA,
        "a kernel found a wrong value, usually a label or token outside the model's range",
        "compare labels and token ids with the number of classes or the vocabulary; "
        "CUDA_LAUNCH_BLOCKING=1 shows the line",
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
    ),
    Known(
        rf"{_CUDA}(?:an illegal memory access was encountered|misaligned address"
        r"|an illegal instruction was encountered|invalid program counter)",
        Class.CUDA,
        "a kernel used a wrong address: a bug in a kernel or extension, or a faulty GPU",
        "find the kernel with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer; if it happens on one "
        "node only, test its GPU",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    ),
    Known(
        rf"{_CUDA}unspecified launch failure",
        Class.CUDA,
        "a kernel ended abnormally, like a segmentation fault on the GPU",
        "look for an Xid number in the node's kernel log; find the kernel with "
        "CUDA_LAUNCH_BLOCKING=1",
        "RuntimeError: CUDA error: unspecified launch failure",
    ),
    Known(
        r"CU(?:BLAS|DNN)_STATUS_NOT_INITIALIZED",
        Class.CUDA,
        "a library (cuBLAS or cuDNN) could not start, usually because the GPU's memory is full",
        "use smaller batches; otherwise look for mixed CUDA libraries in the image "
        "(LD_LIBRARY_PATH, pip list)",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling "
        "`cublasCreate(handle)`",
    ),
    Known(
        r"CU(?:BLAS|DNN)_STATUS_EXECUTION_FAILED",
        Class.CUDA,
        "a kernel of cuBLAS or cuDNN failed, often because an earlier kernel wrote outside its "
        "memory",
        "repeat with CUDA_LAUNCH_BLOCKING=1, and with other versions of torch and CUDA",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`",
    ),
    Known(
        r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory",
        Class.UNDECIDED,
        "NCCL cannot use the multicast of the node's NVSwitches",
        "restart the fabric manager of the node; NCCL_NVLS_ENABLE=0 avoids it at some loss of "
        "speed",
        "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401",
    ),
    Known(
        r"unable to find an engine to execute this computation|CUDNN_STATUS_NOT_SUPPORTED"
        r"|find a valid cuDNN algorithm",
        Class.UNDECIDED,
        "cuDNN cannot compute a convolution: memory is nearly full, the data type does not suit "
        "the GPU, or libraries are mixed",
        "use smaller batches, try float32, and remove other versions of cuDNN from LD_LIBRARY_PATH",
        "RuntimeError: GET was unable to find an engine to execute this computation",
    ),
    Known(
        r"CUDA error: |CUDA driver error: |cuDNN error: |CUBLAS_STATUS_|CUDNN_STATUS_"
        r"|ncclUnhandledCudaError|unhandled cuda error|Cuda failure",
        Class.CUDA,
        "a CUDA call failed; the call that is named may be a later one than the cause",
        "repeat with CUDA_LAUNCH_BLOCKING=1, or NCCL_DEBUG=INFO if NCCL reports it",
        "torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled cuda error",
    ),
    Known(
        r"Found no NVIDIA driver on your system|No CUDA GPUs are available"
        r"|ProcessGroupNCCL is only supported with GPUs, no GPUs found",
        Class.UNDECIDED,
        "the container has no GPU, or does not see it",
        "request GPUs (spec.accelerator, or nvidia.com/gpu in the template), and do not set "
        "CUDA_VISIBLE_DEVICES; without GPUs use the gloo backend",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA "
        "GPU and installed a driver",
    ),
    Known(
        r"lib(?:cuda|nvidia-ml)\.so(?:\.\d+)?: cannot open shared object file",
        Class.UNDECIDED,
        "the driver's libraries are not mounted into the container",
        "request a GPU for the container; on GKE, add /usr/local/nvidia/lib64 to LD_LIBRARY_PATH",
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
    ),
    Known(
        r"Torch not compiled with CUDA enabled|Distributed package doesn't have NCCL built in",
        Class.UNDECIDED,
        "the image has a torch for CPUs",
        "install the CUDA build of torch in the image; a later pip install may have replaced it",
        "AssertionError: Torch not compiled with CUDA enabled",
    ),
    Known(
        r"Cannot re-initialize CUDA in forked subprocess",
        Class.UNDECIDED,
        "a process that already used the GPU was forked, and the child uses the GPU too",
        "use no GPU in the data set, or set multiprocessing_context='spawn' in the DataLoader",
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
        "multiprocessing, you must use the 'spawn' start method",
    ),
    Known(
        r"Expected all tensors to be on the same device",
        Class.UNDECIDED,
        "an operation got tensors of different devices",
        "move batches and new tensors to the model's device",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two "
        "devices, cuda:0 and cpu!",
    ),
    Known(
        r"CUDA unknown error - this may be due to an incorrectly set up environment",
        Class.UNDECIDED,
        "CUDA did not start: a module of the driver is missing, or the script changed "
        "CUDA_VISIBLE_DEVICES too late",
        "run nvidia-smi on the node; set CUDA_VISIBLE_DEVICES only before torch is imported",
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
    ),
    Known(
        r"device >= 0 && device < num_gpus|AssertionError: Invalid device id",
        Class.UNDECIDED,
        "a GPU number is too high for this container",
        "use LOCAL_RANK as the GPU's number, and request as many GPUs as processes",
        "AssertionError: Invalid device id",
    ),
    Known(
        r"FlashAttention only supports|[Yy]our setup doesn't support bf16|[Bb]f16 (?:is"
        r"|are) (?:not|only) supported",
        Class.UNDECIDED,
        "the GPU is too old for an operation",
        "choose a newer GPU in spec.accelerator, or use fp16 and attn_implementation='sdpa'",
        "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
    ),
    Known(
        r"triton.*OutOfResources: out of resource",
        Class.UNDECIDED,
        "a Triton kernel needs more shared memory or registers than the GPU has",
        "use smaller blocks, fewer stages, or the settings for this type of GPU",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, "
        "Hardware limit: 101376.",
    ),
    Known(
        r"lib(?:cudart|cublas|cublasLt|cudnn|nccl|nvrtc|cusparse|cusparseLt|cusolver|cufft|curand"
        r"|cupti|nvJitLink)[\w.-]*: cannot open shared object file",
        Class.UNDECIDED,
        "a package needs a CUDA library of a version that the image lacks",
        "install the package's build for the CUDA version of the image's torch",
        "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory",
    ),
    Known(
        r"HIP error: (?:invalid device function|no kernel image|invalid kernel file)",
        Class.UNDECIDED,
        "torch in the image was not compiled for this AMD GPU",
        "use a torch build that supports the GPU",
        "RuntimeError: HIP error: invalid device function",
    ),
    Known(
        r"NVML_SUCCESS == ",
        Class.UNDECIDED,
        "torch's allocator cannot ask the driver (NVML)",
        "run nvidia-smi in the pod; if it works, try without expandable_segments in "
        "PYTORCH_CUDA_ALLOC_CONF",
        "RuntimeError: NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED",
    ),
)
