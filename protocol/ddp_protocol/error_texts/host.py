"""Texts about memory, processes, files and volumes."""

from typing import Final

from ddp_protocol.error_texts.known import Class, Known

MEMORY: Final = (
    Known(
        r"creating shared memory segment|failed to create shared memory file",
        Class.OWN,
        "NCCL could not create its buffers in /dev/shm",
        "raise the container's memory limit, since /dev/shm counts towards it; if the template "
        "mounts a volume there, raise its sizeLimit",
        "Error while creating shared memory segment /dev/shm/nccl-JmR9aU (size 33030528), error: "
        "No space left on device (28)",
    ),
    Known(
        r"unable to (?:write to|allocate shared memory\(shm\) for) file </torch_.*No space left",
        Class.OWN,
        "/dev/shm is full: DataLoader workers pass their batches through it",
        "raise the container's memory limit, since /dev/shm counts towards it; or use fewer "
        "workers or a smaller prefetch_factor",
        "RuntimeError: unable to write to file </torch_7_1>: No space left on device (28)",
    ),
    Known(
        r"DataLoader worker .*is killed by signal: Bus error|insufficient shared memory \(shm\)",
        Class.UNDECIDED,
        "/dev/shm is too small for the batches that DataLoader workers pass through it",
        "raise the container's memory limit, and the sizeLimit of a volume at /dev/shm; or use "
        "fewer workers or a smaller prefetch_factor",
        "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is possible "
        "that dataloader's workers are out of shared memory.",
    ),
    Known(
        r"DataLoader worker .*is killed by signal: Killed",
        Class.UNDECIDED,
        "the kernel killed a DataLoader worker, usually because memory ran out",
        "raise the container's memory limit, use fewer workers, or load less at once",
        "RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed.",
    ),
    Known(
        r"DataLoader worker .*(?:is killed by signal|exited unexpectedly)"
        r"|Pin memory thread exited unexpectedly",
        Class.UNDECIDED,
        "a process or thread that loads data has ended without a message",
        "set num_workers=0 to see its error; watch memory and /dev/shm",
        "RuntimeError: DataLoader worker (pid(s) 71, 72) exited unexpectedly",
    ),
    Known(
        r"was killed \(SIGKILL\)|\bOut of memory: Killed process|container init was OOM-killed"
        r"|terminated with signal SIGKILL|(?m:^(?:.*line \d+: +\d+ )?Killed\b)",
        Class.UNDECIDED,
        "the kernel killed a process, usually because the container or its node ran out of memory",
        "raise the container's memory limit, use fewer DataLoader workers, or load less at once",
        "rank 1 was killed (SIGKILL): by the kernel because memory ran out, or by hand",
    ),
    Known(
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|\bMemoryError\b"
        r"|ArrayMemoryError|std::bad_alloc",
        Class.UNDECIDED,
        "the process asked for more memory of the host than there is",
        "look for a tensor or array of a wrong size; load the data in parts",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't "
        "allocate memory: you tried to allocate 824633720832 bytes.",
    ),
    Known(
        r"(?:size vs\. prev_size|double free or corruption|free\(\): invalid|malloc\(\): "
        r"|munmap_chunk\(\): )",
        Class.UNDECIDED,
        "native code overwrote memory that is not its own",
        "set PYTHONFAULTHANDLER=1 to see where it ended; update or remove extensions",
        "corrupted size vs. prev_size",
    ),
    Known(
        r"\bBus error\b|\bSIGBUS\b",
        Class.UNDECIDED,
        "a process read a mapped file that shrank, or wrote to a full /dev/shm",
        "raise the container's memory limit, since /dev/shm counts towards it; do not replace "
        "data files while a job reads them",
        "Fatal Python error: Bus error",
    ),
    Known(
        r"Cannot allocate memory",
        Class.OWN,
        "the container has reached its memory limit, or the node its own",
        "raise the container's memory limit, or use fewer DataLoader workers",
        "OSError: [Errno 12] Cannot allocate memory",
    ),
    Known(
        r"Too many open files",
        Class.OWN,
        "the process has reached its limit of open files",
        "close files, use fewer workers, or call "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
        "OSError: [Errno 24] Too many open files",
    ),
    Known(
        r"received \d+ items of ancdata",
        Class.UNDECIDED,
        "DataLoader workers pass more open files than the process may have",
        "call torch.multiprocessing.set_sharing_strategy('file_system')",
        "RuntimeError: received 0 items of ancdata",
    ),
    Known(
        r"can't start new thread|pthread_create failed|libgomp: Thread creation failed",
        Class.UNDECIDED,
        "the container has reached its limit of processes and threads",
        "set OMP_NUM_THREADS, use fewer workers, or raise the node's limit (podPidsLimit)",
        "RuntimeError: can't start new thread",
    ),
    Known(
        r"unable to \w+ (?:shared memory object|file) </torch_",
        Class.UNDECIDED,
        "a process could not share a tensor with another through /dev/shm",
        "look for an earlier end of that process; use fewer workers, or "
        "set_sharing_strategy('file_system')",
        "RuntimeError: unable to open shared memory object </torch_71_1> in read-write mode: No "
        "such file or directory (2)",
    ),
    Known(
        r"DataLoader timed out after",
        Class.UNDECIDED,
        "no worker delivered a batch in time: the storage is slow, or a worker hangs",
        "raise the DataLoader's timeout; look at the workers with kubectl ddp stacks and at the "
        "storage's speed",
        "RuntimeError: DataLoader timed out after 30 seconds",
    ),
    Known(
        r"BrokenPipeError: ",
        Class.UNDECIDED,
        "the process at the other end of a pipe has ended, such as a worker or a logger",
        "look for the first error further up in the log",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ),
)

