"""Report sections about the study: its definition, knobs, best policy, how to reproduce it."""

from collections.abc import Iterator, Sequence
from difflib import unified_diff

from evaluator.launchers.cluster.nodes import topology_words
from evaluator.objective import Scoring
from policies.space import Knob, Space
from records.errors import StudyError
from records.expression import format_bytes
from records.machine import NodeRecord
from records.study import Budget, Environment, Study
from records.trial import Measured, Policy
from records.workload import Workload
from search.report.data import ReportData
from search.report.explored import draw_knobs
from search.views.document import (
    Block,
    Chart,
    Code,
    Diff,
    Facts,
    Section,
    Table,
    TableRow,
    code,
    left_out_words,
)
from search.views.format import (
    format_bandwidth,
    format_count,
    format_duration,
    one_line,
    ordinals_words,
    work_words,
)
from search.views.machine import launch_facts, machine_line, versions_words
from search.views.trial import files_table

CHOICES_SHOWN = 24
WORDS_CHARS = 600


def study_section(data: ReportData) -> Section:
    """Workload, machine, space, objective, limits and budget."""
    study, row, space = data.study, data.record.row, data.space
    cards = (("inferred from the card", one_line(x, WORDS_CHARS)) for x in study.inferences)
    facts = Facts(
        lines=(
            ("study", f"{study.name} ({row.id}), {data.status}, created {row.created_at}"),
            *work_facts(study),
            *_nodes(data.record.nodes),
            *cards,
            ("space", _space_words(study, space)),
            *question_facts(study, row.strategy, data.scoring),
        )
    )
    return Section(
        name="study",
        heading="Study",
        lead=f"Study {data.study_id}: find the best configuration of this workload on this machine "
        f"by {study.objective.expression}.",
        blocks=(facts,) if space is None else (facts, _knobs(space)),
    )


def outcome_words(data: ReportData) -> str:
    """The result in a sentence or two."""
    best, summary = data.best, data.summary
    if best is None or data.finding.result is None:
        return f"Best: {', '.join(summary.get('best', ('none',)))}. {_state(data)}"
    objective = data.study.objective.expression
    value = ", ".join(summary.get(objective, ()))
    against = ", ".join(summary.get("against the seed", ("not compared with the seed",)))
    ties = [n for n in data.finding.ties if n not in (0, best.ordinal)]
    tied = f" Tied with it: {ordinals_words(ties)}." if ties else ""
    best_words = "is the best" if data.is_finished else "leads so far"
    return (
        f"Trial {best.ordinal} {best_words}: {one_line(objective, 120)} {value}. "
        f"Against the seed: {against}.{tied} {_state(data)}"
    )


def _state(data: ReportData) -> str:
    trials = format_count(len(data.history), "trial")
    launches = format_count(data.record.launch_count, "launch", "launches")
    return f"{trials}, {launches}; {data.finding.stop_reason}."


def work_facts(study: Study) -> Iterator[tuple[str, str]]:
    """Workload and machine, by label."""
    yield from _workload(study.workload)
    yield from _machine(study.environment)
    for context in study.contexts:
        held_out = ", held out until the end" if context.held_out else ""
        yield "also in context", f"{context.name}: {_short(context.workload)}{held_out}"


def question_facts(study: Study, strategy: str, scoring: Scoring) -> Iterator[tuple[str, str]]:
    """Objectives, limits, budget and strategy, by label."""
    for one in scoring.objectives:
        better = "lower" if one.lower_is_better else "higher"
        unit = f" in {one.unit}" if one.unit else ""
        yield "objective", f"{one.expression.text}{unit}, {better} is better"
    yield from (("limit", limit) for limit in study.limits)
    yield "budget", _budget_words(study.budget)
    parallel = f", up to {study.parallel} trials in parallel" if study.parallel > 1 else ""
    model = f", model {study.llm.model}" if strategy in ("llm", "hybrid") else ""
    yield "strategy", f"{strategy}{model}{parallel}, random seed {study.random_seed}"
    origin = study.origin
    if origin is not None:
        framework = "" if origin.framework is None else f", framework {origin.framework}"
        yield "imported from", f"{origin.source} ({origin.kind}){framework}"
        yield from (("assumed", one_line(note, WORDS_CHARS)) for note in origin.notes)


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
    memory = "" if machine.memory_bytes is None else f", {format_bytes(machine.memory_bytes)} each"
    price = machine.accelerator_usd_per_hour
    paid = "" if price is None else f", {price:g} USD per hour each"
    yield (
        "machine",
        f"{machine.name}: up to {machine.world_size} ranks on {machine.accelerator} "
        f"({machine.device}), {machine.ranks_per_node} per node{memory}{paid}",
    )
    for name, link in (("within nodes", machine.scale_up), ("between nodes", machine.scale_out)):
        if link is not None:
            latency = format_duration(link.latency_s)
            after = "" if link.latency_s is None else f", {latency} latency"
            yield name, f"{format_bandwidth(link.bandwidth_bytes_per_s)}{after}"
    if machine.software:
        listed = ", ".join(f"{name} {version}" for name, version in machine.software.items())
        yield "software", one_line(listed, WORDS_CHARS)


