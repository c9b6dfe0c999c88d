"""The knobs of the built-in recipe: their choices, when they have an effect, and what they are.

The defaults are those of `evaluator.rank.job.Config`, except where a comment here says otherwise.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from math import isqrt
from typing import TypeAlias, get_type_hints

from evaluator.memory.shares import FOLDED
from evaluator.rank.job import (
    AttentionBackend,
    Checkpointing,
    CommHook,
    ContextMethod,
    OptimizerLoop,
    Reduction,
    Reshard,
    Schedule,
)
from evaluator.rank.job import Config as RankConfig
from evaluator.rank.job_file import JobError, parse
from records.errors import StudyError
from records.expression import parse as parse_expression
from records.rule import facts
from records.study import Dimension, Study, Value

Choices: TypeAlias = Callable[[Study], tuple[Value, ...]]

ONE_STAGE = (Schedule.GPIPE, Schedule.ONE_F_ONE_B)
LOOPED = (Schedule.INTERLEAVED, Schedule.LOOPED_BFS, Schedule.INTERLEAVED_ZERO_BUBBLE)
CPU_BACKENDS = (AttentionBackend.AUTO, AttentionBackend.MATH, AttentionBackend.FLASH)
FOLDED_STAGES = 2
LOOPED_STAGES = 2


def listed(members: tuple[StrEnum, ...]) -> str:
    """Choices as an expression lists them."""
    return f"[{', '.join(repr(member.value) for member in members)}]"


TRAINING_ONLY = "phase == 'training'"
BUCKETED = (
    "dp_replicate > 1 and dp_shard == 1 and tp == 1 and cp == 1"
    f" and pipeline_schedule in {listed(ONE_STAGE)}"
)
"""Where gradients go through the buckets of DistributedDataParallel."""
SERVING_KNOBS = ("dp_replicate", "tp", "micro_batch", "attention_backend", "threads_per_rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Knob:
    choices: Choices
    description: str
    when: str | None = None


def _divisors(whole: int) -> tuple[int, ...]:
    small = [part for part in range(1, isqrt(whole) + 1) if whole % part == 0]
    return *small, *(whole // part for part in reversed(small) if part * part != whole)


def _degrees(study: Study) -> tuple[Value, ...]:
    return _divisors(study.environment.world_size)


def _micro_batches(study: Study) -> tuple[Value, ...]:
    return _divisors(study.workload.global_batch)


def _fixed(*choices: Value) -> Choices:
    return lambda _study: choices


def _backends(study: Study) -> tuple[Value, ...]:
    if study.environment.device == "cpu":
        return AttentionBackend.AUTO.value, AttentionBackend.MATH.value  # flash is what auto takes
    return tuple(backend.value for backend in AttentionBackend)


def _hooks(study: Study) -> tuple[Value, ...]:
    """Without those that the device lacks, and the one whose losses are not the others'."""
    hooks = (CommHook.NONE, CommHook.FP16, CommHook.BF16)
    return tuple(
        hook.value for hook in (hooks if study.environment.device == "cuda" else hooks[:2])
    )


def _words(kind: type[StrEnum]) -> Choices:
    return _fixed(*(member.value for member in kind))


_KNOBS: Mapping[str, _Knob] = {
    "dp_replicate": _Knob(choices=_degrees, description="data-parallel replicas"),
    "dp_shard": _Knob(
        choices=_degrees,
        description="ranks that parameters, gradients and optimizer state are sharded over",
    ),
    "tp": _Knob(choices=_degrees, description="ranks that each matrix is sliced over"),
    "cp": _Knob(choices=_degrees, description="ranks that each sequence is cut over"),
    "pp": _Knob(choices=_degrees, description="ranks that the layers are cut over"),
    "ep": _Knob(
        choices=_degrees,
        description="ranks, of those that see different tokens, that experts are spread over",
    ),
    "micro_batch": _Knob(choices=_micro_batches, description="sequences per forward pass and rank"),
    "activation_checkpointing": _Knob(
        choices=_words(Checkpointing),
        description="what the backward pass recomputes instead of having kept it",
    ),
    "sequence_parallel": _Knob(
        choices=_fixed(True, False),
        when="tp > 1",
        description="between sliced matrices each rank holds a part of the sequence",
    ),
    "loss_parallel": _Knob(
        choices=_fixed(True, False),
        when="tp > 1",
        description="the loss is computed from slices of the vocabulary",
    ),
    "pipeline_schedule": _Knob(
        choices=_words(Schedule),
        when="pp > 1",
        description="order in which stages take micro-batches",
    ),
    "stages_per_rank": _Knob(
        choices=_fixed(2, 4),
        when=f"pp > 1 and pipeline_schedule in {listed(LOOPED)}",
        description="pipeline stages on each rank; other schedules have 1, folded ones 2",
    ),
    "context_method": _Knob(
        choices=_words(ContextMethod),
        when="cp > 1",
        description="how ranks attend to the parts of a sequence that others hold",
    ),
    "compile": _Knob(
        choices=_fixed(False, True), description="torch.compile of each layer, before the clock"
    ),
    "ddp_bucket_mib": _Knob(
        choices=_fixed(1, 5, 25, 100),
        when=BUCKETED,
        description="MiB of gradients that are reduced together",
    ),
    "ddp_bucket_view": _Knob(
        choices=_fixed(True, False), when=BUCKETED, description="gradients live in their buckets"
    ),
    "ddp_static_graph": _Knob(
        choices=_fixed(False, True),
        when=BUCKETED,
        description="the graph is taken to be always the same",
    ),
    "ddp_comm_hook": _Knob(
        choices=_words(CommHook),
        when=BUCKETED,
        description="how gradients are compressed on their way",
    ),
    "fsdp_reshard": _Knob(
        choices=_fixed(*(member.value for member in Reshard)),
        when="dp_shard > 1",
        description="whether gathered parameters are dropped after the forward pass; auto drops "
        "them, except in a pipeline",
    ),
    "fsdp_prefetch": _Knob(
        choices=_fixed(0, 1, 2),
        when="dp_shard > 1",
        description="layers whose parameters are gathered ahead; 0 leaves it to torch",
    ),
    "fsdp_reduction": _Knob(
        choices=_fixed(*(member.value for member in Reduction)),
        when="dp_shard > 1",
        description="number format in which sharded gradients are added up",
    ),
    "optimizer_loop": _Knob(
        choices=_fixed(*(member.value for member in OptimizerLoop)),
        description="how the optimizer goes over the parameters",
    ),
    "attention_backend": _Knob(
        choices=_backends,
        when=f"device != 'cpu' or cp == 1 or context_method != {ContextMethod.RING.value!r}",
        description="kernel that computes attention; auto leaves it to torch",
    ),
    "threads_per_rank": _Knob(choices=_fixed(1, 2), description="threads that compute in a rank"),
}


