"""Texts about torch.distributed and data."""

from typing import Final

from ddp_protocol.error_texts.known import Class, Known

DDP: Final = (
    Known(
        r"Expected to have finished reduction in the prior iteration",
        Class.UNDECIDED,
        "some parameters got no gradient in the last step, for which DDP still waits",
        "use all of the model's outputs in the loss, or set find_unused_parameters=True in DDP",
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting "
        "a new one.",
    ),
    Known(
        r"Expected to mark a variable ready only once",
        Class.UNDECIDED,
        "a parameter got its gradient twice in one step, often by activation checkpointing",
        "use checkpointing with use_reentrant=False, or static_graph=True in DDP",
        "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of "
        "the following reasons:",
    ),
    Known(
        r"DDP expects same model across all ranks"
        r"|appears not to match (?:sizes|strides) of the same param",
        Class.UNDECIDED,
        "the ranks built different models",
        "use the same code, configuration and seed on all ranks",
        "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 161 params, while "
        "rank 1 has inconsistent 159 params.",
    ),
    Known(
        r"Detected mismatch between collectives on ranks|op\.preamble\.length <= op\.nbytes",
        Class.UNDECIDED,
        "the ranks called different collectives, or the same one with different sizes",
        "let all ranks take the same branches and the same number of steps; kubectl ddp why --hang "
        "compares their collectives",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running "
        "collective: CollectiveFingerPrint(OpType=ALLGATHER)",
    ),
    Known(
        r"Default process group has not been initialized",
        Class.UNDECIDED,
        "the script uses torch.distributed before it has formed a group",
        "call init_process_group first, in each process",
        "ValueError: Default process group has not been initialized, please make sure to call "
        "init_process_group.",
    ),
    Known(
        r"trying to initialize the default process group twice",
        Class.UNDECIDED,
        "both the script and a library call init_process_group",
        "check torch.distributed.is_initialized() before the call",
        "ValueError: trying to initialize the default process group twice!",
    ),
    Known(
        r"environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set",
        Class.UNDECIDED,
        "the script was started without its rank",
        "start it with the bundled launcher or torchrun, and do not clear the environment",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment "
        "variable RANK expected, but not set",
    ),
    Known(
        r"needed for gradient computation has been modified by an inplace operation",
        Class.UNDECIDED,
        "a tensor changed between the forward and the backward pass",
        "avoid in-place operations; with two forward passes per step, set broadcast_buffers=False "
        "in DDP",
        "RuntimeError: one of the variables needed for gradient computation has been modified by "
        "an inplace operation: [torch.cuda.FloatTensor [64]]",
    ),
    Known(
        r"ncclInvalidUsage|ncclInvalidArgument|NCCL error in: .*, invalid (?:usage|argument)"
        r"|NCCL Error [45]: ",
        Class.UNDECIDED,
        "NCCL was called with arguments that do not fit together",
        "set NCCL_DEBUG=WARN to see which; compare GPUs, tensors and devices of the ranks",
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    ),
    Known(
        r"ncclInternalError|NCCL error in: .*, internal error|NCCL Error 3: ",
        Class.UNDECIDED,
        "a check inside NCCL failed",
        "set NCCL_DEBUG=INFO to see which; unset NCCL variables that come from another cluster",
        "ncclInternalError: Internal check failed.",
    ),
    Known(
        r"KeyError: '(?:RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'",
        Class.UNDECIDED,
        "the script reads a variable that only a launcher sets",
        "start it with torchrun or launcher: inject, which pods with several processes need",
        "KeyError: 'LOCAL_RANK'",
    ),
    Known(
        r"invalid literal for int\(\) with base 10: '\$",
        Class.UNDECIDED,
        "no shell replaced a variable in the command",
        "write $(NAME) instead of $NAME in the template, or start the command with bash -c",
        "ValueError: invalid literal for int() with base 10: '$NODE_RANK'",
    ),
    Known(
        r"DistributedDataParallel is not needed when a module",
        Class.UNDECIDED,
        "no parameter of the model is trained",
        "set requires_grad for some parameters, or use the model without DDP",
        "RuntimeError: DistributedDataParallel is not needed when a module doesn't have any "
        "parameters that require a gradient.",
    ),
    Known(
        r"does not require grad and does not have a grad_fn",
        Class.UNDECIDED,
        "the loss does not depend on any parameter that is trained",
        "unfreeze parameters; look for detach(), no_grad() or item() between model and loss; with "
        "checkpointing call enable_input_require_grads()",
        "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
    ),
    Known(
        r"Trying to backward through the graph a second time",
        Class.UNDECIDED,
        "backward() runs twice through the same graph",
        "compute the loss again for each backward(), and detach what is kept between steps",
        "RuntimeError: Trying to backward through the graph a second time",
    ),
    Known(
        r"expected scalar type|must have the same dtype|[Ii]nput type .* and (?:weight"
        r"|bias) type .* should be the same",
        Class.UNDECIDED,
        "an operation got tensors of different data types",
        "use torch.autocast, or convert model and input to one type",
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16",
    ),
    Known(
        r"shapes cannot be multiplied|must match the (?:size of tensor|existing size)"
        r"|Sizes of tensors must match",
        Class.UNDECIDED,
        "the shape of a tensor does not fit the operation",
        "compare the shapes of the batch with what the model expects, above all the last batch",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 256x10)",
    ),
    Known(
        r"Minimum loss scale reached|loss scale already at minimum",
        Class.UNDECIDED,
        "gradients were not finite for many steps",
        "lower the learning rate, clip gradients, or use bf16 instead of fp16",
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
    ),
    Known(
        r"returned nan values in its|satisfy the constraint .*found invalid values",
        Class.UNDECIDED,
        "values became NaN or infinite",
        "lower the learning rate, clip gradients, and look for bad samples and divisions by zero",
        "RuntimeError: Function 'MseLossBackward0' returned nan values in its 0th output.",
    ),
    Known(
        r"Attempting to unscale FP16 gradients|No inf checks were recorded",
        Class.UNDECIDED,
        "the GradScaler does not fit the model's parameters",
        "keep parameters in float32 with fp16 autocast, and call backward() before scaler.step()",
        "ValueError: Attempting to unscale FP16 gradients.",
    ),
)

