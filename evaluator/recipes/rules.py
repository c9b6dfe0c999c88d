"""What the built-in recipe requires of a configuration: each rule with its reason.

Rules about validity also hold for every configuration that becomes a job. Those about the study
(use of ranks, memory, nodes) only bind the search; a rule of the study with the same name replaces
them.
"""

from collections.abc import Iterator
from dataclasses import replace

from evaluator.metrics.registry import ALIASES
from evaluator.rank.job import (
    FOLDED,
    SPLIT_BACKWARD,
    AttentionBackend,
    Checkpointing,
    CommHook,
    ContextMethod,
    Precision,
    Reshard,
    Schedule,
)
from evaluator.recipes.knobs import (
    CPU_BACKENDS,
    LOOPED,
    can_break,
    complete_dimension,
    defaults,
    listed,
    own_constraints,
)
from records.errors import StudyError
from records.expression import Rule, parse
from records.study import Constraint, SearchSpace, Study

RANKS = "dp_replicate * dp_shard * tp * cp * pp"
MICRO_BATCHES = "global_batch // (dp_replicate * dp_shard * micro_batch)"
IN_ROUNDS = (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZERO_BUBBLE)
HALF_BACKENDS = (AttentionBackend.FLASH, AttentionBackend.CUDNN)
WORLD = "world"
COST_WORDS = ("rank_count", "rank_seconds", "device_seconds", "per_rank", "per_device", "cost_per")
FITS = {
    "cpu": "estimated_memory_bytes <= memory_bytes",
    "cuda": "estimated_memory_bytes <= 1.3 * memory_bytes",
}
"""What may fit. On CPU ranks nothing that was estimated above the memory ever ran
(`benchmarks/landscape.py`); elsewhere the estimate must exceed it by more before it is believed: a
configuration that is refused wrongly is never found, one that runs out of memory costs seconds."""


def _rules(*rows: tuple[str, str, str]) -> tuple[Rule, ...]:
    return tuple(
        Rule.of(Constraint(name=name, expression=expression, reason=reason))
        for name, expression, reason in rows
    )


