"""The values of one job file: what a rank is asked to run, checked before anything starts."""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

_Choice = TypeVar("_Choice", bound=StrEnum)


class JobError(ValueError):
    """A job that cannot be run as written; the message is one line that says which part."""


class DeviceKind(StrEnum):
    """Where the ranks compute."""

    CPU = "cpu"
    CUDA = "cuda"


class Precision(StrEnum):
    """The number format of parameters, gradients, optimizer state and what is sent."""

    FP32 = "fp32"
    BF16 = "bf16"


class Checkpointing(StrEnum):
    """What the backward pass computes again instead of having kept it."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The model and the batch: the work of one step, the same in every configuration."""

    layer_count: int
    hidden_size: int
    head_count: int
    kv_head_count: int
    ffn_size: int
    vocab_size: int
    sequence_length: int
    global_batch: int
    precision: Precision
    seed: int

    def __post_init__(self) -> None:
        _divides("workload", "hidden_size", self.hidden_size, "head_count", self.head_count)
        _divides("workload", "head_count", self.head_count, "kv_head_count", self.kv_head_count)
        head_size = self.hidden_size // self.head_count
        _divides("workload", "hidden_size / head_count", head_size, "rotary pairs of", 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How the work is spread over the ranks."""

    dp_replicate: int
    dp_shard: int
    tp: int
    pp: int
    micro_batch: int
    activation_checkpointing: Checkpointing

    @property
    def dp(self) -> int:
        """Ranks that see different sequences: replicas times shards."""
        return self.dp_replicate * self.dp_shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How many steps are run before, under and after the clock."""

    warmup_steps: int
    timed_steps: int
    profiled_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything one rank is told, apart from its number."""

    entry: str
    world_size: int
    device: DeviceKind
    init_method: str
    workload: Workload
    config: Config
    measure: Measure
    memory_budget_bytes: int | None
    threads_per_rank: int

    def __post_init__(self) -> None:
        module, colon, function = self.entry.partition(":")
        if not (module and colon and function):
            raise JobError(f"entry: expected 'package.module:function', got {self.entry!r}")
        _check_layout(self.workload, self.config, self.world_size)

    @property
    def micro_batch_count(self) -> int:
        """Forward passes per rank and step."""
        return self.workload.global_batch // (self.config.dp * self.config.micro_batch)


def read_job(path: Path) -> Job:
    """Read a job file; raises `JobError` with the file's name and the part that is wrong."""
    try:
        return parse_job(path.read_text(encoding="utf-8"))
    except (OSError, JobError) as error:
        raise JobError(f"{path.name}: {error}") from error


def parse_job(text: str) -> Job:
    """Parse a job's JSON text; raises `JobError`."""
    try:
        document: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise JobError(f"not JSON: {error}") from error
    job = _Section("job", document)
    parsed = Job(
        entry=job.text("entry"),
        world_size=job.count("world_size"),
        device=job.choice("device", DeviceKind),
        init_method=job.text("init_method"),
        workload=_parse_workload(job.section("workload")),
        config=_parse_config(job.section("config")),
        measure=_parse_measure(job.section("measure")),
        memory_budget_bytes=job.optional_count("memory_budget_bytes"),
        threads_per_rank=job.count("threads_per_rank"),
    )
    job.close()
    return parsed


def _parse_workload(section: "_Section") -> Workload:
    workload = Workload(
        layer_count=section.count("layer_count"),
        hidden_size=section.count("hidden_size"),
        head_count=section.count("head_count"),
        kv_head_count=section.count("kv_head_count"),
        ffn_size=section.count("ffn_size"),
        vocab_size=section.count("vocab_size"),
        sequence_length=section.count("sequence_length"),
        global_batch=section.count("global_batch"),
        precision=section.choice("precision", Precision),
        seed=section.count("seed", least=0),
    )
    section.close()
    return workload


def _parse_config(section: "_Section") -> Config:
    config = Config(
        dp_replicate=section.count("dp_replicate"),
        dp_shard=section.count("dp_shard"),
        tp=section.count("tp"),
        pp=section.count("pp"),
        micro_batch=section.count("micro_batch"),
        activation_checkpointing=section.choice("activation_checkpointing", Checkpointing),
    )
    section.close()
    return config


def _parse_measure(section: "_Section") -> Measure:
    measure = Measure(
        warmup_steps=section.count("warmup_steps", least=0),
        timed_steps=section.count("timed_steps"),
        profiled_steps=section.count("profiled_steps", least=0),
    )
    section.close()
    return measure


def _check_layout(workload: Workload, config: Config, world_size: int) -> None:
    rank_count = config.dp * config.tp * config.pp
    if rank_count != world_size:
        raise JobError(
            f"config: dp_replicate × dp_shard × tp × pp = {rank_count}, but world_size is"
            f" {world_size}"
        )
    per_pass = config.dp * config.micro_batch
    _divides("config", "global_batch", workload.global_batch, "dp × micro_batch =", per_pass)
    for name in ("head_count", "kv_head_count", "ffn_size", "vocab_size", "sequence_length"):
        _divides("config", name, getattr(workload, name), "tp", config.tp)
    _divides("config", "layer_count", workload.layer_count, "pp", config.pp)
    micro_batch_count = workload.global_batch // per_pass
    if config.pp > 1 and micro_batch_count < config.pp:
        raise JobError(
            f"config: pp {config.pp} needs as many micro-batches to fill its stages, but the"
            f" batch makes {micro_batch_count}"
        )


def _divides(section: str, whole: str, size: int, part: str, by: int) -> None:
    if size % by:
        raise JobError(f"{section}: {whole} {size} does not divide by {part} {by}")


class _Section:
    """One JSON object, read key by key, so that a wrong, missing or unknown key is named."""

    def __init__(self, name: str, value: object) -> None:
        if not isinstance(value, dict):
            raise JobError(f"{name}: expected an object, got {json.dumps(value)}")
        self._name = name
        self._left: dict[str, object] = dict(value)

    def section(self, key: str) -> "_Section":
        return _Section(key, self._take(key))

    def text(self, key: str) -> str:
        value = self._take(key)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "a text", value)
        return value

    def count(self, key: str, *, least: int = 1) -> int:
        value = self._take(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._wrong(key, f"a whole number of at least {least}", value)
        return value

    def optional_count(self, key: str) -> int | None:
        if self._left.get(key, key) is None:
            self._take(key)
            return None
        return self.count(key)

    def choice(self, key: str, choices: type[_Choice]) -> _Choice:
        value = self._take(key)
        for choice in choices:
            if choice == value:
                return choice
        raise self._wrong(key, " or ".join(choices), value)

    def close(self) -> None:
        if self._left:
            raise JobError(f"{self._name}: unknown {', '.join(sorted(self._left))}")

    def _take(self, key: str) -> object:
        if key not in self._left:
            raise JobError(f"{self._name}: {key} is missing")
        return self._left.pop(key)

    def _wrong(self, key: str, expected: str, value: object) -> JobError:
        return JobError(f"{self._name}: {key} must be {expected}, got {json.dumps(value)}")
