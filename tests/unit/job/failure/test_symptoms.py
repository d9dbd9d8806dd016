"""Tests of error messages of torch, CUDA and container runtimes."""

import pytest
from ddp_operator.job.failure.symptoms import (
    headline,
    is_of_another_rank,
    is_of_command,
    is_of_command_line,
    is_of_node,
    torchrun_rank,
)

TRACEBACK = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "train.py", line 5, in <module>
[rank{rank}]:     loss.backward()
[rank{rank}]: {error}
"""
OWN = "ValueError: no such data set: imagenet"
CLOSED = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by "
    "peer [127.0.0.1]:11176. This is typically caused by a remote worker crashing."
)
TEARDOWN = "[rank0]:[W1121 03:55:27.29 TCPStore.cpp:106] recvValue failed: Connection reset by peer"
TORCHRUN = """E1121 03:55:27.417000 215 torch/distributed/elastic/multiprocessing/api.py:1002] \
failed (exitcode: 1) local_rank: 1 (pid: 21567) of binary: /usr/bin/python
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 6, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 21566)  (SIGTERM)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_03:55:27
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 21567)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def of_rank(rank: int, error: str) -> str:
    return TRACEBACK.format(rank=rank, error=error)


COUNT = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
    "before calling NumCudaDevices() that might have already set an error? "
)

OF_ANOTHER_RANK = {
    "gloo, closed": CLOSED,
    "gloo, reset": (
        "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:62614: Connection "
        "reset by peer."
    ),
    "gloo, silent": "RuntimeError: Application timeout caused pair closure",
    "store gone": (
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely "
        "closed. Did the remote server shutdown or crash?"
    ),
    "store gone, at a write": "torch.distributed.DistNetworkError: Broken pipe",
    "store not there": (
        "torch.distributed.DistNetworkError: The client socket has timed out after 2000ms while "
        "trying to connect to (digits-0-0.digits, 29500)."
    ),
    "others not there": (
        "torch.distributed.DistStoreError: Timed out after 3 seconds waiting for clients. 1/2 "
        "clients joined."
    ),
    "key not there": "torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /x",
    "nccl": (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, remote "
        "process exited or there was a network error, NCCL version 2.21.5"
    ),
    "nccl, in its own word": "ncclRemoteError: A call failed possibly due to a network error",
    "nccl, hung": (
        "[rank1]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE) ran for 600000 milliseconds\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'"
    ),
    "nccl, its id not there": (
        "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving "
        "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: "
        "Socket Timeout"
    ),
    "nccl, in older words": (
        "RuntimeError: [1] is setting up NCCL communicator and retreiving ncclUniqueId from [0] "
        "via c10d key-value store by key '0', but store->get('0') got error: Timeout waiting for "
        "key: default_pg/0/0 after 1800000 ms"
    ),
    "nccl, a connection refused": (
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system "
        "error, NCCL version 2.27.5\nncclSystemError: System call (e.g. socket, malloc) or "
        "external library call failed or device error. \nLast error:\nsocketStartConnect: Connect "
        "to 10.8.0.7<43211> failed : Connection refused"
    ),
    "nccl, a peer's shared memory": (
        "torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled system error\n"
        "ncclSystemError: System call failed\nLast error:\nError while attaching to shared memory "
        "segment /dev/shm/nccl-ofXdEr (size 9637892), error: No such file or directory (2)"
    ),
    "nccl, closed": (
        "torch.distributed.DistBackendError: NCCL error in: a.cpp:1, remote\nLast error:\n"
        "socketProgress: Connection closed by remote peer digits-0-1.digits<51123>"
    ),
    "nccl, a card that is not answered": (
        "NET/IB: Got completion from peer 10.8.0.7<51123> with status=IBV_WC_RETRY_EXC_ERR(12) "
        "opcode=IBV_WC_SEND(0) vendor_err=129 hca mlx5_0"
    ),
    "nccl, never initialized": (
        "torch.distributed.DistBackendError: NCCL timeout in communicator initialization."
    ),
    "another rank's dump": (
        "Received a dump signal due to a collective timeout from rank 3 and we will try our best"
    ),
    "store silent": "torch.distributed.DistStoreError: Socket Timeout",
    "store reset": "torch.distributed.DistNetworkError: Connection reset by peer",
    "store broken": (
        "[c10d] sendBytes failed on SocketImpl(fd=3, addr=[::1]:1, remote=[::1]:2): Broken pipe"
    ),
    "barrier": ("RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 300000 ms"),
    "torchrun, group closed": ("torch.distributed.elastic.rendezvous.api.RendezvousClosedError"),
    "torchrun, others late": ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"),
    "torchrun, store gone": (
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the "
        "C10d store has failed. See inner exception for details."
    ),
    "torchrun, terminated": (
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15"
    ),
}

