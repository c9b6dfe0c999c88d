"""`replay --mode policy`: prints what the policies of a study decide elsewhere."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from records.errors import StudyError
from records.study import Study
from records.trial import Config, Failed, Trial
from search.card_reader import Given
from search.commands.options import chosen_study
from search.finding import leader_of
from search.policy_check import varied_values
from search.reading import recorded
from search.replay.elsewhere import Answer, Kind, PolicyElsewhere, as_given, policies_elsewhere
from search.replay.source import SEED
from search.terminal import Terminal
from search.words.config import difference
from search.words.quantities import duration, size
from search.words.trial import NO_CONFIG, one_line

FAULT_CHARS = 300
KINDS = {
    Kind.ADAPTS: "decide by where they are",
    Kind.FIXED: "decide the same everywhere",
    Kind.FAILS: "give no valid configuration somewhere",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Which other workload or environment the policies are asked for; all as options give it."""

    config: Path | None
    card: Path | None
    tuning: Path | None
    given: Given
    command: Path | None
    vary: tuple[str, ...]

    def of(self, study: Study) -> Study:
        """The study on record with these laid over it."""
        return chosen_study(self.config, self.card, self.tuning, self.given, self.command, study)


def print_policies_again(
    study_id: str, which: str, elsewhere: Elsewhere, store: Path | None, *, as_json: bool
) -> bool:
    """Ask the policies of a study elsewhere; gives whether all are valid everywhere."""
    varied = varied_values(elsewhere.vary)
    with recorded(store) as records:
        row = records.find(study_id)
        history = records.history(row.id)
        best = leader_of(row, records) if which == "best" else None
        trials = _chosen(which, history.trials, best, row.id)
    study = elsewhere.of(as_given(row.study))
    console = Terminal(stderr=True)
    with console.status("asking policies") as line:
        found = policies_elsewhere(
            trials, study, varied, lambda count: line.update(f"policies asked: {count}")
        )
    if as_json:
        typer.echo(json.dumps(_document(row.id, found)))
    else:
        typer.echo(f"study {row.id}: {len(found)} policies; nothing was launched")
        for each in found:
            _print(each)
        _print_summary(found)
    return all(each.kind is not Kind.FAILS for each in found)


def _chosen(
    which: str, trials: Sequence[Trial], best: Trial | None, study_id: str
) -> Sequence[Trial]:
    if which == "all" and trials:
        return trials
    ordinal = SEED if which == "seed" else int(which) if which.isdecimal() else None
    found = [best] if best is not None else [t for t in trials if t.ordinal == ordinal]
    if not found:
        raise StudyError(
            f"study {study_id} has no trial {which!r}; write best, seed, all or the number of a "
            f"trial, see `cclsearch show {study_id}`"
        )
    return found


def _print(each: PolicyElsewhere) -> None:
    ordinals = ", ".join(map(str, each.ordinals))
    trials = f"trial{'s' if len(each.ordinals) > 1 else ''} {ordinals}"
    typer.echo(f"{trials}, by {one_line(each.policy.author, 40)}: {each.kind}")
    typer.echo(f"  on record: {each.recorded or NO_CONFIG}")
    for answer in each.answers:
        held_out = " (held out)" if answer.held_out else ""
        typer.echo(f"  {answer.place}{held_out}: {_words(answer, each.recorded)}")


def _words(answer: Answer, recorded_config: Config | None) -> str:
    """What was decided, told by what differs from the record, with what is estimated of it."""
    given = answer.answer
    if isinstance(given, Failed):
        return f"none, {one_line(str(given), FAULT_CHARS)}"
    told = str(given) if recorded_config is None else difference(given, recorded_config)
    estimates = []
    if answer.step_s is not None:
        estimates.append(f"step {duration(answer.step_s)}")
    if answer.memory_bytes is not None:
        estimates.append(f"memory of a rank {size(answer.memory_bytes)}")
    return f"{told} (estimated: {', '.join(estimates)})" if estimates else told


def _print_summary(found: Sequence[PolicyElsewhere]) -> None:
    counts = Counter(each.kind for each in found)
    for kind, words in KINDS.items():
        typer.echo(f"{counts[kind]} of {len(found)} {words}")
    for place, order in _ranks(found).items():
        typer.echo(f"fastest by estimate at {place}: trial {', '.join(map(str, order[:3]))}")


def _ranks(found: Sequence[PolicyElsewhere]) -> dict[str, list[int]]:
    """By place, the first trials of the policies in the order of what is estimated of them."""
    steps: dict[str, list[tuple[float, int]]] = {}
    for each in found:
        for answer in each.answers:
            if answer.step_s is not None:
                steps.setdefault(answer.place, []).append((answer.step_s, each.ordinals[0]))
    return {place: [ordinal for _, ordinal in sorted(known)] for place, known in steps.items()}


def _document(study_id: str, found: Sequence[PolicyElsewhere]) -> dict[str, object]:
    ranks = _ranks(found)
    counts = Counter(each.kind.value for each in found)
    return {
        "study_id": study_id,
        "mode": "policy",
        **{kind.value: counts[kind.value] for kind in Kind},
        "policies": [
            {
                "trials": list(each.ordinals),
                "author": each.policy.author,
                "kind": each.kind.value,
                "recorded": None if each.recorded is None else dict(each.recorded.values),
                "places": [_answer_facts(answer, each, ranks) for answer in each.answers],
            }
            for each in found
        ],
    }


def _answer_facts(
    answer: Answer, each: PolicyElsewhere, ranks: dict[str, list[int]]
) -> dict[str, object]:
    given = answer.answer
    rank = None
    if answer.step_s is not None:
        rank = ranks[answer.place].index(each.ordinals[0]) + 1
    return {
        "place": answer.place,
        "held_out": answer.held_out,
        "config": dict(given.values) if isinstance(given, Config) else None,
        "fault": str(given) if isinstance(given, Failed) else None,
        "same_as_recorded": given == each.recorded,
        "estimated_step_s": answer.step_s,
        "estimated_rank": rank,
        "estimated_memory_bytes": answer.memory_bytes,
    }
