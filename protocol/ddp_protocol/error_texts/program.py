"""Texts about the command, the script and the image."""

from typing import Final

from ddp_protocol.error_texts.known import Class, Known

PROGRAM: Final = (
    Known(
        r"(?:python[\d.]*t?|\bModuleNotFoundError): No module named ",
        Class.MISTAKE,
        "the image lacks a Python package, or the script runs in another folder",
        "install the package in the image; set workingDir or PYTHONPATH for your own modules",
        "ModuleNotFoundError: No module named 'flash_attn'",
    ),
    Known(
        r"python[\d.]*t?: can't open file '",
        Class.MISTAKE,
        "the script is not at this path in the container",
        "correct the path or workingDir; check that a volume does not hide the image's folder",
        "python: can't open file '/app/trian.py': [Errno 2] No such file or directory",
    ),
    Known(
        r"bad interpreter: ",
        Class.MISTAKE,
        "the first line of a script names a program that the image lacks; with ^M the script has "
        "Windows line ends",
        "correct the line, or convert the script with dos2unix",
        "/bin/bash: /app/run.sh: /bin/bash^M: bad interpreter: No such file or directory",
    ),
    Known(
        r"\b(?:ba|da|z|k)?sh: .*(?:command not found|: not found)",
        Class.MISTAKE,
        "a shell does not find a program of the command",
        "install it in the image, or activate the environment that has it (PATH)",
        "bash: line 1: torchrun: command not found",
    ),
    Known(
        r"\b(?:ba|da|z|k)?sh: .*: No such file or directory",
        Class.MISTAKE,
        "a shell does not find a script or file",
        "correct the path or workingDir; check that a volume does not hide the image's folder",
        "bash: run.sh: No such file or directory",
    ),
    Known(
        r"\b(?:ba|da|z|k)?sh: .*: Permission denied",
        Class.MISTAKE,
        "a shell may not run a script",
        "set its mode with chmod +x in the image, or defaultMode of a ConfigMap's volume; or "
        "start it with bash",
        "/bin/bash: line 1: /app/run.sh: Permission denied",
    ),
    Known(
        r": error: (?:unrecognized arguments|the following arguments are required|ambiguous option"
        r"|one of the arguments|argument .*: (?:invalid|expected|not allowed|ignored explicit))",
        Class.MISTAKE,
        "the script does not accept its arguments",
        "compare the command's arguments with the script's --help",
        "train.py: error: unrecognized arguments: --epoch 3",
    ),
    Known(
        r"\b(?:Syntax|Indentation|Tab)Error: ",
        Class.MISTAKE,
        "the script is no valid Python for the image's version",
        "correct the line that the log shows, or take an image with a newer Python",
        "SyntaxError: invalid syntax",
    ),
    Known(
        r"ImportError: ddp_trainer\.\w+ needs torch [\d.]+ or newer",
        Class.MISTAKE,
        "the image's torch is older than ddp_trainer supports",
        "use an image with a newer torch",
        "ImportError: ddp_trainer.join needs torch 2.7 or newer, but this is torch 2.4.1+cu121: "
        "use an image with a newer torch",
    ),
    Known(
        r"ImportError: cannot import name '",
        Class.UNDECIDED,
        "a package has another version than the code expects",
        "install the versions that the code was written for, and pin them",
        "ImportError: cannot import name 'AdamW' from 'transformers' "
        "(/opt/lib/transformers/__init__.py)",
    ),
    Known(
        r"operator torchvision::nms does not exist"
        r"|PyTorch and torchvision versions are incompatible",
        Class.UNDECIDED,
        "torch and torchvision are of different releases",
        "install both in one command, from one index",
        "RuntimeError: operator torchvision::nms does not exist",
    ),
    Known(
        r"CUDA version .*(?:mismatches the version that was used to compile PyTorch"
        r"|does not match the version torch was compiled with)",
        Class.UNDECIDED,
        "an extension is compiled with another CUDA than torch",
        "use an image with the toolkit of torch's CUDA (torch.version.cuda)",
        "RuntimeError: The detected CUDA version (11.8) mismatches the version that was used to "
        "compile PyTorch (12.1).",
    ),
    Known(
        r"lib\S+: cannot open shared object file",
        Class.UNDECIDED,
        "the image lacks a system library",
        "install the package that contains it, such as libgl1 and libglib2.0-0 for OpenCV",
        "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
    ),
    Known(
        r"undefined symbol: ",
        Class.UNDECIDED,
        "an extension was compiled for another version of torch or CUDA",
        "install a build of the extension for the image's torch, or compile it there",
        "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
    ),
    Known(
        r"version `GLIBC\w*[\d.]+' not found",
        Class.UNDECIDED,
        "a program was built on a newer system than the image's",
        "use a newer base image, or build on the image's system",
        "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by ./op.so)",
    ),
    Known(
        r"compiled using NumPy 1\.x cannot be run|numpy\.dtype size changed|Numpy is not available"
        r"|module 'numpy' has no attribute",
        Class.UNDECIDED,
        "a package was compiled for another major version of NumPy",
        "pin numpy<2, or update the package",
        "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.1.3",
    ),
    Known(
        r"Failed to find C compiler|CUDA_HOME environment variable is not set"
        r"|Python\.h: No such file"
        r"|Error building extension '",
        Class.UNDECIDED,
        "the image lacks a compiler, which Triton, torch.compile or an extension needs",
        "install gcc, or use an image with the CUDA toolkit (devel)",
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
    ),
    Known(
        r"OMP: Error #\d+|MKL_THREADING_LAYER=INTEL is incompatible",
        Class.UNDECIDED,
        "two OpenMP libraries are loaded in one process, for example of conda and of pip",
        "install torch and numpy from one source; set MKL_THREADING_LAYER=GNU if MKL asks for it",
        "OMP: Error #15: Initializing libiomp5.so, but found libomp.so already initialized.",
    ),
    Known(
        r"\bSIGILL\b|Illegal instruction",
        Class.UNDECIDED,
        "a program uses instructions that the node's CPU does not have",
        "use a build for an older CPU, or nodes with a newer one",
        "rank 0 died of SIGILL",
    ),
    Known(
        r"\bSIGSEGV\b|Segmentation fault",
        Class.UNDECIDED,
        "native code used a wrong address, often because an extension does not fit torch",
        "set PYTHONFAULTHANDLER=1 to see the stack; update or remove extensions",
        "rank 2 died of SIGSEGV",
    ),
    Known(
        r'exec: ".*": (?:executable file not found|stat .*: no such file)'
        r"|(?:^|[^/])exec .*: no such file or directory",
        Class.COMMAND,
        "the image does not contain the command, or the interpreter in its first line",
        "correct command in the template; check the file in the image",
        'exec: "trian.py": executable file not found in $PATH: unknown',
    ),
    Known(
        r'exec: ".*": permission denied|(?:^|[^/])exec .*: permission denied',
        Class.COMMAND,
        "the command is not executable",
        "set its mode with chmod +x in the image, or start it with its interpreter",
        'exec: "/run.sh": permission denied: unknown',
    ),
    Known(
        r"(?:^|[^/])exec .*: exec format error",
        Class.COMMAND,
        "the image is of another CPU architecture than the node, or a script lacks its first line "
        "#!",
        "build the image for the node's architecture (docker build --platform), or select nodes by "
        "kubernetes.io/arch",
        "exec /run.sh: exec format error",
    ),
    Known(
        r"Exec format error",
        Class.UNDECIDED,
        "a program is of another CPU architecture than the node",
        "build the image for the node's architecture (docker build --platform), or select nodes by "
        "kubernetes.io/arch",
        "OSError: [Errno 8] Exec format error: '/opt/tool'",
    ),
    Known(
        r'chdir to cwd \(".*"\) set in config\.json failed',
        Class.UNDECIDED,
        "workingDir does not exist in the image",
        "correct workingDir in the template, or create the folder in the image",
        'chdir to cwd ("/work") set in config.json failed: no such file or directory: unknown',
    ),
    Known(
        r"error mounting .*(?:not a directory|Are you trying to mount a directory onto a file)",
        Class.UNDECIDED,
        "a volume's folder is mounted over a file of the image, or the reverse",
        "mount it at another path, or name one file with subPath",
        'error mounting "/var/lib/a" to rootfs at "/app/train.py": not a directory: unknown',
    ),
)
