"""A study with a past of any length, for tests of what the model is told."""

import math
from dataclasses import replace

from policies.space import Space
from records.conditions import Conditions
from records.diagnosis import CollectiveTime, Diagnosis
from records.history import History
from records.raced import Raced
from records.study import (
    Budget,
    Constraint,
    Dimension,
    Environment,
    Link,
    Objective,
    Range,
    SearchSpace,
    Study,
)
from records.trial import (
    Breakdown,
    Config,
    Failed,
    FailureKind,
    Measured,
    Measurement,
    MetricValue,
    Outcome,
    Policy,
    Prediction,
    Purpose,
    Repeat,
    Score,
    Stage,
    Trial,
)
from records.workload import Workload
from search.choosers.chooser import Choice, untried
from search.learnt import Learnt

STUDY = Study(
    name="llama-8b-on-16",
    workload=Workload(
        name="llama-8b",
        family="llama",
        global_batch=32,
        sequence_length=1024,
        layer_count=32,
        hidden_size=4096,
        head_count=32,
        kv_head_count=8,
    ),
    environment=Environment(
        name="two-nodes",
        device="cuda",
        accelerator="a100-80gb",
        world_size=16,
        ranks_per_node=8,
        memory_bytes=80 * 2**30,
        scale_up=Link(bandwidth_bytes_per_s=3.0e11),
        scale_out=Link(bandwidth_bytes_per_s=2.5e10, latency_s=5e-6),
        software={"torch": "2.13.0"},
    ),
    space=SearchSpace(
        dimensions=(
            Dimension(name="tp", choices=(1, 2, 4, 8), description="tensor parallel ranks"),
            Dimension(name="dp", choices=(1, 2, 4, 8, 16), description="data parallel ranks"),
            Dimension(name="pp", choices=(1, 2, 4), description="pipeline stages"),
            Dimension(name="micro_batch", choices=(1, 2, 4, 8)),
            Dimension(name="recompute", choices=(False, True)),
            Dimension(name="bucket_mib", range=Range(low=25, high=400, scale="doubling")),
            Dimension(name="schedule", choices=("1f1b", "interleaved"), when="pp > 1"),
        ),
        constraints=(
            Constraint(
                name="uses every rank", expression="tp * dp * pp == world_size", reason="16 ranks"
            ),
        ),
    ),
    objective=Objective(expression="step_time"),
    seed_policy="balanced",
    budget=Budget(trials=400, patience=400),
)
SPACE = Space(STUDY.space, STUDY.workload, STUDY.environment)
LEARNT = (
    Learnt(
        constraint=Constraint(
            name="memory of large micro batches",
            expression="micro_batch <= 4 or recompute",
            reason="8 without recomputation ran out of memory",
        ),
        kind=FailureKind.OUT_OF_MEMORY,
        ordinals=(2, 11, 15, 23),
    ),
)
_STRIDE = 31
"""Prime to the number of feasible configurations, so that all come once."""


def past(count: int) -> History:
    """So many trials of different configurations, with every ill that can befall a search.

    The first was launched four times more, and other processes take ever more of the cores. The
    bucket size changes next to nothing; large micro batches need recomputation to fit. Every
    eleventh policy raises, and now and then a node is lost.
    """
    trials = tuple(_trial(ordinal) for ordinal in range(count))
    again = _self_test(trials[0]) if trials else ()
    steps_s = (r.outcome.metric("step_time") for r in again if isinstance(r.outcome, Measured))
    values = tuple(step_s for step_s in steps_s if step_s is not None)
    history = History(trials, repeats=again, again={0: values} if values else {})
    best, worst = (history.ranked[0], history.ranked[-1]) if history.ranked else (None, None)
    if best is None or worst is None or best is worst:
        return history
    race = Raced(
        challenger=max(best.ordinal, worst.ordinal),
        incumbent=min(best.ordinal, worst.ordinal),
        verdict="slow" if worst.ordinal > best.ordinal else "fast",
        ratio=1.25 if worst.ordinal > best.ordinal else 0.8,
        ratio_low=1.2 if worst.ordinal > best.ordinal else 0.77,
        ratio_high=1.3 if worst.ordinal > best.ordinal else 0.83,
    )
    return replace(history, raced=(race,))


def candidates(history: History, count: int = 3) -> tuple[Choice, ...]:
    """Untried configurations with a reason."""
    found = untried(SPACE, history)[:count]
    expected = [f"expected {1.1 - place / 50:.2f}x (0.90 to 1.30)" for place in range(count)]
    return tuple(
        Choice(config=config, why=f"from the best so far, change it; {words}", expected=words)
        for config, words in zip(found, expected, strict=False)
    )


def _self_test(first: Trial) -> tuple[Repeat, ...]:
    """Launches of the first trial again, which differ by a few percent."""
    step_s = first.outcome.metric("step_time") if isinstance(first.outcome, Measured) else None
    return tuple(
        Repeat(
            series=1,
            round=number,
            ordinal=0,
            purpose=Purpose.SELF_TEST,
            outcome=measured((step_s or 1.0) * factor, others_share=0.1),
        )
        for number, factor in enumerate((1.01, 0.99, 1.03, 0.98))
    )