FILES: Final = (
    Known(
        r"Disk quota exceeded",
        Class.UNDECIDED,
        "the user's or project's quota of the file system is used up",
        "delete old checkpoints, or ask for a larger quota",
        "OSError: [Errno 122] Disk quota exceeded: '/home/me/checkpoint.pt'",
    ),
    Known(
        r"unexpected pos \d+ vs \d+|PytorchStreamWriter failed writing file",
        Class.UNDECIDED,
        "torch could not write a checkpoint, usually because the disk is full",
        "free space, keep fewer checkpoints, or enlarge the volume",
        "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 128 vs 22",
    ),
    Known(
        r"No space left on device",
        Class.OWN,
        "a disk, or a volume in memory, is full",
        "delete old checkpoints and caches, or enlarge the volume; df -h in the pod shows which "
        "one",
        "OSError: [Errno 28] No space left on device",
    ),
    Known(
        r"Transport endpoint is not connected|Stale file handle",
        Class.UNDECIDED,
        "a mounted volume lost its server or its FUSE process",
        "check the file server, or the log of the mount's sidecar; give that more memory if it was "
        "killed",
        "OSError: [Errno 107] Transport endpoint is not connected",
    ),
    Known(
        r"(?i:input/output error)|Remote I/O error",
        Class.SERVICE,
        "a disk or a mounted bucket could not read or write",
        "read the log of the FUSE mount's sidecar, or the node's kernel log for a faulty disk",
        "OSError: [Errno 5] Input/output error: '/gcs/train/shard-00017.tar'",
    ),
    Known(
        r"Read-only file system",
        Class.UNDECIDED,
        "the script writes to a volume, or an image, that is mounted read-only",
        "write to a volume; remove readOnly from its mount or readOnlyRootFilesystem, or set HOME "
        "and caches (HF_HOME, TORCH_HOME) to a writable path",
        "OSError: [Errno 30] Read-only file system: '/root/.cache'",
    ),
    Known(
        r"Device or resource busy: ['\"].*\.nfs",
        Class.UNDECIDED,
        "a process deletes a folder on NFS while another still has a file of it open",
        "close the files first, and let only rank 0 delete",
        "OSError: [Errno 16] Device or resource busy: '.nfs00000000a1b2'",
    ),
    Known(
        r"Permission denied: ['\"]|PermissionError: \[Errno 13\]",
        Class.UNDECIDED,
        "the container's user may not use this path",
        "set securityContext.fsGroup to the volume's group, or runAsUser to its owner",
        "PermissionError: [Errno 13] Permission denied: '/checkpoints/step-100'",
    ),
    Known(
        r"FileNotFoundError: ",
        Class.UNDECIDED,
        "a file is not in the container",
        "check the path and the mount of the data in each pod",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train/00017.tar'",
    ),
    Known(
        r"\[Errno 2[01]\] (?:Is|Not) a directory",
        Class.UNDECIDED,
        "a path is a folder where a file is needed, or the reverse",
        "check the path; a mount with a subPath that does not exist becomes an empty folder",
        "IsADirectoryError: [Errno 21] Is a directory: '/data/train.csv'",
    ),
    Known(
        r"FileExistsError: ",
        Class.UNDECIDED,
        "a file or folder exists already, perhaps because several ranks create it",
        "let only rank 0 create it, or use exist_ok=True",
        "FileExistsError: [Errno 17] File exists: '/checkpoints/step-100'",
    ),
    Known(
        r"\[Errno (?:38|95)\]",
        Class.UNDECIDED,
        "the file system lacks a function; mounted buckets cannot lock, append or rename folders",
        "write to a local disk first and copy the finished file, or use a volume that is a real "
        "file system",
        "OSError: [Errno 95] Operation not supported: '/gcs/events.lock'",
    ),
    Known(
        r"Operation not permitted: ['\"]",
        Class.UNDECIDED,
        "the volume does not allow a change of owner, mode or times",
        "copy without attributes (shutil.copyfile), or set uid and gid in the mount's options",
        "PermissionError: [Errno 1] Operation not permitted: '/gcs/model.pt'",
    ),
)