OWN_FAILURES = {
    "exception": OWN,
    "nothing known": "Segmentation fault",
    "nothing at all": "",
    "port taken": (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29932, name: EADDRINUSE, message: address already in use"
    ),
    "shared memory": (
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled system "
        "error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclSystemError: "
        "System call (e.g. socket, malloc) or external library call failed or device error. \n"
        "Last error:\nError while creating shared memory segment /dev/shm/nccl-JmR9aU "
        "(size 33030528), error: No space left on device (28)"
    ),
    "no network of the name": (
        "torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled system error\n"
        "ncclSystemError: System call failed\nLast error:\nBootstrap : no socket interface found"
    ),
    "disk": "OSError: [Errno 28] No space left on device",
    "workers' shared memory": (
        "RuntimeError: unable to write to file </torch_7_1>: No space left on device (28)"
    ),
    "out of GPU memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "wrong use of NCCL": (
        "torch.distributed.DistBackendError: NCCL error in: a.cpp:1, invalid usage, NCCL version "
        "2.27.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast "
        "error:\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000"
    ),
    "own GPU": "torch.distributed.DistBackendError: NCCL error: unhandled cuda error",
    "after a connection that was mended": (
        "s3: Connection reset by peer, trying again\n" + of_rank(0, OWN)
    ),
    "and a teardown that complains": of_rank(0, OWN) + TEARDOWN,
}


@pytest.mark.parametrize("message", OF_ANOTHER_RANK.values(), ids=OF_ANOTHER_RANK)
def test_messages_of_a_rank_that_lost_a_peer(message: str) -> None:
    assert is_of_another_rank(message)
    assert is_of_another_rank(of_rank(3, message))


@pytest.mark.parametrize("message", OWN_FAILURES.values(), ids=OWN_FAILURES)
def test_messages_of_a_rank_that_failed_itself(message: str) -> None:
    assert not is_of_another_rank(message)


class TestSeveralProcesses:
    def test_one_failed_rank_in_a_log_is_the_cause(self) -> None:
        for log in (of_rank(1, OWN) + of_rank(0, CLOSED), of_rank(0, CLOSED) + of_rank(1, OWN)):
            assert not is_of_another_rank(log)
            assert headline(log) == f"[rank1]: {OWN}"

    def test_log_of_ranks_that_all_lost_a_peer(self) -> None:
        assert is_of_another_rank(of_rank(1, CLOSED) + of_rank(0, CLOSED))

    def test_torchrun_names_the_first_failure(self) -> None:
        log = of_rank(1, OWN) + of_rank(0, CLOSED) + TORCHRUN
        assert torchrun_rank(log) == 1
        assert headline(log) == f"[rank1]: {OWN}"
        assert not is_of_another_rank(log)
        assert is_of_another_rank(of_rank(1, CLOSED) + of_rank(0, OWN) + TORCHRUN)

    def test_torchrun_report_without_tracebacks(self) -> None:
        """The kubelet keeps only the last 2048 bytes of a log."""
        log = "peer.cc: Connection closed by peer\n" + TORCHRUN
        assert headline(log) == "torchrun: rank 1 failed first, with exitcode 1"
        assert not is_of_another_rank(log)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        (f"starting\n{of_rank(0, OWN)}{TEARDOWN}\n", f"[rank0]: {OWN}"),
        ("RuntimeError: CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA",
         "RuntimeError: CUDA error: out of memory"),
        ("KeyError: 'a'\n\nTraceback (most recent call last):\nmy.BadError: no", "my.BadError: no"),
    ],
)  # fmt: skip
def test_headline(message: str, expected: str) -> None:
    assert headline(message) == expected


RAN = "ran for 600027 milliseconds before timing out."
WATCHDOG = f"[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=199) {RAN}"
FRAMES = (
    "Exception raised from checkTimeout at /pytorch/ProcessGroupNCCL.cpp:688 (most recent first):\n"
    "frame #0: c10::Error::Error(c10::SourceLocation) + 0x80 (0x7f in libc10.so)\n"
    "frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(int) + 0x247 (0x7f in libtorch.so)\n"
    "\nException raised from run at /pytorch/ProcessGroupNCCL.cpp:2063 (most recent call first):\n"
    "frame #5: clone + 0x44 (0x7f in libc.so.6)\n"
)
"""The end of a rank that torch's watchdog aborts; kubelets keep the last 2048 bytes of it."""


