"""What a script reported in one launch, and what to add where something is missing."""

from collections.abc import Iterator
from dataclasses import dataclass

from evaluator.objective import may_vary_work
from evaluator.recipes.script_output import ScriptOutput, StepsReport
from evaluator.traces.model import TraceSet
from records.study import Study
from search.views.format import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCheck:
    """One thing that a script may report; `words` say what was found, or what to add."""

    name: str
    is_there: bool
    words: str


def script_checks(study: Study, output: ScriptOutput) -> Iterator[ScriptCheck]:
    """Check times, tokens, losses and memory, then the traces of all ranks."""
    report = output.report
    if isinstance(report, str):
        yield ScriptCheck(name="steps", is_there=False, words=report)
    elif report is not None:
        yield _times(study, report)
        yield _tokens(study, report)
        yield _check(
            "losses",
            f"of {format_count(len(report.losses), 'step')}" if report.losses else None,
            "trials that compute something else are not found: cclsearch.log(loss=loss)",
        )
        yield _check(
            "memory",
            f"peak of {format_count(len(report.peak_memory_bytes), 'rank')}"
            if report.peak_memory_bytes
            else None,
            "no limit on it can be set: peak_memory_bytes in steps.json",
        )
    if output.traces is not None:
        yield from _traces(output.traces)


def _check(name: str, found: str | None, missing: str) -> ScriptCheck:
    return ScriptCheck(name=name, is_there=found is not None, words=found or missing)


def _steps_of(step_count: int, rank_count: int) -> str:
    return f"{format_count(step_count, 'step')} of {format_count(rank_count, 'rank')}"


def _times(study: Study, report: StepsReport) -> ScriptCheck:
    steps = report.step_times_s
    words = _steps_of(len(steps[0]), len(steps)) if steps else None
    instead = "profiled steps are timed instead" if study.measure.profiled_steps else "none"
    missing = f"{instead}; write `for batch in cclsearch.steps(batches)` in the training loop"
    return _check("times", words, missing)


def _tokens(study: Study, report: StepsReport) -> ScriptCheck:
    asked, found = study.workload.tokens_per_step, report.tokens_per_step
    if found is not None and found != asked and not may_vary_work(study):
        words = f"{found} per step, but global_batch * sequence_length of the study is {asked}"
        return ScriptCheck(name="tokens", is_there=False, words=words)
    asks = "as the study asks" if found == asked else "compared per token"
    same = f"{found} per step, {asks}" if found is not None else None
    missing = "equal work is declared, not verified: cclsearch.log(tokens=batch.numel())"
    return _check("tokens", same, missing)


def _traces(traces: TraceSet | str) -> Iterator[ScriptCheck]:
    if isinstance(traces, str):
        yield ScriptCheck(name="traces", is_there=False, words=traces)
        return
    ranks, steps = len(traces.ranks), len(traces.common_steps)
    found = _steps_of(steps, ranks) if steps else None
    yield _check("traces", found, "no step is marked: call the profiler's step() after each")
    if ranks > 1:
        count = sum(len(trace.collectives.span) for trace in traces.ranks)
        yield _check(
            "communication",
            f"{format_count(count, 'collective')} on all ranks" if count else None,
            "the traces show no collective, so time in communication is not known",
        )
