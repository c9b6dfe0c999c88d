"""aiconfigurator's estimate of a server, where it is installed: what it knows of kernels, as times.

It is a program of others, so it runs in a process of its own, with a time limit and without
secrets. Its times are predictions: they rank configurations, and nothing is announced by them.
"""

import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from evaluator.recipes.frameworks.flags import folder_of
from records.errors import StudyError, shown
from records.study import Environment, Study, Value

TIMEOUT_S = 180.0
KNOBS = (
    *("tp", "pp", "dp", "ep", "expert_parallel", "attention_dp"),
    *("max_num_seqs", "max_num_batched_tokens", "max_running_requests", "chunked_prefill"),
)
"""Knobs of vLLM and SGLang that its estimate depends on."""
PARTS = ("prefill", "decode")
_SYSTEMS = {
    "h200_sxm": r"H200(?! NVL)",
    "h100_pcie": r"H100 PCIe",
    "h100_sxm": r"H100(?! NVL)",
    "gb300": "GB300",
    "gb200": "GB200",
    "b300_sxm": r"\bB300",
    "b200_sxm": r"\bB200",
    "a100_pcie": r"A100.PCI",
    "a100_sxm": "A100",
    "l40s": "L40S",
    "l4": r"\bL4\b",
    "a30": r"\bA30\b",
    "rtx_pro_6000_server": "RTX PRO 6000 .*Server",
}
"""What it calls a system, by what the driver calls its GPUs."""
_SGLANG_CHUNK = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What it is asked of one server: arguments of its `cli_estimate`."""

    tp_size: int
    pp_size: int
    attention_dp_size: int
    moe_tp_size: int | None
    moe_ep_size: int | None
    batch_size: int
    ctx_tokens: int


def point_of(study: Study, settings: Mapping[str, Value]) -> tuple[Point, float]:
    """Return the server that a configuration starts, and how many times it fills up in a step.

    It is one of the replicas, with its share of the requests. vLLM's replicas of a model with
    experts attend apart and share the experts; SGLang's `attention_dp` are groups of its
    tensor-parallel ranks.
    """
    work = study.workload
    numbers = {name: int(value) for name in KNOBS if (value := settings.get(name)) is not None}
    tp, pp, dp = (max(1, numbers.get(name, 1)) for name in ("tp", "pp", "dp"))
    groups, experts = numbers.get("attention_dp", 1), bool(work.expert_count)
    replicas, moe_tp, moe_ep = dp, None, None
    if experts and "expert_parallel" in numbers:
        groups, replicas = dp, 1
        moe_tp, moe_ep = (1, tp * dp) if numbers["expert_parallel"] else (tp * dp, 1)
    elif experts:
        moe_ep = numbers.get("ep", 1)
        moe_tp = tp // moe_ep
        tp //= groups
    shares = replicas * groups
    in_flight = min(work.traffic[0].concurrency or work.global_batch, work.global_batch)
    most = numbers.get("max_num_seqs") or numbers.get("max_running_requests") or in_flight
    batch = max(1, min(most, math.ceil(in_flight / shares)))
    chunk = numbers.get("max_num_batched_tokens") or numbers.get("chunked_prefill") or _SGLANG_CHUNK
    point = Point(
        tp_size=tp,
        pp_size=pp,
        attention_dp_size=groups,
        moe_tp_size=moe_tp,
        moe_ep_size=moe_ep,
        batch_size=batch,
        ctx_tokens=min(chunk, batch * work.sequence_length) if chunk > 0 else work.sequence_length,
    )
    return point, max(1.0, work.global_batch / shares / batch)


def system_of(environment: Environment) -> str | None:
    """Return what it calls the accelerators of a machine; None where it has no data of them."""
    named = environment.accelerator
    return next((s for s, gpu in _SYSTEMS.items() if re.search(gpu, named, re.IGNORECASE)), None)


def model_of(words: Sequence[str]) -> str | None:
    """Return the model that the command of a server names, or its folder."""
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in ("--model", "--model-path", "--model_path"):
            return value if equals else next(iter(words[at + 1 :]), None)
    following = words[words.index("serve") + 1 :] if "serve" in words else ()
    return following[0] if following and not following[0].startswith("-") else None


class _Answer(msgspec.Struct, frozen=True):
    """Milliseconds, or that the model does not fit, or a fault."""

    ttft_ms: float = 0.0
    tpot_ms: float = 0.0
    fits: bool = True
    error: str | None = None

    def parts_s(self, decoded: int) -> tuple[float, ...]:
        """Seconds of a prefill and of decoding further tokens; none where nothing fits."""
        return (self.ttft_ms / 1e3, decoded * self.tpot_ms / 1e3) if self.fits else ()


class Answers(msgspec.Struct, frozen=True):
    """What it says of each point, with its version and that of its data."""

    absent: bool = False
    version: str = ""
    backend_version: str = ""
    points: tuple[_Answer, ...] = ()


def ask(
    pythons: Sequence[Path],
    study: Study,
    model: str,
    points: Sequence[Point],
    environment: Mapping[str, str],
) -> Answers:
    """Ask the first Python that has it; `absent` where none has.

    Raises `StudyError` where it fails, knows no such model, or takes too long.
    """
    request = {
        "common": {
            "model_path": model,
            "system_name": system_of(study.environment),
            "backend_name": study.launch.recipe,
            "isl": study.workload.sequence_length,
            "osl": study.workload.output_length or 1,
        },
        "points": [asdict(point) for point in points],
    }
    for python in dict.fromkeys((Path(sys.executable), *pythons)):
        answers = _answers(python, request, environment)
        if not answers.absent:
            _check(answers, len(points))
            return answers
    return Answers(absent=True)


def _answers(python: Path, request: object, environment: Mapping[str, str]) -> Answers:
    script = folder_of("aiconfigurator") / "in_job" / "ask_aiconfigurator.py"
    try:
        with tempfile.TemporaryDirectory(prefix="cclsearch-aiconfigurator-") as folder:
            ended = subprocess.run(
                [str(python), str(script)],
                input=json.dumps(request).encode(),
                cwd=folder,
                env=dict(environment),
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise StudyError(f"it gave no answer in {TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise StudyError(f"{python} cannot be started: {error.strerror}") from error
    printed = ended.stdout.decode("utf-8", "replace").strip().splitlines()
    try:
        return msgspec.json.decode(printed[-1] if printed else "", type=Answers)
    except msgspec.MsgspecError as error:
        said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
        last = shown(said[-1]) if said else "nothing"
        raise StudyError(f"it ended with status {ended.returncode} and said {last}") from error


def _check(answers: Answers, count: int) -> None:
    """Raise `StudyError` for a fault, and for answers that are none."""
    fault = next((each.error for each in answers.points if each.error), None)
    if fault is not None:
        raise StudyError(shown(fault))
    times_ms = [t for p in answers.points if p.fits for t in (p.ttft_ms, p.tpot_ms)]
    if len(answers.points) != count or not all(0 < time_ms < math.inf for time_ms in times_ms):
        raise StudyError("it answers with times that are not above 0, or not for each setting")
