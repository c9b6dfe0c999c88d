"""Knobs and rules of the recipes: choices, conditions, defaults, and what a rank is given.

The defaults of the built-in trainer are those of `evaluator.rank.job.Config`, except where a
comment here says otherwise.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from difflib import get_close_matches
from enum import StrEnum
from itertools import product
from math import isqrt
from pathlib import Path
from typing import TypeAlias, get_type_hints

from evaluator.rank.job import (
    FOLDED,
    LOOPED_STAGES,
    ONE_STAGE,
    AttentionBackend,
    Checkpointing,
    CommHook,
    ContextMethod,
    DeviceKind,
    JobError,
    OptimizerLoop,
    Reduction,
    Reshard,
    Schedule,
    parse,
)
from evaluator.rank.job import Config as RankConfig
from evaluator.rank.job import Workload as RankWorkload
from records.errors import StudyError
from records.expression import Operand, Rule, facts
from records.expression import parse as parse_expression
from records.study import Constraint, Dimension, Environment, Study, Value, choices_of, list_words
from records.workload import Workload

Choices: TypeAlias = Callable[[Study], tuple[Value, ...]]

LOOPED = (Schedule.INTERLEAVED, Schedule.LOOPED_BFS, Schedule.INTERLEAVED_ZERO_BUBBLE)
CPU_BACKENDS = (AttentionBackend.AUTO, AttentionBackend.MATH, AttentionBackend.FLASH)
FOLDED_STAGES = 2


def listed(values: Iterable[str]) -> str:
    """Return texts or enumeration members as an expression lists them."""
    return f"[{', '.join(repr(str(value)) for value in values)}]"


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


def _members(kind: type[StrEnum]) -> Choices:
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
        choices=_members(Checkpointing),
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
        choices=_members(Schedule),
        when="pp > 1",
        description="order in which stages take micro-batches",
    ),
    "stages_per_rank": _Knob(
        choices=_fixed(2, 4),
        when=f"pp > 1 and pipeline_schedule in {listed(LOOPED)}",
        description="pipeline stages on each rank; other schedules have 1, folded ones 2",
    ),
    "context_method": _Knob(
        choices=_members(ContextMethod),
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
        choices=_members(CommHook),
        when=BUCKETED,
        description="how gradients are compressed on their way",
    ),
    "fsdp_reshard": _Knob(
        choices=_members(Reshard),
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
        choices=_members(Reduction),
        when="dp_shard > 1",
        description="number format in which sharded gradients are added up",
    ),
    "optimizer_loop": _Knob(
        choices=_members(OptimizerLoop),
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


def complete_dimension(given: Dimension, study: Study) -> Dimension:
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
    """Return what a rank is given, from a checked value of every knob."""
    stages = 1
    if settings["pp"] != 1 and settings["pipeline_schedule"] in FOLDED:
        stages = FOLDED_STAGES
    elif settings["pp"] != 1 and settings["pipeline_schedule"] in LOOPED:
        stages = int(settings["stages_per_rank"])
    values = {name: _MEMBERS.get(name, {}).get(value, value) for name, value in settings.items()}
    return RankConfig(**{**values, "stages_per_rank": stages})  # type: ignore[arg-type]  # checked


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


MAX_SETTINGS = 20_000
"""Settings of a rule's knobs that are tried to find out whether they can break it."""


def new_rule(name: str, expression: str, reason: str) -> Rule:
    """A rule of a recipe; raises `StudyError` when its expression is none."""
    return Rule.of(Constraint(name=name, expression=expression, reason=reason))


def can_break(rule: Rule, study: Study) -> bool:
    """Whether some setting of the space breaks a rule.

    The space has its choices and defaults. Raises `StudyError` if the rule is broken without any.
    """
    searched = {d.name: choices_of(d) for d in study.space.dimensions}
    names = {**facts(study.workload, study.usable_environment), **study.space.defaults}
    return _can_break(rule, searched, names)


def own_constraints(
    study: Study, known: Sequence[Rule], needed: Sequence[Constraint]
) -> Iterator[Constraint]:
    """The study's own constraints; raises `StudyError` for one that takes the name of a rule."""
    taken = {rule.constraint.name: rule.constraint for rule in known}
    for constraint in study.space.constraints:
        rule = taken.get(constraint.name)
        if rule is not None and rule != constraint:
            raise StudyError(
                f"[[constraint]] {constraint.name!r} is the name of a rule of the "
                f"{study.launch.recipe} recipe ({rule.expression}); give it another"
            )
        if constraint not in needed:
            yield constraint


def broken_rules(rules: Sequence[Rule], names: Mapping[str, Operand | None]) -> list[str]:
    """How a configuration breaks rules, as text."""
    found = (rule.broken(names) for rule in rules)
    return [words for words in found if words is not None]


def _can_break(
    rule: Rule, searched: Mapping[str, tuple[Value, ...]], names: Mapping[str, Operand | None]
) -> bool:
    if not rule.expression.names <= names.keys() | searched.keys():
        return True  # it names what only a whole configuration has
    varied = sorted(rule.expression.names & searched.keys())
    if not varied:
        words = rule.broken(names)
        if words is not None:
            raise StudyError(f"[space] {words}, and none of these is searched")
        return False
    if math.prod(len(searched[name]) for name in varied) > MAX_SETTINGS:
        return True
    settings = product(*(searched[name] for name in varied))
    return any(
        not rule.expression.holds({**names, **dict(zip(varied, setting, strict=True))})
        for setting in settings
    )


