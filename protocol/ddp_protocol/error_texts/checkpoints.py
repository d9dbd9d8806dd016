"""Texts about files of checkpoints."""

from typing import Final

from ddp_protocol.error_texts.known import Class, Known

CHECKPOINTS: Final = (
    Known(
        r"PytorchStreamReader failed|BadZipFile: |unexpected EOF, expected \d+ more bytes"
        r"|Ran out of input"
        r"|Error while deserializing(?: header)?: ",
        Class.UNDECIDED,
        "a checkpoint or model file is incomplete or damaged, often because its writer was killed",
        "load an older one; write to a temporary name and rename the file when it is complete",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central "
        "directory",
    ),
    Known(
        r"size mismatch for \S+ copying a param",
        Class.UNDECIDED,
        "the checkpoint has other shapes than the model, for example of another vocabulary",
        "build the model with the checkpoint's configuration, or save to a new folder",
        "size mismatch for fc.weight: copying a param with shape torch.Size([10, 512]) from "
        "checkpoint, the shape in current model is torch.Size([100, 512]).",
    ),
    Known(
        r"(?:Missing|Unexpected) key\(s\) in state_dict",
        Class.UNDECIDED,
        "the checkpoint has other parameters than the model",
        "remove the prefixes module. and _orig_mod. from the keys, or correct the configuration",
        'Missing key(s) in state_dict: "fc.weight", "fc.bias".',
    ),
    Known(
        r"doesn't match the size of optimizer's group"
        r"|loaded state dict has a different number of parameter groups",
        Class.UNDECIDED,
        "the optimizer's saved state is of other parameters",
        "build the optimizer with the same groups as in the checkpoint, or do not load its state",
        "ValueError: loaded state dict contains a parameter group that doesn't match the size of "
        "optimizer's group",
    ),
    Known(
        r"invalid load key, '",
        Class.UNDECIDED,
        "the file is no checkpoint: with 'v' it is a Git LFS pointer, with '<' a web page",
        "download the file itself, for example with git lfs pull",
        "_pickle.UnpicklingError: invalid load key, 'v'.",
    ),
    Known(
        r"Weights only load failed",
        Class.UNDECIDED,
        "the file contains objects that torch.load does not load by default",
        "allow their classes with torch.serialization.add_safe_globals; use weights_only=False "
        "only for files that you trust",
        "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded",
    ),
    Known(
        r"Attempting to deserialize object on ",
        Class.UNDECIDED,
        "the checkpoint was saved on a GPU that this process does not have",
        "load it with map_location='cpu', or this rank's device",
        "RuntimeError: Attempting to deserialize object on a CUDA device but "
        "torch.cuda.is_available() is False.",
    ),
    Known(
        r"CheckpointException ranks:",
        Class.UNDECIDED,
        "torch.distributed.checkpoint failed on the ranks that it lists",
        "read the error below for each rank; load an older checkpoint if a file is missing",
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException "
        "ranks:dict_keys([0, 1])",
    ),
    Known(
        r"Can't find a valid checkpoint at|No valid checkpoint found in output directory",
        Class.UNDECIDED,
        "the folder to resume from has no complete checkpoint",
        "resume only if get_last_checkpoint finds one, and keep checkpoints on a volume that all "
        "pods share",
        "ValueError: Can't find a valid checkpoint at /checkpoints/checkpoint-500",
    ),
)