DATA: Final = (
    Known(
        r"Can't (?:pickle|get) local object|cannot pickle '",
        Class.UNDECIDED,
        "an object cannot be sent to another process",
        "define functions and classes at the top of a module; open files and locks in the worker",
        "AttributeError: Can't pickle local object 'main.<locals>.collate'",
    ),
    Known(
        r"stack expects each tensor to be equal size",
        Class.UNDECIDED,
        "samples of one batch have different shapes",
        "resize or pad the samples, or give the DataLoader a collate_fn",
        "RuntimeError: stack expects each tensor to be equal size, but got [3, 224, 224] at entry "
        "0 and [1, 224, 224] at entry 1",
    ),
    Known(
        r"image file is truncated|cannot identify image file",
        Class.UNDECIDED,
        "a file of the data set is damaged, or is no image",
        "check the file; the how-to page about bad samples says how to skip them",
        "OSError: image file is truncated (4 bytes not processed)",
    ),
    Known(
        r"num_samples should be a positive integer value",
        Class.UNDECIDED,
        "the data set is empty",
        "check the path and the mount of the data in each pod",
        "ValueError: num_samples should be a positive integer value, but got num_samples=0",
    ),
    Known(
        r"index out of range in self",
        Class.UNDECIDED,
        "an embedding got an id outside its table",
        "compare token ids with the vocabulary, and call resize_token_embeddings after adding "
        "tokens",
        "IndexError: index out of range in self",
    ),
    Known(
        r"batch_size should be a positive integer value",
        Class.UNDECIDED,
        "the batch size of a rank is zero",
        "choose a global batch of at least one sample for each rank",
        "ValueError: batch_size should be a positive integer value, but got batch_size=0",
    ),
    Known(
        r"JSONDecodeError: |UnicodeDecodeError: ",
        Class.UNDECIDED,
        "a file is empty, damaged, or of another format",
        "check the file that the traceback names; a download may be an error page or a Git LFS "
        "pointer",
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    ),
    Known(
        r"Caught \w+ in DataLoader worker process",
        Class.UNDECIDED,
        "an error in the data set or its transforms; the original error follows",
        "read the last lines of the log; num_workers=0 makes it easier to debug",
        "Caught KeyError in DataLoader worker process 3.",
    ),
)