ROTARY_PAIR = 2


def rank_device(environment: Environment) -> DeviceKind:
    """Where ranks of ours run; raises `StudyError` for a machine that they cannot run on."""
    if environment.device == "tpu":
        raise StudyError(
            "[environment] device 'tpu': ranks of cclsearch run on GPUs and CPUs; start a program "
            'of your own there, with --command and --tuning, or with recipe = "command" under '
            "[launch]"
        )
    return DeviceKind(environment.device)


def rank_workload(workload: Workload) -> RankWorkload:
    """Return what the ranks are given; raises `StudyError` for work that they cannot do."""
    if workload.phase == "communication":
        raise StudyError(
            "[workload] phase 'communication' trains nothing; give recipe = \"collectives\" "
            "under [launch]"
        )
    given = {field.name: getattr(workload, field.name) for field in fields(RankWorkload)}
    for field in fields(RankWorkload):
        if field.default is MISSING and given[field.name] is None:
            raise StudyError(
                f"[workload] {field.name} is missing; the builtin recipe needs it: give it, or "
                'a known model, as in model = "llama-3.1-8b"'
            )
    if workload.requests_per_s is not None:
        raise StudyError(
            f"[workload] requests_per_s is {workload.requests_per_s:g}: the builtin recipe answers "
            "all requests of a batch together; start a server of your own with --command"
        )
    if workload.phase == "training":
        given["output_length"] = None
    elif not workload.output_length:
        raise StudyError(
            "[workload] output_length is missing; the builtin recipe needs it, the tokens of an "
            "answer: give it under [workload] of a study file (-c)"
        )
    known = {name: value for name, value in given.items() if value is not None}
    try:
        work = parse(RankWorkload, json.dumps(known))
    except JobError as error:
        raise StudyError(f"[workload] {str(error).removeprefix('job: ')}") from error
    _check_attention(work)
    if work.expert_count:
        _check_experts(work)
    return work


def _check_attention(work: RankWorkload) -> None:
    if not work.head_size and work.hidden_size % work.head_count:
        raise StudyError(
            f"[workload] hidden_size {work.hidden_size} does not divide by head_count "
            f"{work.head_count}; change one of them, or give head_size"
        )
    if work.head_count % work.kv_head_count:
        raise StudyError(
            f"[workload] head_count {work.head_count} does not divide by kv_head_count "
            f"{work.kv_head_count}"
        )
    if work.head_width % ROTARY_PAIR:
        raise StudyError(
            f"[workload] heads of size {work.head_width} do not divide into the pairs that rotary "
            "positions turn; change hidden_size, head_count or head_size"
        )


def _check_experts(work: RankWorkload) -> None:
    for name in ("experts_per_token", "expert_ffn_size"):
        if not getattr(work, name):
            raise StudyError(f"[workload] a model with experts needs {name}, at least 1")
    if work.experts_per_token > work.expert_count:
        raise StudyError(
            f"[workload] experts_per_token {work.experts_per_token} is above expert_count "
            f"{work.expert_count}"
        )
    if work.dense_layer_count > work.layer_count:
        raise StudyError(
            f"[workload] dense_layer_count {work.dense_layer_count} is above layer_count "
            f"{work.layer_count}"
        )


JOB_FILE = "job.json"


def rank_program(python: str = Path(sys.executable).name) -> tuple[str, ...]:
    """Return the command of one rank; it names no path of this machine."""
    return (python, "-P", "-m", "evaluator.rank.main", JOB_FILE)


LIBRARY = "default"
"""The value that leaves a text knob to the library."""
MPI = "comm_adapter == 'mpi'"
OTHER_THAN_MPI = "comm_adapter != 'mpi'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One setting, and the values that it may have.

    An empty table in a study searches `choices`. Numbers may be anything from `least` on, texts
    with a `pattern` anything that it matches; others are of `choices` and `more`. A knob has an
    effect when `when` holds and the mix has one of the collectives `of`, any if none is listed.
    `variables` are patterns of the environment variables that it decides about.
    """

    description: str
    default: Value
    choices: tuple[Value, ...]
    more: tuple[Value, ...] = ()
    least: int | None = None
    pattern: str | None = None
    when: str | None = None
    of: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()

    def fault(self, value: Value) -> str | None:
        """What is wrong with a value, as the end of a sentence; None where nothing is."""
        if self.least is not None:
            whole = isinstance(value, int) and not isinstance(value, bool)
            fits, wanted = whole and int(value) >= self.least, f"a whole number from {self.least}"
        elif self.pattern is not None:
            fits = isinstance(value, str) and re.fullmatch(self.pattern, value) is not None
            wanted = f"a text such as {self.choices[-1]!r}"
        else:
            known = tuple(dict.fromkeys((self.default, *self.choices, *self.more)))
            fits = any(type(value) is type(each) and value == each for each in known)
            wanted = f"one of {list_words(known)}"
        return None if fits else f"must be {wanted}, got {value!r}"

    def condition(self, mix: frozenset[str]) -> str | None:
        """When the knob has an effect, for a mix of these collectives; None where it always has."""
        if self.of and not mix & set(self.of):
            return f"{self.of[0]!r} in {listed(sorted(mix))}"
        return self.when