_ANY = _rules(
    (WORLD, f"{RANKS} <= world_size", "every rank needs its own accelerator"),
    (
        "heads",
        "head_count % tp == 0 and kv_head_count % tp == 0",
        "tensor parallelism splits attention by heads",
    ),
    ("ffn", "ffn_size % tp == 0", "tensor parallelism splits matrices into equal slices"),
    ("vocabulary", "vocab_size % tp == 0", "so are the embedding and the head"),
)
_TRAINING = _rules(
    (
        "batch",
        "global_batch % (dp_replicate * dp_shard * micro_batch) == 0",
        "each data-parallel rank takes whole micro-batches of the fixed global batch",
    ),
    (
        "sequence",
        "sequence_length % (cp * (tp if sequence_parallel else 1)) == 0",
        "the sequence is cut evenly",
    ),
    (
        "compiled_slices",
        "not compile or tp == 1",
        "torch cannot run the backward pass of a compiled layer that is sliced",
    ),
)
_PIPELINE = _rules(
    ("layers", "layer_count % pp == 0", "stages hold equally many layers"),
    (
        "looped_layers",
        f"pipeline_schedule not in {listed(LOOPED)} or layer_count % (pp * stages_per_rank) == 0",
        "each rank holds stages_per_rank stages of equally many layers",
    ),
    (
        "folded_layers",
        f"pipeline_schedule not in {listed(FOLDED)} or layer_count % (2 * pp) == 0",
        "these schedules give each rank two stages of equally many layers",
    ),
    (
        "pipeline_fill",
        f"pp == 1 or pipeline_schedule != {Schedule.ONE_F_ONE_B.value!r} or {MICRO_BATCHES} >= pp",
        "1F1B needs at least as many micro-batches as stages",
    ),
    (
        "folded_fill",
        f"pipeline_schedule != {Schedule.DUAL_PIPE_V.value!r} or {MICRO_BATCHES} >= 2 * pp",
        "it needs at least as many micro-batches as stages, of which a rank has two",
    ),
    (
        "rounds",
        f"pipeline_schedule not in {listed(IN_ROUNDS)}"
        f" or {MICRO_BATCHES} % max(1, {MICRO_BATCHES} // pp) == 0",
        "these schedules take micro-batches in equal rounds of at least pp",
    ),
    (
        "kept_parameters",
        f"pipeline_schedule not in {listed(SPLIT_BACKWARD)} or dp_shard == 1"
        f" or fsdp_reshard != {Reshard.ALWAYS.value!r}",
        "backward passes in two parts would work on dropped parameters, and train something else",
    ),
    (
        "recomputed_once",
        f"pipeline_schedule not in {listed(SPLIT_BACKWARD)}"
        f" or activation_checkpointing != {Checkpointing.SELECTIVE.value!r}",
        "selective checkpointing computes again only once, these schedules go back in two parts",
    ),
    (
        "compiled_stages",
        f"pipeline_schedule not in {listed(SPLIT_BACKWARD)} or not compile",
        "torch cannot cut the backward pass of a compiled stage in two",
    ),
)
_CONTEXT = _rules(
    (
        "ring",
        f"cp == 1 or context_method != {ContextMethod.RING.value!r}"
        " or sequence_length % (2 * cp) == 0",
        "in a ring each rank holds an equal part from either end of the sequence",
    ),
    (
        "exchanged_heads",
        f"cp == 1 or context_method != {ContextMethod.ULYSSES.value!r}"
        " or head_count % (tp * cp) == 0 and kv_head_count % (tp * cp) == 0",
        "ranks swap parts of the sequence for whole heads",
    ),
    (
        "ring_kernel",
        f"cp == 1 or context_method != {ContextMethod.RING.value!r}"
        f" or attention_backend != {AttentionBackend.MATH.value!r}",
        "a ring joins parts by a sum that only fused kernels give",
    ),
)
_GRADIENTS = _rules(
    (
        "static_graph",
        f"not ddp_static_graph or {MICRO_BATCHES} == 1",
        "torch learns the graph from a first exchange, which more micro-batches put off",
    ),
    (
        "compressed",
        f"device != 'cpu' or ddp_comm_hook not in {listed((CommHook.BF16, CommHook.POWER_SGD))}",
        "one needs NCCL, and over gloo the other's exchanges of several buckets cross and hang",
    ),
)
_KERNELS = _rules(
    (
        "cpu_kernel",
        f"device != 'cpu' or attention_backend in {listed(CPU_BACKENDS)}",
        "there are no other attention kernels for processors",
    ),
    (
        "kernel_precision",
        f"device != 'cuda' or attention_backend not in {listed(HALF_BACKENDS)}"
        f" or precision != {Precision.FP32.value!r}",
        "these kernels know no fp32",
    ),
    (
        "grouped_heads",
        f"device != 'cuda' or attention_backend != {AttentionBackend.EFFICIENT.value!r}"
        " or kv_head_count == head_count"
        f" or cp > 1 and context_method == {ContextMethod.RING.value!r}",
        "this kernel takes no heads that share keys",
    ),
    (
        "ring_rows",
        f"device != 'cuda' or cp == 1 or context_method != {ContextMethod.RING.value!r}"
        f" or not (attention_backend == {AttentionBackend.EFFICIENT.value!r}"
        f" or attention_backend == {AttentionBackend.AUTO.value!r}"
        f" and precision == {Precision.FP32.value!r})"
        " or sequence_length // (2 * cp) % 32 == 0",
        "this kernel pads its sums to 32 rows, which a ring would join with other rows",
    ),
    (
        "masked",
        f"device != 'cuda' or attention_backend != {AttentionBackend.FLASH.value!r} or cp == 1"
        f" or context_method != {ContextMethod.ALL_GATHER.value!r}",
        "this kernel takes no mask, which gathered keys need",
    ),
)
ALIGNED = f"(4 if precision == {Precision.FP32.value!r} else 8)"
_DENSE = _rules(("experts", "ep == 1", "the model has no experts"))
_EXPERTS = _rules(
    ("experts", "expert_count % ep == 0", "each rank holds equally many experts"),
    (
        "expert_ranks",
        "dp_shard * cp % ep == 0",
        "experts are spread over ranks that see different tokens",
    ),
    ("expert_slices", "expert_ffn_size % tp == 0", "each expert is cut evenly"),
    (
        "expert_rows",
        f"hidden_size % {ALIGNED} == 0 and expert_ffn_size // tp % {ALIGNED} == 0",
        "torch multiplies the matrices of several experts together in rows of whole 16 bytes",
    ),
)
_SAME = _rules(
    (
        "same_reshard",
        "fsdp_reshard != ('always' if pp == 1 else 'never')",
        "it is what auto does here",
    ),
    ("same_reduction", "fsdp_reduction != precision", "it is what parameter means here"),
    (
        "same_prefetch",
        "fsdp_prefetch == 0 or fsdp_prefetch < layer_count // pp",
        "a rank has no more layers to gather ahead",
    ),
)
_SERVING = _rules(
    (
        "serving_ranks",
        "dp_shard == 1 and cp == 1 and pp == 1 and ep == 1",
        "these ranks would have nothing to do: nothing is trained, one token is decoded at a time",
    ),
    (
        "batch",
        "global_batch % (dp_replicate * micro_batch) == 0",
        "each replica answers rounds of whole micro-batches",
    ),
)