@pytest.mark.parametrize("text", [WATCHDOG + "\n" + FRAMES, f"00) {RAN}\n{FRAMES}", FRAMES])
def test_abort_of_the_watchdog_is_of_another_rank(text: str) -> None:
    assert is_of_another_rank(text)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (f"terminate called after throwing E\n  what():  {WATCHDOG}\n{FRAMES}", WATCHDOG),
        (f"00) {RAN}\n{FRAMES}", f"00) {RAN}"),
        ("frame #4: a\nframe #5: clone + 0x44", "frame #5: clone + 0x44"),
        (
            "torch.distributed.DistBackendError: NCCL error in: a.cpp:1, remote process exited\n"
            "ncclRemoteError: A call failed possibly due to a network error.\nLast error:\n"
            "socketPollConnect: connect to 10.8.0.7<43> returned Connection refused(111)",
            "ncclRemoteError: socketPollConnect: connect to 10.8.0.7<43> returned Connection "
            "refused(111)",
        ),
    ],
    ids=["what", "end of a sentence", "frames alone", "last error of NCCL"],
)
def test_headline_is_no_stack_frame_if_there_is_a_cause(message: str, expected: str) -> None:
    assert headline(message) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", True),
        ("CUDA error: uncorrectable NVLink error detected during the execution", True),
        ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", True),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", True),
        ("NVRM: Xid (PCI:0000:10:1c): 79, pid=1896, GPU has fallen off the bus.", True),
        ("NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked", True),
        ("NVRM: Xid (PCI:0000:10:1c): 31, pid=1896, MMU Fault", False),
        ("Failed to initialize NVML: Driver/library version mismatch", True),
        (COUNT + "Error 802: system not yet initialized", True),
        (
            COUNT + "Error 803: system has unsupported display driver / cuda driver combination",
            True,
        ),
        (COUNT + "Error 804: forward compatibility was attempted on non supported HW", True),
        (COUNT + "Error 46: all CUDA-capable devices are busy or unavailable", True),
        (COUNT + "Error 999: unknown error", True),
        (COUNT + "Error 2: out of memory", False),
        (COUNT + "Error 101: invalid device ordinal", False),
        ("RuntimeError: No CUDA GPUs are available", False),
        ("torch.AcceleratorError: CUDA error: system not yet initialized", True),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", True),
        ("CUDA error: CUDA driver version is insufficient for CUDA runtime version", True),
        ("NCCL WARN nvmlInit_v2() failed: Driver/library version mismatch", True),
        (
            "ncclUnhandledCudaError: x\nLast error:\nCuda failure 802 'system not yet initialized'",
            True,
        ),
        ("NVRM: API mismatch: the client has the version 580.65.06, but", True),
        ("NET/IB : mlx5_0:1 async fatal event: local catastrophic error", True),
        ("NVRM: GPU at PCI:0000:10:1c.0 has fallen off the bus", True),
        ("CUDA_ERROR_ECC_UNCORRECTABLE", True),
        ("nvidia-container-cli: initialization error: driver rpc error: timed out", True),
        ("OSError: [Errno 107] Transport endpoint is not connected: '/gcs/data'", True),
        ("OSError: [Errno 116] Stale file handle: '/nfs/data'", True),
        ("OSError: [Errno 107] Transport endpoint is not connected", False),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", False),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", False),
        ("", False),
    ],
)
def test_messages_of_a_broken_node(message: str, *, expected: bool) -> None:
    assert is_of_node(message) is expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ('exec: "trian.py": executable file not found in $PATH: unknown', True),
        ('exec: "/run.sh": stat /run.sh: no such file or directory: unknown', True),
        ('exec: "/run.sh": permission denied: unknown', True),
        ("exec /run.sh: exec format error", True),
        ("fork/exec /usr/bin/nvidia-container-runtime-hook: no such file or directory", False),
        ("error mounting /dev/nvidia0: no such file or directory", False),
    ],
)
def test_messages_of_a_bad_command(message: str, *, expected: bool) -> None:
    assert is_of_command(message) is expected


NO_FILE = "python: can't open file '/train.py': [Errno 2] No such file or directory"
NO_MODULE = """Traceback (most recent call last):
  File "/work/train.py", line 1, in <module>
    import transformers
ModuleNotFoundError: No module named 'transformers'
"""
NO_FLAG = """usage: train.py [-h] [--lr LR]
train.py: error: unrecognized arguments: --rate 1
"""
BAD_SYNTAX = """  File "train.py", line 3
    for step in range(10)
                         ^
SyntaxError: expected ':'
"""


@pytest.mark.parametrize("message", [NO_FILE, NO_MODULE, NO_FLAG, BAD_SYNTAX])
def test_mistakes_in_a_command_are_known(message: str) -> None:
    assert is_of_command_line(message)
    assert is_of_command_line(f"warning: slow\n{message}\n{TORCHRUN}")


@pytest.mark.parametrize(
    "message",
    [
        f"{NO_FLAG}\nstarted",
        f"{NO_MODULE}\nDuring handling of the above exception, another exception occurred:\n"
        "Traceback (most recent call last):\nRuntimeError: the loader failed",
        of_rank(0, OWN),
        "",
    ],
)
def test_other_ends_are_no_mistakes_in_a_command(message: str) -> None:
    assert not is_of_command_line(message)
