"""Texts about networks of GPUs, and about other ranks."""

from typing import Final

from ddp_protocol.error_texts.known import Class, Known

NETWORK: Final = (
    Known(
        r"no socket interface found|No usable listening interface found|No IP interface found"
        r"|no device found (?:matching|after excluding)",
        Class.OWN,
        "NCCL finds no network interface with the name that is set",
        "correct or remove NCCL_SOCKET_IFNAME; ip addr in the pod lists the interfaces",
        "Bootstrap : no socket interface found",
    ),
    Known(
        r"Unable to find address for:? "
        r"|Failed to look up the IP address for (?:interface|the host)",
        Class.UNDECIDED,
        "gloo finds no network interface of the name that is set, or no address of the host's name",
        "correct or remove GLOO_SOCKET_IFNAME; ip addr in the pod lists the interfaces",
        "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to "
        "find address for: eth9",
    ),
    Known(
        r"server socket .*has failed to (?:listen|bind)|[Aa]ddress already in use",
        Class.OWN,
        "another process of the pod, or with hostNetwork of the node, uses the port",
        "start torchrun or init_process_group only once; with hostNetwork choose another port",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29932, useIpv6: false, code: -98, name: EADDRINUSE",
    ),
    Known(
        r"Call to ibv_\w+ failed with error Cannot allocate memory",
        Class.OWN,
        "the container may not lock enough memory for RDMA",
        "raise the limit of locked memory of the node's container runtime, or add the capability "
        "IPC_LOCK to the container",
        "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    ),
    Known(
        r"Call to ibv_\w+ failed",
        Class.OWN,
        "a call to the RDMA network card failed",
        "check the card (ibv_devinfo), its device plugin and the permissions of the pod; "
        "NCCL_IB_DISABLE=1 avoids it at a loss of speed",
        "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out",
    ),
    Known(
        r"NCCL version mismatch with remote peer|Mismatched NCCL version detected"
        r"|NCCL library is (?:too old|not backwards compatible)",
        Class.UNDECIDED,
        "ranks, or torch and the system, have different versions of NCCL",
        "run the same image in all pods, by its digest; remove other libnccl from LD_LIBRARY_PATH",
        "Mismatched NCCL version detected : rank 1 version 22703 rank 0 version 22809",
    ),
    Known(
        r"Duplicate GPU detected",
        Class.UNDECIDED,
        "two ranks use the same GPU",
        "call torch.cuda.set_device(LOCAL_RANK); compare nprocPerNode with the GPUs of the "
        "container",
        "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000",
    ),
    Known(
        r"Failed to initialize any NET plugin|Error ?: network .*not found",
        Class.UNDECIDED,
        "NCCL could not start the network that NCCL_NET names",
        "mount the network's plugin and set LD_LIBRARY_PATH, or unset NCCL_NET",
        "NCCL WARN Failed to initialize any NET plugin",
    ),
    Known(
        r"NET/OFI.*(?:[Uu]nable to|[Ff]ailed to|[Nn]o eligible)|NET/FasTrak.*(?:failed|error)",
        Class.UNDECIDED,
        "the plugin of the GPU network cannot use its devices",
        "check that the pod requests them, and mounts the libraries that the plugin needs",
        "NCCL WARN NET/OFI Unable to find a protocol that worked",
    ),
    Known(
        r"Tensors must be CUDA and dense|No backend type associated with device type",
        Class.UNDECIDED,
        "the backend of the group does not take tensors of this device",
        "move the tensors to the GPU, or use both backends: "
        "init_process_group('cpu:gloo,cuda:nccl')",
        "RuntimeError: No backend type associated with device type cpu",
    ),
    Known(
        r"use_libuv was requested but PyTorch was built without libuv",
        Class.UNDECIDED,
        "torch in the image has no libuv for its store",
        "set USE_LIBUV=0 in the trainer's env",
        "RuntimeError: use_libuv was requested but PyTorch was built without libuv support",
    ),
    Known(
        r"No rendezvous handler for |Error initializing torch\.distributed using (?:tcp|file)://",
        Class.UNDECIDED,
        "init_method is no URL that torch can use, or lacks rank and world size",
        "leave init_method out: the variables of the pod are enough (env://)",
        "RuntimeError: No rendezvous handler for ://",
    ),
)

OTHER_RANKS: Final = (
    Known(
        r"gloo/(?:transport|rendezvous)/.*(?:Connection (?:closed|reset) by peer|Read error"
        r"|Write error|Broken pipe|Timed out|[Tt]imeout|Connection refused"
        r"|[Ss]ocket (?:unexpectedly )?closed|is not connected)"
        r"|Application timeout caused pair closure",
        Class.GLOO,
        "another rank ended, or did not answer in time",
        "look for an earlier failure of another rank, in kubectl ddp why and in the pods' logs",
        "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[10.8.0.7]:11176.",
    ),
    Known(
        r"Gloo connectFullMesh failed",
        Class.GLOO,
        "a rank could not connect to all others",
        "look for the rank that is missing; let pods of the job reach each other on all ports, and "
        "check GLOO_SOCKET_IFNAME",
        "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error",
    ),
    Known(
        r"(?:failed to pass|timed out in) monitoredBarrier",
        Class.GLOO,
        "the ranks that are named did not reach a barrier in time",
        "look at what those ranks do: kubectl ddp stacks",
        "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 300000 ms",
    ),
    Known(
        r"[Tt]imed out after .* waiting for clients",
        Class.PEER,
        "not all ranks connected to rank 0's store in time",
        "look for pods that wait or failed; compare WORLD_SIZE with the number of ranks",
        "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 1/2 "
        "clients joined.",
    ),
    Known(
        r"The client socket has (?:timed out|failed to connect)",
        Class.PEER,
        "rank 0's store cannot be reached",
        "look for the failure of rank 0; let pods of the job reach each other (NetworkPolicy, "
        "mesh)",
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while "
        "trying to connect to (digits-0-0.digits, 29500).",
    ),
    Known(
        r"setting up NCCL communicators? and retr\w+ ncclUniqueId|store->\w+\(.*\) got error: "
        r"|(?:wait|barrier) timeout after \d+ms, keys?:|Timeout waiting for key: "
        r"|\bSocket Timeout\b",
        Class.PEER,
        "another rank did not arrive: this one waited in vain for a word of it in the store",
        "look for the rank that failed or is late; a long load on one rank needs a longer time-out",
        "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0/0",
    ),
    Known(
        r"Did the remote server shutdown or crash|TCPStore server has shut ?down"
        r"|(?:send|recv)(?:Bytes|Value|Vector|String)\w* failed on ",
        Class.PEER,
        "the connection to rank 0's store broke: rank 0 has probably ended",
        "look for a failure of rank 0, in kubectl ddp why and in its pod's log",
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely "
        "closed. Did the remote server shutdown or crash?",
    ),
    Known(
        r"Watchdog caught collective operation timeout|NCCL error in: .*, timeout, NCCL version"
        r"|ran for \d+ milliseconds before timing out|ProcessGroupNCCL::WorkNCCL::checkTimeout",
        Class.PEER,
        "a collective was not complete in time: a rank hangs, is slow, or runs another collective",
        "kubectl ddp why --hang names the rank that the others wait for; raise the time-out if "
        "such steps may take so long",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
        "OpType=ALLREDUCE) ran for 600000 milliseconds before timing out.",
    ),
    Known(
        r"dump signal (?:due to .*)?from +(?:another |other )?rank",
        Class.PEER,
        "another rank had a time-out and asked all ranks for their traces",
        "read the failure of that rank",
        "Received a dump signal due to a collective timeout from rank 3 and we will try our best",
    ),
    Known(
        r"NCCL timeout in communicator initialization",
        Class.PEER,
        "not all ranks joined NCCL's communicator in time",
        "look for the missing rank; check NCCL_SOCKET_IFNAME and that pods reach each other",
        "torch.distributed.DistBackendError: NCCL timeout in communicator initialization.",
    ),
    Known(
        r"NCCL communicator was aborted",
        Class.PEER,
        "NCCL's communicator was closed after another rank's failure or a time-out",
        "look for an earlier failure of another rank, in kubectl ddp why and in the pods' logs",
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
    ),
    Known(
        r"socketStartConnect: Connect to .* failed"
        r"|socketPollConnect: [Cc]onnect .*(?:failed|returned|timed out)"
        r"|Call to (?:connect|recv|send)(?: (?:to|from) .*)? (?:failed|returned|timed out)",
        Class.PEER,
        "NCCL cannot connect to another rank: it has ended, or the network does not let it through",
        "look for the rank at that address; let pods of the job reach each other on all ports",
        "socketStartConnect: Connect to 10.8.0.7<43211> failed : Connection refused",
    ),
    Known(
        r"Got completion from peer .*(?:status=|error )"
        r"(?:IBV_WC_(?:WR_FLUSH|RETRY_EXC|RNR_RETRY_EXC|REM_\w+)_ERR|(?:5|9|10|11|12|13)\b)",
        Class.PEER,
        "a rank at the other end of an RDMA connection ended, or the network lost too much",
        "look for a failure of that rank; otherwise check links and switches, and NCCL_IB_TIMEOUT",
        "NET/IB: Got completion from peer 10.8.0.7<51123> with status=IBV_WC_RETRY_EXC_ERR(12) "
        "opcode=IBV_WC_SEND(0)",
    ),
    Known(
        r"Rendezvous(?:Closed|Connection|GracefulExit|Timeout)Error",
        Class.PEER,
        "another torchrun agent left, or never joined",
        "look for pods that wait or failed; torchrun needs the same --rdzv options on all nodes",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    ),
    Known(
        r"SignalException: Process \d+ got signal: 15",
        Class.PEER,
        "torchrun was asked to end, by the cluster or after another pod's failure",
        "look for the pod that failed first",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15",
    ),
    Known(
        r"ncclRemoteError|remote process exit(?:ed|ing)|Remote peer closed the connection"
        r"|Connection (?:closed|reset) by (?:remote )?peer",
        Class.PEER,
        "the other side, usually another rank, ended or closed the connection",
        "look for an earlier failure of another rank, in kubectl ddp why and in the pods' logs",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.",
    ),
    Known(
        r"ncclSystemError|NCCL error in: .*, unhandled system error",
        Class.PEER,
        "a system call of NCCL failed, usually on the connection to a rank that has ended",
        "read the line after Last error; set NCCL_DEBUG=INFO if there is none",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or "
        "device error.",
    ),
    Known(
        r"\bDist(?:Network|Store)Error: ",
        Class.PEER,
        "the connection to rank 0's store, or through it to another rank, failed",
        "look for an earlier failure of another rank, in kubectl ddp why and in the pods' logs",
        "torch.distributed.DistNetworkError: Broken pipe",
    ),
)
