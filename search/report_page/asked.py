"""What a study was asked, and what came out, in one sentence."""

from collections.abc import Iterator

from evaluator.objective import Scoring
from policies.knob import Knob
from policies.space import Space
from records.errors import StudyError
from records.origin import Origin
from records.rule import size_words
from records.study import Budget, Environment, Link, Study
from records.workload import Workload
from search.known_words import ordinals_words
from search.report_page.blocks import Block, Cell, Facts, Row, Section, Table
from search.report_page.seen import Seen
from search.words.quantities import duration, many, rate
from search.words.trial import one_line, work_words

CHOICES_SHOWN = 24
WORDS_CHARS = 600


def asked(seen: Seen) -> Section:
    """Workload, machine, space, objective, limits and budget."""
    study = seen.study
    blocks: list[Block] = [Facts(lines=tuple(_facts(seen)))]
    if seen.space is not None:
        blocks.append(_knobs(seen.space))
    return Section(
        name="asked",
        heading="What was asked",
        lead=f"Study {seen.study_id}: which configuration is best for this work on this machine, "
        f"by {study.objective.expression}.",
        blocks=tuple(blocks),
    )


def outcome_words(seen: Seen) -> str:
    """What came out, in a sentence or two."""
    best, said = seen.best, seen.said
    if best is None or seen.finding.result is None:
        return f"Best: {', '.join(said.get('best', ('none',)))}. {_state(seen)}"
    objective = seen.study.objective.expression
    value = ", ".join(said.get(objective, ()))
    against = ", ".join(said.get("against the seed", ("not compared with the seed",)))
    ties = [n for n in seen.finding.ties if n not in (0, best.ordinal)]
    tied = f" Not told apart from it: {ordinals_words(ties)}." if ties else ""
    best_words = "is the best" if seen.is_finished else "leads so far"
    return (
        f"Trial {best.ordinal} {best_words}: {one_line(objective, 120)} {value}. "
        f"Against the seed: {against}.{tied} {_state(seen)}"
    )


def _state(seen: Seen) -> str:
    trials = many(len(seen.history), "trial")
    launches = many(seen.record.launch_count, "launch", "launches")
    faults = f" The record shows {many(len(seen.faults), 'fault')}, see below."
    return f"{trials}, {launches}; {seen.finding.stop_reason}.{faults if seen.faults else ''}"


def _facts(seen: Seen) -> Iterator[tuple[str, str]]:
    study, row = seen.study, seen.record.row
    yield "study", f"{study.name} ({row.id}), {seen.status}, on record since {row.created_at}"
    yield from work_facts(study)
    for sentence in study.inferences:
        yield "concluded from the card", one_line(sentence, WORDS_CHARS)
    yield "space", _space_words(seen)
    yield from question_facts(study, row.strategy, seen.scoring)


def work_facts(study: Study) -> Iterator[tuple[str, str]]:
    """What work is done on which machine, by label."""
    yield from _workload(study.workload)
    yield from _machine(study.environment)
    for context in study.contexts:
        held_out = ", held out until the end" if context.held_out else ""
        yield "also in context", f"{context.name}: {_short(context.workload)}{held_out}"


def question_facts(study: Study, strategy: str, scoring: Scoring) -> Iterator[tuple[str, str]]:
    """What is asked about it, and how it is searched, by label."""
    for one in scoring.objectives:
        better = "lower" if one.lower_is_better else "higher"
        unit = f" in {one.unit}" if one.unit else ""
        yield "objective", f"{one.expression.text}{unit}, {better} is better"
    for limit in study.limits:
        yield "limit", limit
    yield "budget", _budget_words(study.budget)
    yield "strategy", _strategy_words(study, strategy)
    if study.origin is not None:
        yield from _origin(study.origin)


