"""Accelerators by name: what their makers publish, and what share of it a training is assumed to reach."""

from typing import NamedTuple

from atent.errors import UserError, unknown

EFFICIENCY = 0.3  # stated, not measured: the share of the published peak that a training reaches


class Accelerator(NamedTuple):
    """Published figures of one device.

    `single` and `half` are dense peaks in operations per second: float32 without tensor cores, and bfloat16 with them
    (T4 and V100: float16).
    """

    title: str
    single: float
    half: float
    watts: int
    gigabytes: int
    source: str


_SHEET = "NVIDIA, data sheet"
ACCELERATORS = {
    "t4": Accelerator("T4", 8.1e12, 65e12, 70, 16, f"{_SHEET} T4"),
    "v100": Accelerator("V100 SXM2", 15.7e12, 125e12, 300, 32, f"{_SHEET} V100"),
    "a100": Accelerator("A100 SXM", 19.5e12, 312e12, 400, 80, f"{_SHEET} A100"),
    "h100": Accelerator("H100 SXM", 67e12, 989e12, 700, 80, f"{_SHEET} H100"),
    "l4": Accelerator("L4", 30.3e12, 121e12, 72, 24, f"{_SHEET} L4"),
    "rtx4090": Accelerator("RTX 4090", 82.6e12, 165.2e12, 450, 24, "NVIDIA, Ada architecture paper"),
}


def find_accelerator(name: str) -> Accelerator:
    """The accelerator of this name."""
    if name not in ACCELERATORS:
        raise unknown("accelerator", name, ACCELERATORS)
    return ACCELERATORS[name]


def check_efficiency(efficiency: float) -> None:
    if not 0 < efficiency <= 1:
        raise UserError(f"--efficiency {efficiency:g}; allowed: above 0, at most 1 (a share of the published peak)")