def _nodes(nodes: Sequence[NodeRecord]) -> Iterator[tuple[str, str]]:
    """Yield the nodes of a cluster that the search ran on last, and how they are connected."""
    topology = topology_words(nodes)
    if topology is not None:
        names = ", ".join(node.name for node in nodes if node.used)
        yield "nodes", one_line(f"{topology}: {names}", WORDS_CHARS)


def _space_words(study: Study, space: Space | None) -> str:
    if space is None:
        return f"{len(study.space.dimensions)} knobs"
    rules = f"{len(space.knobs)} knobs, {space.size} points"
    try:
        return f"{rules}, {len(space.feasible)} satisfy the constraints"
    except StudyError:
        return f"{rules} before constraints"


def _budget_words(budget: Budget) -> str:
    limits = (
        (budget.patience, "stops after {} measured trials without improvement"),
        (budget.max_wall_s, "at most {:g} s"),
        (budget.max_node_hours, "at most {:g} node-hours"),
        (budget.max_tokens, "{} model tokens"),
        (budget.max_cost_usd, "{:g} USD for the model"),
    )
    return ", ".join(
        (
            f"{budget.trials} trials in {budget.launch_limit} launches",
            *(words.format(limit) for limit, words in limits if limit is not None),
        )
    )


def _knobs(space: Space) -> Table:
    return Table(
        about="Knobs",
        headings=("knob", "choices", "effective when", "description"),
        rows=tuple(
            TableRow.of(
                code(knob.name),
                _choices_words(knob),
                code("" if knob.when is None else knob.when.text),
                knob.dimension.description,
            )
            for knob in space.knobs
        ),
    ).dense


def _choices_words(knob: Knob) -> str:
    shown = ", ".join(map(str, knob.choices[:CHOICES_SHOWN]))
    more = len(knob.choices) - CHOICES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def knobs_section(data: ReportData) -> Section | None:
    """Every configuration as a line; None where nothing was varied."""
    found, about = data.knobs, "Parallel coordinates; the table of all trials shows the same data"
    drawn = draw_knobs(found, "#trial-")
    if drawn is None:
        return None
    return Section(
        name="knobs",
        heading="Configurations tried",
        lead="One line per configuration, through its settings to its result. Dashed lines "
        "failed; a line below an axis does not have that knob."
        + left_out_words(found.shown, found.total),
        blocks=(Chart(drawn=drawn, about=about),),
    )


FILES_SHOWN = 40
COMMAND_CHARS = 2000


def reproduce_section(data: ReportData) -> Section:
    """Commands that show more, repeat the best or share the study."""
    rows = (TableRow.of(to, code(run + data.store_flag)) for to, run in _commands(data))
    blocks: list[Block] = [Table(about="Commands", headings=("to", "run"), rows=tuple(rows))]
    if facts := (*_provenance(data), *_machines(data)):
        blocks.append(Facts(lines=facts))
    best = data.best
    if best is not None and best.outcome.artifacts:
        artifacts = best.outcome.artifacts
        left_out = len(artifacts) - FILES_SHOWN
        more = f", {left_out} more are stored" if left_out > 0 else ""
        blocks.append(files_table(artifacts[:FILES_SHOWN], f"Files of the best trial{more}"))
    return Section(
        name="reproduce",
        heading="How to reproduce it",
        lead="Commands for anyone who has the store with these records.",
        blocks=tuple(blocks),
    )