def rules(study: Study) -> tuple[Rule, ...]:
    """Every rule without which a configuration of this study cannot run, or would be wrong."""
    experts = _EXPERTS if study.workload.expert_count else _DENSE
    if study.workload.phase == "inference":
        return _ANY + _SERVING + _KERNELS + experts
    return _ANY + _TRAINING + _PIPELINE + _CONTEXT + _GRADIENTS + _KERNELS + experts


def study_rules(study: Study) -> Iterator[Rule]:
    """Rules that make a search of this study worth its launches."""
    yield ranks_rule(study)
    yield Rule.of(
        Constraint(
            name="tp_in_node",
            expression="tp <= ranks_per_node",
            reason="tensor parallelism stays on the links inside a node",
        )
    )
    yield from _SAME
    environment = study.usable_environment
    if environment.memory_bytes is not None:
        yield Rule.of(
            Constraint(
                name="memory",
                expression=FITS[environment.device],
                reason="a larger estimate than this surely does not fit",
            )
        )


def ranks_rule(study: Study) -> Rule:
    """How many ranks a configuration must use."""
    fewer = counts_ranks(study)
    reason = (
        "the objective counts ranks, so fewer than there are may be better"
        if fewer
        else "the objective does not count ranks, so none is left idle"
    )
    expression = f"{RANKS} {'<=' if fewer else '=='} world_size"
    return Rule.of(Constraint(name="ranks", expression=expression, reason=reason))


def counts_ranks(study: Study) -> bool:
    """Whether an objective is about cost, so that fewer ranks can be better."""
    asked = (study.objective, *study.more_objectives)
    typed = set().union(*(parse(objective.expression).names for objective in asked))
    names = [ALIASES.get(name, name) for name in typed]
    return any(word in name for name in names for word in COST_WORDS)


def complete_space(study: Study) -> SearchSpace:
    """The space with defaults, and with every rule that one of its configurations could break.

    Raises `StudyError` for an unknown knob, and for a rule that is broken whatever is searched.
    """
    dimensions = tuple(complete_dimension(dimension, study) for dimension in study.space.dimensions)
    whole = replace(study.space, dimensions=dimensions, defaults=defaults(study))
    ours = tuple(_needed(replace(study, space=whole)))
    return replace(whole, constraints=(*ours, *own_constraints(study, rules(study), ours)))


def _needed(study: Study) -> Iterator[Constraint]:
    """The recipe's rules that matter here, without those that the study has its own words for."""
    own = {constraint.name: constraint for constraint in study.space.constraints}
    ranks = ranks_rule(study).constraint
    counted = own.get(ranks.name, ranks) == ranks
    for rule in rules(study):
        said = counted and rule.constraint.name == WORLD
        if not said and can_break(rule, study):
            yield rule.constraint
    for rule in study_rules(study):
        try:
            if rule.constraint.name not in own and can_break(rule, study):
                yield rule.constraint
        except StudyError as error:
            name = rule.constraint.name
            raise StudyError(
                f"{error}; search one of them, or give a constraint {name!r} of your own"
            ) from error