_MEMBERS: Mapping[str, Mapping[Value, StrEnum]] = {
    name: {member.value: member for member in kind}
    for name, kind in get_type_hints(RankConfig).items()
    if issubclass(kind, StrEnum)
}


def defaults(study: Study) -> Mapping[str, Value]:
    """What every knob is where a configuration leaves it out."""
    return {
        **{name: _plain(value) for name, value in asdict(RankConfig()).items()},
        # Only schedules with several stages ask; the others have what `rank_config` gives them.
        "stages_per_rank": LOOPED_STAGES,
        "threads_per_rank": study.launch.threads_per_rank,
    }


def condition(name: str, study: Study) -> str | None:
    """When a knob has an effect; None where it always has."""
    if study.workload.phase == "inference" and name not in SERVING_KNOBS:
        return TRAINING_ONLY
    return _KNOBS[name].when


def dimension(name: str, study: Study) -> Dimension:
    """A knob as a dimension, with every choice that could make sense in this study."""
    knob = _KNOBS[name]
    return Dimension(
        name=name,
        choices=knob.choices(study),
        when=condition(name, study),
        description=knob.description,
    )


def completed(given: Dimension, study: Study) -> Dimension:
    """A dimension of a study with what it leaves out.

    Raises `StudyError` for an unknown knob, and for a choice that the knob does not have.
    """
    default = defaults(study).get(given.name, 0)
    ends = (given.range.low, given.range.high) if given.range else ()
    for choice in (default, *(given.choices or ()), *ends):
        check_setting(given.name, choice)
    known = dimension(given.name, study)
    listed_here = given.choices is not None or given.range is not None
    return replace(
        given,
        choices=given.choices if listed_here else known.choices,
        when=given.when or known.when,
        description=given.description or known.description,
    )


def live(settings: Mapping[str, Value], study: Study) -> dict[str, Value]:
    """The settings with the default of every knob that has no effect among them."""
    names = facts(study.workload, study.environment)
    found = dict(settings)
    for name in _KNOBS:  # those that conditions name come first
        when = condition(name, study)
        if when is not None and not parse_expression(when).holds({**names, **found}):
            found[name] = defaults(study)[name]
    return found


def rank_config(settings: Mapping[str, Value]) -> RankConfig:
    """What a rank is told, from a checked value of every knob."""
    stages = 1
    if settings["pp"] != 1 and settings["pipeline_schedule"] in FOLDED:
        stages = FOLDED_STAGES
    elif settings["pp"] != 1 and settings["pipeline_schedule"] in LOOPED:
        stages = int(settings["stages_per_rank"])
    told = {name: _MEMBERS.get(name, {}).get(value, value) for name, value in settings.items()}
    return RankConfig(**{**told, "stages_per_rank": stages})  # type: ignore[arg-type]  # checked


def check_setting(name: str, value: Value) -> None:
    """Raise `StudyError` when the recipe has no such knob, or it cannot be set to this."""
    if name not in _KNOBS:
        close = get_close_matches(name, _KNOBS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(_KNOBS)}"
        raise StudyError(f"[space] {name!r} is not a knob of the builtin recipe; {hint}")
    try:
        parse(RankConfig, json.dumps({name: value}))
    except JobError as error:
        raise StudyError(f"[space] {str(error).removeprefix('job: ')}") from error


def _plain(value: Value) -> Value:
    """Without its enumeration, which stored texts do not know."""
    return str(value) if isinstance(value, str) else value
