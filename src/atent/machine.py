"""The process and its machine: threads, memory allocator, device, and what a run records about them."""

import ctypes
import os
import platform
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import torch

from atent.errors import UserError, one_line
from atent.limits import THREADS, check_range

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # glibc's malloc.h


def prepare(threads: int | None = None) -> None:
    """Set the number of threads and keep freed memory in the process."""
    check_range("--threads", threads, 1, max(THREADS, os.cpu_count() or 1))
    if threads is not None:
        torch.set_num_threads(threads)
    # Bit-identical runs; TF32 convolutions would make an attack's gradients less exact.
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cudnn.allow_tf32 = False
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Set glibc's malloc to keep freed memory in the process; True if that was possible.

    By default every large activation is mapped again: about 10,000 page faults per training step, a fifth of its time.
    """
    libc = _glibc()
    return libc is not None and bool(libc.mallopt(_M_MMAP_MAX, 0)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def release_freed_memory() -> None:
    """Return kept memory to the system: where sizes change, as in an attack that images leave, it is in pieces."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return None
    return ctypes.CDLL("libc.so.6")


def ram_bytes() -> int:
    """The machine's RAM in bytes; 8 GiB if the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return 8 * 2**30


def emulates_bf16(device: torch.device | str) -> bool:
    """Whether bfloat16 is slower here than float32: an x86 processor that has no instructions for it."""
    if torch.device(device).type != "cpu":
        return False
    found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # an older torch does not tell
    native = found.get("avx512_bf16") or found.get("amx_bf16")
    return found.get("architecture") == "x86_64" and not native


def pick_device(name: str) -> torch.device:
    """The device by name. `auto` is CUDA or MPS if available, else the CPU; any other device must exist."""
    if name == "auto":
        found = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return _numbered(torch.device(found))
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError(f"a {device.type} device cannot be used")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = one_line(str(error).splitlines()[0])
        raise UserError(f"--device {name}: {reason}; 'cpu' always works, 'auto' uses a GPU if there is one") from None
    return _numbered(device)


def _numbered(device: torch.device) -> torch.device:
    """Of several GPUs `cuda` is the current one: under torchrun each process has its own."""
    if device.type == "cuda" and device.index is None and torch.cuda.device_count() > 1:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def say_device(device: torch.device, amp: str | None = None) -> None:
    """Print where the work is done, and in which precision if not in float32."""
    half = "" if amp in (None, "off") else f", {amp}"
    print(f"device: {device}{half}", file=sys.stderr, flush=True)


def environment(processes: int = 1) -> dict[str, object]:
    """What a reader needs to reproduce a number: command, versions, commit, machine, the number of processes."""
    import numpy

    from atent import __version__

    found: dict[str, object] = {
        "command": _command(),
        "atent": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
    }
    return found | {"processes": processes} if processes > 1 else found


def _command() -> str:
    """The command line, quoted for a shell, without the program's folder; `python -m atent` becomes `atent`."""
    program, *arguments = sys.argv or [""]
    name = Path(program).name
    return shlex.join(["atent" if name == "__main__.py" else name, *arguments]) if name else ""


def _commit() -> str | None:
    """The commit of atent's source tree, if atent runs from a git clone."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # installed, possibly inside the repository of another project
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