def trial(ordinal: int, config: Config | None, outcome: Outcome) -> Trial:
    """A trial of the model, scored by its step time."""
    source = "def generate_config(workload):\n    return {}\n"
    if config is not None:
        source = (
            f"def generate_config(workload, environment):\n    return {dict(config.values)!r}\n"
        )
    step_s = outcome.metric("step_time") if isinstance(outcome, Measured) else None
    return Trial(
        ordinal=ordinal,
        policy=Policy(
            source=source,
            author="llm",
            rationale=f"Idea {ordinal}.",
            prediction=Prediction(speedup=1.1, over=0) if ordinal else None,
        ),
        config=config,
        outcome=outcome,
        score=None if step_s is None else Score(cost=step_s, value=step_s, unit="s"),
        started_at="2026-01-01T00:00:00Z",
        ended_at="2026-01-01T00:01:00Z",
    )


def measured(
    step_s: float, *, memory_gib: float = 40.0, others_share: float | None = None
) -> Measured:
    """An outcome whose traces were read; others took this share of the cores, where it is told."""
    conditions = None if others_share is None else _conditions(others_share)
    return Measured(
        measurement=Measurement(
            step_times_s=((step_s,),),
            warmup_times_s=(),
            losses=(),
            tokens_per_step=32768,
            peak_memory_bytes=(int(memory_gib * 2**30),),
            wall_s=30.0,
            device="a100-80gb",
            torch_version="2.13.0",
            conditions=conditions,
        ),
        metrics=(
            MetricValue(name="step_time", value=step_s, unit="s", better="lower", version=1),
            MetricValue(name="mfu", value=0.4, unit="", better="higher", version=1),
        ),
        breakdown=Breakdown(
            compute_s=0.6 * step_s,
            exposed_communication_s=0.3 * step_s,
            hidden_communication_s=0.1 * step_s,
            other_s=0.02 * step_s,
            idle_s=0.08 * step_s,
        ),
        diagnosis=diagnosis(step_s, memory_gib=memory_gib),
    )


def _conditions(others_share: float) -> Conditions:
    return Conditions(
        load_average=None,
        others_cpu_share=others_share,
        steal_share=None,
        cpu_pressure_share=None,
        memory_pressure_share=None,
        io_pressure_share=None,
        available_memory_bytes=None,
        cpu_clock_hz=None,
        cpu_temperature_celsius=None,
    )


def diagnosis(step_s: float, *, memory_gib: float = 40.0) -> Diagnosis:
    """What traces of such a step would say."""
    return Diagnosis(
        compute_s=0.6 * step_s,
        exposed_communication_s=0.3 * step_s,
        hidden_communication_s=0.1 * step_s,
        copy_s=0.02 * step_s,
        idle_s=0.08 * step_s,
        host_wait_s=0.05 * step_s,
        collectives=(
            CollectiveTime(
                kind="all_reduce",
                group_size=4,
                ranks=(0, 4, 8, 12),
                group_count=4,
                crosses_nodes=True,
                call_count=12,
                bytes=3e9,
                exposed_s=0.25 * step_s,
                hidden_s=0.1 * step_s,
            ),
        ),
        slowest_rank=3,
        slowest_over_mean=1.04,
        straggler=3,
        straggler_share=0.02,
        peak_memory_bytes=int(memory_gib * 2**30),
        memory_bytes=80 * 2**30,
    )


def failed(kind: FailureKind, message: str, *, stage: Stage = Stage.LAUNCH) -> Failed:
    """A failure."""
    return Failed(stage=stage, kind=kind, message=message)


def out_of_memory() -> Failed:
    """The most common one."""
    return failed(FailureKind.OUT_OF_MEMORY, "out of memory: tried to get 2 GiB")


def _trial(ordinal: int) -> Trial:
    config = SPACE.feasible[ordinal * _STRIDE % len(SPACE.feasible)]
    if ordinal % 11 == 6:
        words = "generate_config() takes 1 positional argument but 2 were given"
        return trial(ordinal, None, failed(FailureKind.POLICY_ERROR, words, stage=Stage.DECIDE))
    if ordinal % 97 == 8:
        return trial(ordinal, config, failed(FailureKind.INFRASTRUCTURE, "node-7 was lost"))
    if config["micro_batch"] == 8 and not config["recompute"]:
        return trial(ordinal, config, out_of_memory())
    share = min(0.05 + ordinal / 40, 0.5)
    outcome = measured(_step_s(ordinal, config), memory_gib=_gib(config), others_share=share)
    return trial(ordinal, config, outcome)


def _step_s(ordinal: int, config: Config) -> float:
    """Slower with more tensor parallelism, more stages, recomputation and tiny micro batches."""
    parallel = 0.15 * math.log2(int(config["tp"])) + 0.1 * math.log2(int(config["pp"]))
    own = 0.2 * bool(config["recompute"]) + 0.3 / int(config["micro_batch"])
    return (1.0 + parallel + own) * (1 + ordinal % 5 / 500)


def _gib(config: Config) -> float:
    share = 0.5 if config["recompute"] else 1.0
    return 20 + 8 * share * int(config["micro_batch"])