def _workload(work: Workload) -> Iterator[tuple[str, str]]:
    sizes = [
        ("layers", work.layer_count),
        ("hidden size", work.hidden_size),
        ("heads", work.head_count),
        ("experts", work.expert_count),
        ("parameters", work.parameter_count),
        ("vocabulary", work.vocab_size),
    ]
    known = ", ".join(f"{count} {name}" for name, count in sizes if count is not None)
    yield "workload", f"{_short(work)}{f'; {known}' if known else ''}"
    yield "each step", one_line(work_words(work), WORDS_CHARS)


def _short(work: Workload) -> str:
    model = f" of {work.model}" if work.model is not None else ""
    return (
        f"{work.name}: {work.phase}{model} in {work.precision}, global batch {work.global_batch}, "
        f"sequences of {work.sequence_length}"
    )


def _machine(machine: Environment) -> Iterator[tuple[str, str]]:
    memory = "" if machine.memory_bytes is None else f", {size_words(machine.memory_bytes)} each"
    price = machine.accelerator_usd_per_hour
    paid = "" if price is None else f", {price:g} USD an hour each"
    yield (
        "machine",
        f"{machine.name}: up to {machine.world_size} ranks on {machine.accelerator} "
        f"({machine.device}), {machine.ranks_per_node} to a node{memory}{paid}",
    )
    for name, link in (("within nodes", machine.scale_up), ("between nodes", machine.scale_out)):
        if link is not None:
            yield name, _link_words(link)
    if machine.software:
        listed = ", ".join(f"{name} {version}" for name, version in machine.software.items())
        yield "software", one_line(listed, WORDS_CHARS)


def _link_words(link: Link) -> str:
    latency = "" if link.latency_s is None else f", {duration(link.latency_s)} latency"
    return f"{rate(link.bandwidth_bytes_per_s)}{latency}"


def _space_words(seen: Seen) -> str:
    space = seen.space
    if space is None:
        return f"{len(seen.study.space.dimensions)} knobs"
    rules = f"{len(space.knobs)} knobs, {space.size} points"
    try:
        return f"{rules}, {len(space.feasible)} satisfy the constraints"
    except StudyError:
        return f"{rules} before constraints"


def _budget_words(budget: Budget) -> str:
    wall, tokens, money = budget.max_wall_s, budget.max_tokens, budget.max_cost_usd
    return ", ".join(
        [
            f"{budget.trials} trials in {budget.launch_limit} launches",
            f"ends after {budget.patience} without improvement",
            *([] if wall is None else [f"{wall:g} s"]),
            *([] if tokens is None else [f"{tokens} tokens of a model"]),
            *([] if money is None else [f"{money:g} USD for a model"]),
        ]
    )


def _strategy_words(study: Study, strategy: str) -> str:
    parallel = f", up to {study.parallel} trials at once" if study.parallel > 1 else ""
    model = f", model {study.llm.model}" if strategy in ("llm", "hybrid") else ""
    return f"{strategy}{model}{parallel}, random seed {study.random_seed}"


def _origin(origin: Origin) -> Iterator[tuple[str, str]]:
    framework = "" if origin.framework is None else f", framework {origin.framework}"
    yield "recorded elsewhere", f"{origin.source} ({origin.kind}){framework}"
    if origin.dead_knobs:
        yield "knobs without effect", ", ".join(origin.dead_knobs)
    for note in origin.notes:
        yield "taken for granted", one_line(note, WORDS_CHARS)


def _knobs(space: Space) -> Table:
    return Table(
        about="What could be set",
        headings=("knob", "choices", "has an effect when", "what it does"),
        rows=tuple(map(_knob, space.knobs)),
    ).dense


def _knob(knob: Knob) -> Row:
    shown = ", ".join(str(choice) for choice in knob.choices[:CHOICES_SHOWN])
    more = len(knob.choices) - CHOICES_SHOWN
    cells = (
        Cell(text=knob.name, is_code=True),
        Cell(text=f"{shown} and {more} more" if more > 0 else shown),
        Cell(text="" if knob.when is None else knob.when.text, is_code=True),
        Cell(text=knob.dimension.description),
    )
    return Row(cells=cells)
