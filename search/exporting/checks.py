"""What a published entry must satisfy: rules that programs can decide, each with what is missing.

The rules are those of the CCL-Bench paper: a valid schema, a complete environment, enough steps,
the plan that ran; and ours: the same work in every trial, and traces of every rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from records.study import MIN_TIMED_STEPS, Study
from records.trial import Measured, Trial
from search.card_file import is_number
from search.exporting.template import (
    BANDWIDTHS,
    DEGREES,
    PER_NODE,
    PLAN,
    TEMPLATE,
    TOTAL,
    is_untold,
    looked_up,
    shape_fault,
    unknown_paths,
)

LEAST_OUTPUT_LENGTH = 128
SHOWN_EXTRA = 8
_ENVIRONMENT = (
    "workload.hardware.",
    "Model-executor.framework",
    "Model-executor.communication_library",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule and what breaks it, in words; nothing where it is kept."""

    name: str
    faults: tuple[str, ...] = ()


def card_checks(card: Mapping[str, object]) -> tuple[Check, ...]:
    """The rules that a card alone can break."""
    return (_schema(card), _environment(card), _protocol(card), _plan(card))


def trial_checks(study: Study, trial: Trial, trace_count: int) -> tuple[Check, ...]:
    """The rules that take the trial itself."""
    if not isinstance(trial.outcome, Measured):
        return (Check(name="result", faults=("the trial failed; choose one with --trial",)),)
    return (
        _steps(trial.outcome),
        _tokens(study, trial.outcome),
        _launch(trial.outcome),
        traces_check(trace_count, len(trial.outcome.measurement.step_times_s)),
    )


def traces_check(trace_count: int, rank_count: int) -> Check:
    """Whether there is a trace of every rank."""
    if trace_count >= rank_count:
        return Check(name="traces")
    return Check(
        name="traces",
        faults=(
            f"{trace_count} traces of {rank_count} ranks; search with [measure] "
            "profiled_steps above 0, and leave --no-traces out",
        ),
    )


def _schema(card: Mapping[str, object]) -> Check:
    faults: list[str] = []
    for field in TEMPLATE:
        value = looked_up(card, field.path)
        if is_untold(field, value):
            if field.needed and not _is_environment(field.path):
                faults.append(_missing(field.path))
        elif why := shape_fault(field, value):
            faults.append(f"{field.path} {why}")
    extra = list(unknown_paths(card))
    if extra:
        more = f" and {len(extra) - SHOWN_EXTRA} more" if len(extra) > SHOWN_EXTRA else ""
        faults.append(f"not in the template: {', '.join(extra[:SHOWN_EXTRA])}{more}")
    return Check(name="schema", faults=tuple(faults))


def _environment(card: Mapping[str, object]) -> Check:
    untold = [
        field.path
        for field in TEMPLATE
        if field.needed and _is_environment(field.path)
        if is_untold(field, looked_up(card, field.path))
    ]
    return Check(name="environment", faults=(*map(_missing, untold), *_scale_out_faults(card)))


def _scale_out_faults(card: Mapping[str, object]) -> tuple[str, ...]:
    """A job on several nodes needs a bandwidth between them."""
    bandwidths, total, per_node = (looked_up(card, path) for path in (BANDWIDTHS, TOTAL, PER_NODE))
    if not isinstance(bandwidths, Sequence) or len(bandwidths) != 2:
        return ()
    if is_number(total) and is_number(per_node) and total <= per_node:
        return ()
    return () if is_number(bandwidths[0]) else (_missing(f"{BANDWIDTHS}, scale-out"),)


def _protocol(card: Mapping[str, object]) -> Check:
    phase = looked_up(card, "workload.model.phase")
    if phase == "training":
        count = looked_up(card, "workload.model.iteration")
        if is_number(count) and count < MIN_TIMED_STEPS:
            return Check(
                name="protocol",
                faults=(f"{count} iterations; training takes at least {MIN_TIMED_STEPS}",),
            )
        return Check(name="protocol")
    length = looked_up(card, "workload.data.output_len")
    if is_number(length) and length >= LEAST_OUTPUT_LENGTH:
        return Check(name="protocol")
    return Check(
        name="protocol",
        faults=(
            f"output_len is {str(length)[:20]}; {str(phase)[:20]} takes answers of at least "
            f"{LEAST_OUTPUT_LENGTH} tokens",
        ),
    )


def _plan(card: Mapping[str, object]) -> Check:
    degrees = [looked_up(card, f"{PLAN}{name}") for name in DEGREES]
    total = looked_up(card, TOTAL)
    told = [degree for degree in degrees if isinstance(degree, int)]
    if len(told) < len(DEGREES) or not isinstance(total, int):
        return Check(name="plan", faults=("the degrees or total_count are not all told",))
    if prod(told) == total:
        return Check(name="plan")
    words = " * ".join(f"{name} {degree}" for name, degree in zip(DEGREES, told, strict=True))
    return Check(
        name="plan", faults=(f"{words} is {prod(told)}, and {total} devices are said to be used",)
    )


def _steps(measured: Measured) -> Check:
    sample = measured.measurement
    faults: list[str] = []
    if sample.imported:
        faults.append("one number on record elsewhere, without samples; launch it again here")
    elif len(sample.slowest_rank_s) < MIN_TIMED_STEPS:
        faults.append(
            f"{len(sample.slowest_rank_s)} timed steps; at least {MIN_TIMED_STEPS} are needed "
            "([measure] timed_steps)"
        )
    elif not any(sample.warmup_times_s):
        faults.append("no warm-up step before those timed ([measure] warmup_steps)")
    if sample.profiled:
        faults.append("timed in profiled steps; have the script tell its step times")
    if sample.stopped == "slower":
        faults.append("stopped early, as clearly slower than the best; choose another --trial")
    return Check(name="steps", faults=tuple(faults))


def _tokens(study: Study, measured: Measured) -> Check:
    sample, asked = measured.measurement, study.workload.tokens_per_step
    if sample.tokens_per_step != asked:
        words = f"{sample.tokens_per_step} tokens per step were processed, {asked} were asked"
        return Check(name="tokens", faults=(words,))
    if not sample.tokens_verified:
        words = "tokens per step were declared, not told by the job; have its script tell them"
        return Check(name="tokens", faults=(words,))
    return Check(name="tokens")


def _launch(measured: Measured) -> Check:
    if measured.launched is not None:
        return Check(name="launch")
    words = "how it was launched is not on record, so there is no launch script; launch it again"
    return Check(name="launch", faults=(words,))


def _is_environment(path: str) -> bool:
    return path.startswith(_ENVIRONMENT) or path == "Model-executor.protocol_selection"


def _missing(path: str) -> str:
    return f"{path} is missing; give it with --set '{path.split(',')[0]}=...'"
