"""What accelerators can compute at most, as their makers state it: the denominator of utilization.

`accelerators.toml` lists them.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A device and its highest rates: TFLOP/s (1e12 per second) by precision, memory in TB/s."""

    name: str
    pattern: str
    peak_tflops: Mapping[str, float]
    memory_tb_s: float


def _accelerators() -> tuple[Accelerator, ...]:
    rows = tomllib.loads((files("evaluator") / "accelerators.toml").read_text(encoding="utf-8"))
    return tuple(
        Accelerator(
            name,
            rates.pop("pattern"),
            memory_tb_s=rates.pop("memory"),
            peak_tflops={"fp16": rates.get("bf16"), **rates},
        )
        for name, rates in rows.items()
    )


ACCELERATORS: Final = _accelerators()
_PRECISIONS: Final = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float8": "fp8",
    "fp8 e4m3": "fp8",
    "fp8 e5m2": "fp8",
}
_SEPARATORS: Final = re.compile(r"[^a-z0-9]+")


def accelerator(device_name: str) -> Accelerator | None:
    """The accelerator of this name in any usual spelling (NVIDIA H100 PCIe, nvidia_a100_40gb).

    None for one that is not known, or a slice of one (MIG), which has a part of its peak.
    """
    plain = _plain(device_name)
    if re.search(r"\bmig\b", plain):
        return None
    return next((known for known in ACCELERATORS if re.search(known.pattern, plain)), None)


def peak_flops_per_s(known: Accelerator, precision: str) -> float | None:
    """FLOP/s of one device at this precision, or None where it is not stated."""
    plain = _plain(precision)
    tflops = known.peak_tflops.get(_PRECISIONS.get(plain, plain))
    return None if tflops is None else tflops * 1e12


def _plain(text: str) -> str:
    return _SEPARATORS.sub(" ", text.lower()).strip()