def _commands(data: ReportData) -> Iterator[tuple[str, str]]:
    study_id, best = data.study_id, data.best
    is_ours = not data.study.searched_elsewhere
    yield "list all trials", f"cclsearch show {study_id}"
    if best is not None:
        yield "use the best configuration", f"cclsearch best {study_id} --format args"
        yield "show the best trial", f"cclsearch trial show {study_id} {best.ordinal}"
    if is_ours:
        yield "replay the recorded search", f"cclsearch replay {study_id}"
    if is_ours and best is not None:
        script = f"cclsearch trial script {study_id} {best.ordinal} -o best.sh"
        yield "launch the best manually", script
        yield "measure the best again", f"cclsearch replay {study_id} --mode measure"
    if is_ours and not data.is_finished and data.status != "running":
        yield "resume the search", f"cclsearch resume {study_id}"
    bundle = f"{study_id}.cclsearch"
    yield "share the study", f"cclsearch export {study_id} --format bundle -o {bundle}"


def _machines(data: ReportData) -> Iterator[tuple[str, str]]:
    for digest, machine in data.machines.items():
        lost = f"its description {digest} is no longer stored"
        yield "launched on", lost if machine is None else machine_line(machine)


def _provenance(data: ReportData) -> Iterator[tuple[str, str]]:
    best = data.best
    if best is not None:
        yield "policy of the best", best.policy.digest
        if best.config is not None:
            yield "configuration of the best", best.config.digest
        if isinstance(best.outcome, Measured):
            measurement = best.outcome.measurement
            if measurement.torch_version is not None:
                yield "torch", f"{measurement.torch_version} on {measurement.device}"
            versions = versions_words(measurement)
            if versions:
                yield "versions of the job", versions
        if best.outcome.launched is not None:
            facts = launch_facts(best.outcome.launched, None)
            yield from (
                (label, one_line(words, COMMAND_CHARS))
                for label, words in facts
                if label in ("command", "environment")
            )
    if data.study.origin is not None:
        read = data.study.origin.digests.items()
        yield from ((f"read from {name}", digest) for name, digest in read)
    if data.study.command is not None:
        scripts = data.study.command.file_digests.items()
        yield from ((f"script {name}", digest) for name, digest in scripts)


RATIONALE_CHARS = 2000
LINEAGE_SHOWN = 12
SOURCE_CHARS = 60_000
CUT = "\n[... the rest is stored ...]"


def policy_section(data: ReportData) -> Section | None:
    """Program, reason, lineage and difference to the seed; None without a best trial."""
    best = data.best
    if best is None:
        return None
    found = best.policy
    facts = [
        ("written by", found.author),
        ("rationale", one_line(found.rationale, RATIONALE_CHARS) or "none"),
        ("digest", found.digest),
    ]
    lineage = _lineage(data, found)
    if lineage:
        facts.append(("derived from", lineage))
    program = Code(text=_cut(found.source), language="python")
    blocks: list[Block] = [Facts(lines=tuple(facts)), program]
    lead = f"The program that chose trial {best.ordinal}."
    seed = data.seed
    if seed is not None and seed.policy.digest != found.digest:
        blocks.append(Diff(lines=tuple(_changes(seed.policy, found, best.ordinal))))
        lead = f"The program that chose trial {best.ordinal}, and its diff to the seed's program."
    return Section(name="policy", heading="The best policy", lead=lead, blocks=tuple(blocks))


def _changes(seed: Policy, found: Policy, ordinal: int) -> list[str]:
    sides = _cut(seed.source).splitlines(), _cut(found.source).splitlines()
    return list(unified_diff(*sides, "seed", f"trial {ordinal}", lineterm=""))


def _cut(source: str) -> str:
    return source if len(source) <= SOURCE_CHARS else source[:SOURCE_CHARS] + CUT


def _lineage(data: ReportData, found: Policy) -> str:
    """The policies that it was derived from, the nearest first, by the trials that had them."""
    ordinals = {trial.policy.digest: trial for trial in reversed(data.history.trials)}
    chain: list[str] = []
    parent, known = found.parent, {found.digest}
    while parent is not None and parent not in known and len(chain) < LINEAGE_SHOWN:
        trial = ordinals.get(parent)
        if trial is None:
            chain.append(f"a policy that is not stored ({parent[:12]})")
            break
        chain.append(f"trial {trial.ordinal} by {trial.policy.author}")
        known.add(parent)
        parent = trial.policy.parent
    return ", then ".join(chain)
