"""What accelerators can compute at most, as their makers state it: the denominator of utilization.

Dense rates per device, never those with structured sparsity, and per device as a framework counts
them: half a package where a package shows as two devices (MI200), a chip with all its cores for
TPUs. Rates for bf16, fp16, tf32 and fp8 are those of matrix units, fp32 those of plain arithmetic.

Origins: NVIDIA's data sheets and white papers of V100, T4, A100, A10, A30, A40, L4, L40, L40S,
H100, H200, H20, GH200, HGX B200 and B300, GB200 and GB300, and of the Ada and Blackwell RTX cards
(sparse rates halved); AMD's data sheets of Instinct MI100 to MI355X; Google Cloud's pages on TPU v2
to v7; Intel's of Gaudi 2 and 3.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A device and its highest rates, in TFLOP/s (1e12 per second) by precision."""

    name: str
    pattern: str
    """Found in the device's name in lower case, with one space between words and numbers."""
    peak_tflops: Mapping[str, float]


def _rates(
    bf16: float | None = None,
    fp16: float | None = None,
    *,
    tf32: float | None = None,
    fp32: float | None = None,
    fp8: float | None = None,
) -> Mapping[str, float]:
    """Rates by precision; fp16 is as fast as bf16 where it is not stated separately."""
    rates = {"bf16": bf16, "fp16": fp16 or bf16, "tf32": tf32, "fp32": fp32, "fp8": fp8}
    return {precision: rate for precision, rate in rates.items() if rate is not None}


_HOPPER = _rates(989.4, tf32=494.7, fp32=66.9, fp8=1978.9)
_HOPPER_NVL = _rates(835.5, tf32=417.5, fp32=60, fp8=1671)
_BLACKWELL = _rates(2250, tf32=1125, fp32=75, fp8=4500)
_GRACE_BLACKWELL = _rates(2500, tf32=1250, fp32=80, fp8=5000)
_AMPERE = _rates(312, tf32=156, fp32=19.5)
_MI300X = _rates(1307.4, tf32=653.7, fp32=163.4, fp8=2614.9)

# The first whose pattern is found counts: special editions stand before their family.
ACCELERATORS: Final = (
    Accelerator("GB300", r"\bgb ?300\b", _GRACE_BLACKWELL),
    Accelerator("B300", r"\bb ?300\b", _BLACKWELL),
    Accelerator("GB200", r"\bgb ?200\b", _GRACE_BLACKWELL),
    Accelerator("B200", r"\bb ?200\b", _BLACKWELL),
    Accelerator("GH200", r"\bgh ?200\b", _HOPPER),
    Accelerator("H200 NVL", r"\bh ?200 nvl\b", _HOPPER_NVL),
    Accelerator("H200", r"\bh ?200\b", _HOPPER),
    Accelerator("H100 NVL", r"\bh ?100 nvl\b", _HOPPER_NVL),
    Accelerator(
        "H100 PCIe", r"\bh ?100 (80 ?gb )?pcie\b", _rates(756, tf32=378, fp32=51, fp8=1513)
    ),
    Accelerator("H100", r"\bh ?100\b", _HOPPER),
    Accelerator("H800", r"\bh ?800\b", _HOPPER),
    Accelerator("H20", r"\bh ?20\b", _rates(148, tf32=74, fp32=44, fp8=296)),
    Accelerator("A100", r"\ba ?100\b", _AMPERE),
    Accelerator("A800", r"\ba ?800\b", _AMPERE),
    Accelerator("A40", r"\ba ?40\b", _rates(149.7, tf32=74.8, fp32=37.4)),
    Accelerator("A30", r"\ba ?30\b", _rates(165, tf32=82, fp32=10.3)),
    Accelerator("A10", r"\ba ?10\b", _rates(125, tf32=62.5, fp32=31.2)),
    Accelerator("RTX A6000", r"\ba ?6000\b", _rates(154.8, tf32=77.4, fp32=38.7)),
    Accelerator("L40S", r"\bl ?40 ?s\b", _rates(362, tf32=183, fp32=91.6, fp8=733)),
    Accelerator("L40", r"\bl ?40\b", _rates(181, tf32=90.5, fp32=90.5, fp8=362)),
    Accelerator("L4", r"\bl ?4\b", _rates(121, tf32=60, fp32=30.3, fp8=242.5)),
    Accelerator(
        "RTX 6000 Ada",
        r"\brtx 6000 ada\b",
        _rates(364.2, tf32=182.1, fp32=91.1, fp8=728.5),
    ),
    Accelerator(
        "RTX 4090", r"\brtx 4090\b(?! laptop)", _rates(165.2, tf32=82.6, fp32=82.6, fp8=330.3)
    ),
    Accelerator("RTX 3090", r"\brtx 3090\b(?! ti)", _rates(71, tf32=35.6, fp32=35.6)),
    Accelerator("T4", r"\bt ?4\b", _rates(fp16=65, fp32=8.1)),
    Accelerator("V100S", r"\bv ?100 ?s\b", _rates(fp16=130, fp32=16.4)),
    Accelerator("V100 PCIe", r"\bv ?100 pcie\b", _rates(fp16=112, fp32=14)),
    Accelerator("V100", r"\bv ?100\b", _rates(fp16=125, fp32=15.7)),
    Accelerator("MI355X", r"\bmi ?355 ?x?\b", _rates(2516.6, fp32=157.3, fp8=5033.2)),
    Accelerator("MI350X", r"\bmi ?350 ?x?\b", _rates(2306.9, fp32=144.2, fp8=4613.7)),
    Accelerator("MI325X", r"\bmi ?325 ?x?\b", _MI300X),
    Accelerator("MI300A", r"\bmi ?300 ?a\b", _rates(980.6, tf32=490.3, fp32=122.6, fp8=1961.2)),
    Accelerator("MI300X", r"\bmi ?300 ?x?\b", _MI300X),
    Accelerator("MI250X", r"\bmi ?250 ?x\b", _rates(191.5, fp32=23.9)),
    Accelerator("MI250", r"\bmi ?250\b", _rates(181, fp32=22.6)),
    Accelerator("MI210", r"\bmi ?210\b", _rates(181, fp32=22.6)),
    Accelerator("MI100", r"\bmi ?100\b", _rates(92.3, 184.6, fp32=23.1)),
    Accelerator("TPU v7", r"\btpu ?v?7x?\b", _rates(2307, fp8=4614)),
    Accelerator("TPU v6e", r"\btpu v6 ?(e|lite)\b", _rates(918)),
    Accelerator("TPU v5e", r"\btpu v5 ?(e|lite)\b", _rates(197)),
    Accelerator("TPU v5p", r"\btpu v5 ?p?\b", _rates(459)),
    Accelerator("TPU v4", r"\btpu v4\b(?! ?i| lite)", _rates(275)),
    Accelerator("TPU v3", r"\btpu v3\b", _rates(123)),
    Accelerator("TPU v2", r"\btpu v2\b", _rates(46)),
    Accelerator("Gaudi 3", r"\bgaudi ?3\b", _rates(1835, fp8=1835)),
    Accelerator("Gaudi 2", r"\bgaudi ?2\b", _rates(432, fp8=865)),
)

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
