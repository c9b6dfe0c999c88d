"""What-if questions about traces and their critical path: as rows for programs and as text."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from evaluator.whatif.links import Tier
from evaluator.whatif.path import CriticalPath, OnPath
from evaluator.whatif.questions import (
    KINDS,
    TIERS,
    Answer,
    Question,
    Unanswered,
    WhatIf,
)
from records.errors import StudyError
from records.trial import Measured
from search.traces.merge import OverlaySpan
from search.traces.open import OpenTraces
from search.views.document import Block, Cell, Paragraph, Table, TableRow, number
from search.views.format import (
    format_bandwidth,
    format_count,
    format_duration,
    format_number,
    format_percent,
    one_line,
)

NAME_CHARS: Final = 46
MOST_NAMES: Final = 10
_TIERS: Final = {Tier.SCALE_UP: "scale_up", Tier.SCALE_OUT: "scale_out", Tier.UNKNOWN: "all"}


def open_whatif(found: OpenTraces, ranks_per_node: int | None) -> WhatIf:
    """The replay of open traces. Raises StudyError where they cannot be replayed."""
    if ranks_per_node is None:
        made = found.evidence.whatif
    else:
        made = WhatIf.of(found.traces, found.matches, ranks_per_node)
    if made is None or isinstance(made, Unanswered):
        reason = made.reason if made else "there are no traces"
        raise StudyError(f"{found.name}: no replay: {reason}")
    return made


def read_question(
    scale: Sequence[str],
    latency: Sequence[str],
    slow: Sequence[str],
    *,
    no_straggler: bool,
    domain: int | None,
    nodes: int | None,
) -> Question | None:
    """The question that options ask; None where they ask none. Raises StudyError for a bad one."""
    scaled = _factors(scale, "--scale")
    links = {name: k for name, k in scaled.items() if name in TIERS or name in KINDS}
    slowed = _factors(slow, "--slow")
    wrong = [name for name in slowed if not name.isdecimal()]
    if wrong:
        raise StudyError(
            f"--slow {wrong[0]}: {wrong[0]} is no number of a rank; write --slow 2=1.2"
        )
    latencies = _factors(latency, "--latency")
    unknown = [name for name in latencies if name not in TIERS and name not in KINDS]
    if unknown:
        known = ", ".join((*TIERS, *KINDS))
        raise StudyError(f"--latency {unknown[0]}: links are called {known}")
    asked = Question(
        bandwidth=links,
        latency=latencies,
        kernels={name: k for name, k in scaled.items() if name not in links},
        ranks={int(name): 1 / k for name, k in slowed.items()},
        no_straggler=no_straggler,
        ranks_per_node=domain,
        nodes=nodes,
    )
    return None if asked == Question() else asked


def _factors(words: Sequence[str], option: str) -> dict[str, float]:
    """What each NAME=K says."""
    found = {}
    for word in words:
        name, _, text = word.rpartition("=")
        try:
            factor = float(text)
        except ValueError:
            factor = math.nan
        if not name or not 0 < factor < math.inf:
            raise StudyError(f"{option} {word}: write NAME=K with K above 0, such as scale_out=2")
        found[name] = factor
    return found


def checked_replay(found: OpenTraces) -> WhatIf:
    """The replay of open traces. Raises StudyError where it does not agree with them."""
    replayed = open_whatif(found, None)
    if (reason := replayed.disagreement) is not None:
        raise StudyError(f"{found.name}: no replay: {reason}")
    return replayed


def answered(whatif: WhatIf, question: Question) -> Answer:
    """The answer. Raises StudyError where there is none, with the reason."""
    answer = whatif.answer(question)
    if isinstance(answer, Unanswered):
        raise StudyError(f"no answer: {answer.reason}")
    return answer


def usual_questions(whatif: WhatIf) -> Mapping[str, Question]:
    """What to ask of every job, by words: twice as fast parts one by one, and no straggler."""
    tiers = [_TIERS[tier] for tier in whatif.links.fitted if tier is not Tier.UNKNOWN]
    asked = [Question(bandwidth={name: 2.0}) for name in ("communication", *tiers)]
    asked.append(Question(latency={"communication": 0.5}))
    asked.append(Question(kernels={"compute": 2.0}))
    if len(whatif.traces.ranks) > 1:
        asked.append(Question(no_straggler=True))
    return {question_words(question): question for question in asked}


def question_words(question: Question) -> str:
    """What is changed, as the end of `with`."""
    parts = [
        *(f"{name} bandwidth x {format_number(k)}" for name, k in question.bandwidth.items()),
        *(f"{name} latency x {format_number(k)}" for name, k in question.latency.items()),
        *(f"{name} speed x {format_number(k)}" for name, k in question.kernels.items()),
        *(f"rank {rank} speed x {format_number(k)}" for rank, k in question.ranks.items()),
    ]
    if question.ranks_per_node is not None:
        parts.append(f"{format_count(question.ranks_per_node, 'rank')} in a node")
    if question.nodes is not None:
        parts.append(f"{format_count(question.nodes, 'node')} and the same work for each rank")
    if question.no_straggler:
        parts.append("no straggler")
    return one_line(", ".join(parts), 200)


def whatif_facts(whatif: WhatIf, answers: Mapping[str, Answer]) -> dict[str, object]:
    """Everything for programs."""
    return {
        "measured_s": whatif.measured_s,
        "replayed_s": whatif.step_s(whatif.unchanged),
        "identity_error": whatif.identity_error,
        "unexplained_share": whatif.unexplained_share,
        "unshared_communication_share": whatif.unshared_share,
        "links": [
            {
                "tier": _TIERS[tier],
                "latency_s": None if link.latency_ns is None else link.latency_ns / 1e9,
                "bus_bytes_per_s": None if link.bytes_per_ns is None else link.bytes_per_ns * 1e9,
            }
            for tier, link in whatif.links.fitted.items()
        ],
        "answers": [
            {
                "question": words,
                "step_s": answer.predicted_s,
                "low_s": answer.low_s,
                "high_s": answer.high_s,
                "utility": answer.utility,
                "most_saved_s": answer.most_saved_s,
                "work": answer.work,
            }
            for words, answer in answers.items()
        ],
    }


def whatif_blocks(whatif: WhatIf, answers: Mapping[str, Answer]) -> list[Block]:
    """The answers for people: a table, and the one that was asked for as a sentence."""
    replayed_s = whatif.step_s(whatif.unchanged)
    first = (
        f"step: {format_duration(whatif.measured_s)} measured, {format_duration(replayed_s)} "
        f"replayed unchanged; the worst step of a rank is {format_percent(whatif.identity_error)} "
        "off"
    )
    blocks: list[Block] = [Paragraph(text=first), *map(_paragraph, _link_words(whatif))]
    if len(answers) == 1:
        ((words, answer),) = answers.items()
        return [*blocks, Paragraph(text=answer_words(words, answer))]
    rows = tuple(
        TableRow.of(
            words,
            number(answer.predicted_s, format_duration(answer.predicted_s)),
            number(answer.utility, format_percent(answer.utility)),
            _range(answer),
            _cap(answer),
        )
        for words, answer in answers.items()
    )
    headings = ("what if", "step", "saved", "between", "at most")
    return [*blocks, Table(about="", headings=headings, rows=rows)]


def _paragraph(text: str) -> Paragraph:
    return Paragraph(text=text)


def _range(answer: Answer) -> Cell:
    low, high = (1 - step_s / answer.replayed_s for step_s in (answer.high_s, answer.low_s))
    return Cell(text=f"{format_percent(low)} to {format_percent(high)}", is_number=True)


def _cap(answer: Answer) -> Cell:
    if answer.most_saved_s is None:
        return number(None)
    share = answer.most_saved_s / answer.replayed_s
    return number(share, format_percent(share))


def answer_words(words: str, answer: Answer) -> str:
    """One answer in a sentence or two."""
    saved = answer.utility
    less = f"{format_percent(abs(saved))} {'less' if saved >= 0 else 'more'}"
    text = (
        f"with {words} a step takes {format_duration(answer.predicted_s)} instead of "
        f"{format_duration(answer.replayed_s)}: {less}; between {format_duration(answer.low_s)} "
        f"and {format_duration(answer.high_s)} by what the traces leave open"
    )
    if answer.work != 1:
        likely, low, high = (
            f"{format_number(answer.work * answer.replayed_s / step_s)}x"
            for step_s in (answer.predicted_s, answer.high_s, answer.low_s)
        )
        return (
            f"{text}; it does {format_number(answer.work)}x the work, so throughput is {likely} "
            f"({low} to {high})"
        )
    if answer.most_saved_s is None:
        return text
    share = format_percent(answer.most_saved_s / answer.replayed_s)
    return f"{text}; no more than {share} can be saved, as the critical path holds no more of it"


def _link_words(whatif: WhatIf) -> Iterator[str]:
    for tier, link in whatif.links.fitted.items():
        if link.bytes_per_ns is None:
            continue
        name = "links" if tier is Tier.UNKNOWN else _TIERS[tier]
        latency = "unknown, as messages are of about one size"
        if link.latency_ns is not None:
            latency = format_duration(link.latency_ns / 1e9)
        speed = format_bandwidth(link.bytes_per_ns * 1e9)
        yield f"{name}: bus bandwidth {speed}, latency {latency}"


def whatif_caveats(whatif: WhatIf) -> list[str]:
    """What the answers leave out."""
    found = []
    if whatif.unshared_share > 0.01:
        found.append(
            f"{format_percent(whatif.unshared_share)} of communication is in the trace of one rank "
            "only and counts with the waiting in it: its savings are upper bounds"
        )
    if whatif.unexplained_share > 0.01:
        found.append(
            f"{format_percent(whatif.unexplained_share)} of the step is waiting that nothing "
            "recorded explains; it is taken to stay as it is"
        )
    return found


def path_facts(whatif: WhatIf, path: CriticalPath) -> dict[str, object]:
    """The critical path for programs: seconds per step by kind, and by the name of work."""
    count = max(whatif.step_numbers.size, 1)
    return {
        "step_s": whatif.step_s(whatif.unchanged),
        "identity_error": whatif.identity_error,
        "path_s": {kind.value: total_s / count for kind, total_s in path.seconds().items()},
        "works": [
            {"name": name, "kind": kind.value, "per_step_s": total_s / count}
            for (name, kind), total_s in _by_name(whatif, path)
        ],
    }


def _by_name(whatif: WhatIf, path: CriticalPath) -> list[tuple[tuple[str, OnPath], float]]:
    """Seconds of the path by the name of work, the longest first."""
    works, total = whatif.graph.works, Counter[tuple[str, OnPath]]()
    for piece in path.pieces:
        if piece.work is not None:
            name = works.names[int(works.name[piece.work])]
            total[name, piece.kind] += piece.end_ns - piece.start_ns
    return [(key, took_ns / 1e9) for key, took_ns in total.most_common()]


def path_blocks(whatif: WhatIf, path: CriticalPath) -> list[Block]:
    """The critical path for people."""
    count = max(whatif.step_numbers.size, 1)
    seconds = path.seconds()
    whole_s = sum(seconds.values()) or 1.0
    kinds = Table(
        about="",
        headings=("on the critical path", "per step", "share"),
        rows=tuple(
            TableRow.of(
                kind.value,
                number(total_s, format_duration(total_s / count)),
                number(total_s, format_percent(total_s / whole_s)),
            )
            for kind, total_s in sorted(seconds.items(), key=lambda item: -item[1])
            if total_s
        ),
    )
    works = _by_name(whatif, path)
    names = Table(
        about="",
        headings=("work on it", "per step", "share"),
        rows=tuple(
            TableRow.of(
                one_line(name, NAME_CHARS),
                number(total_s, format_duration(total_s / count)),
                number(total_s, format_percent(total_s / whole_s)),
            )
            for (name, _), total_s in works[:MOST_NAMES]
        ),
    )
    return [kinds, names]


def overlay(whatif: WhatIf, path: CriticalPath) -> Sequence[OverlaySpan]:
    """The work on the critical path, as it was recorded, each on the track of its rank."""
    works, ranks = whatif.graph.works, whatif.traces.ranks
    zero_ns = min(int(trace.spans.start_ns[0]) for trace in ranks if trace.has_work)
    return [
        OverlaySpan(
            name=works.names[int(works.name[piece.work])],
            track=f"rank {ranks[piece.rank].rank}",
            start_ns=zero_ns + int(works.start_ns[piece.work]),
            end_ns=zero_ns + int(works.end_ns[piece.work]),
        )
        for piece in path.pieces
        if piece.work is not None
    ]


ANY_LINKS: Final = "utility_communication"
FASTER: Final[Mapping[str, str]] = {
    ANY_LINKS: "all links of twice the bandwidth",
    "utility_scale_up_bandwidth": "links within nodes of twice the bandwidth",
    "utility_scale_out_bandwidth": "links between nodes of twice the bandwidth",
    "utility_scale_up_domain": "nodes of twice as many ranks",
    "utility_compute": "compute kernels of half the duration",
    "utility_no_straggler": "no straggler",
}
"""What the metrics of a replay change."""


def saved_table(measured: Measured) -> Table | None:
    """What changes would save, most first, by recorded metrics; None where there is no replay."""
    saved = {metric.name: metric.value for metric in measured.metrics if metric.name in FASTER}
    if not saved:
        return None
    rows = (
        TableRow.of(FASTER[name], number(saved[name], format_percent(saved[name])))
        for name in sorted(saved, key=lambda name: -saved[name])
    )
    about = "Share of the step that would be saved, by a replay of the traces"
    return Table(about=about, headings=("with", "saved"), rows=tuple(rows))
