"""What a replayed search did otherwise than its record says, trial by trial."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest

from records.exchange import Exchange
from records.rows import Intent
from records.trial import Config, Failed, Outcome, Policy, Repeat, Trial
from search.choosers.chooser import change_words
from search.finding import Finding
from search.llm.differing import difference
from search.llm.transcripts import said_in
from search.replay.recorded import Recorded
from search.words.repeat import PURPOSES


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCheck:
    """What differs in one trial, in words, most telling first; nothing where it is the same.

    `since` is the number of trials that had ended when it first did.
    """

    ordinal: int
    author: str
    config: Config | None
    differs: tuple[str, ...]
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What differs in each trial on record, and in what was found at the end."""

    trials: tuple[TrialCheck, ...]
    finding: tuple[str, ...]

    @property
    def first(self) -> str | None:
        """What differs first, and where; None where all is the same."""
        differing = [trial for trial in self.trials if trial.differs]
        if differing:
            trial = min(differing, key=lambda each: each.since)
            return f"trial {trial.ordinal}: {trial.differs[0]}"
        return f"the finding: {self.finding[0]}" if self.finding else None


def checked(record: Recorded, again: Recorded) -> Checks:
    """Compare a record with what a replay of it left."""
    ours = {each.ordinal: each for each in again.proposed}
    theirs = {each.ordinal: each for each in record.proposed}
    ordinals = sorted({*ours, *theirs})
    return Checks(
        trials=tuple(_check(n, theirs.get(n), ours.get(n), record, again) for n in ordinals),
        finding=tuple(_finding(record.finding, again.finding)) if record.finding else (),
    )


def _check(
    ordinal: int,
    recorded: Trial | Intent | None,
    replayed: Trial | Intent | None,
    record: Recorded,
    again: Recorded,
) -> TrialCheck:
    known = recorded or replayed
    if known is None:
        raise ValueError(f"trial {ordinal} is on neither side")
    differs: list[str] = []
    since = ordinal
    if recorded is None:
        differs.append("not on record")
    elif replayed is None:
        differs.append("not proposed again")
    else:
        talks = record.exchanges.get(ordinal), again.exchanges.get(ordinal)
        differs += _policy(recorded.policy, replayed.policy)
        differs += _exchange(*talks)
        differs += _ending(recorded, replayed)
        repeats = _of(ordinal, record.repeats), _of(ordinal, again.repeats)
        if repeats[0] != repeats[1]:
            since = since if differs else _parting(*repeats)
            differs.append(_repeat_words(*repeats))
    return TrialCheck(
        ordinal=ordinal,
        author=known.policy.author,
        config=known.config if isinstance(known, Trial) else None,
        differs=tuple(differs),
        since=since,
    )


def _policy(recorded: Policy, replayed: Policy) -> Iterator[str]:
    if recorded.source != replayed.source:
        pairs = zip(_lines(recorded.source), _lines(replayed.source), strict=False)
        line = next((n for n, (one, other) in enumerate(pairs, 1) if one != other), None)
        yield "policy" if line is None else f"policy, from line {line}"
    if recorded.author != replayed.author:
        yield f"author {replayed.author} instead of {recorded.author}"
    if (recorded.rationale, recorded.parent) != (replayed.rationale, replayed.parent):
        yield "rationale" if recorded.rationale != replayed.rationale else "parent of the policy"
    if recorded.prediction != replayed.prediction:
        yield "what was expected of the policy"


def _lines(source: str) -> Sequence[str]:
    return [*source.splitlines(), ""]


def _exchange(recorded: Exchange | None, replayed: Exchange | None) -> Iterator[str]:
    if recorded is None or replayed is None:
        if recorded is not replayed:
            yield "model asked, and not before" if replayed else "model not asked, but before"
        return
    ours, theirs = said_in(replayed), said_in(recorded)
    if len(ours) != len(theirs):
        yield f"{len(ours)} requests to the model instead of {len(theirs)}"
        return
    for one, other in zip(ours, theirs, strict=True):
        if one.digest != other.digest:
            yield f"request to the model: {difference(one.body, other.body)}"
            return
    if [one.answers for one in ours] != [other.answers for other in theirs]:
        yield "answers of the model"
    if recorded.result != replayed.result:
        yield f"exchange ended with {replayed.result!r} instead of {recorded.result!r}"


def _ending(recorded: Trial | Intent, replayed: Trial | Intent) -> Iterator[str]:
    if not isinstance(recorded, Trial) or not isinstance(replayed, Trial):
        if isinstance(recorded, Trial):
            yield "not finished again"
        return
    if recorded.config != replayed.config:
        if recorded.config is None or replayed.config is None:
            yield f"configuration {replayed.config} instead of {recorded.config}"
        else:
            yield f"configuration: {change_words(recorded.config, replayed.config)}"
    if _bare(recorded.outcome) != _bare(replayed.outcome):
        yield f"{_outcome_words(replayed.outcome)} instead of {_outcome_words(recorded.outcome)}"
    if recorded.score != replayed.score:
        yield "score"


def _bare(outcome: Outcome) -> Outcome:
    """The outcome without the files that a replay has no use for."""
    contexts = tuple(replace(one, outcome=_bare(one.outcome)) for one in outcome.contexts)
    return replace(outcome, artifacts=(), contexts=contexts)


def _outcome_words(outcome: Outcome) -> str:
    return str(outcome) if isinstance(outcome, Failed) else "measured"


def _of(ordinal: int, repeats: Sequence[Repeat]) -> Sequence[Repeat]:
    return [
        replace(repeat, outcome=_bare(repeat.outcome))
        for repeat in repeats
        if repeat.ordinal == ordinal
    ]


def _parting(recorded: Sequence[Repeat], replayed: Sequence[Repeat]) -> int:
    """After how many trials these launches are no longer the same."""
    for one, other in zip_longest(recorded, replayed):
        if one != other:
            return min(each.series for each in (one, other) if each is not None)
    return 0


def _repeat_words(recorded: Sequence[Repeat], replayed: Sequence[Repeat]) -> str:
    if len(recorded) != len(replayed):
        return f"launched again {len(replayed)} times instead of {len(recorded)}"
    pairs = zip(recorded, replayed, strict=True)
    first = next(one for one, other in pairs if one != other)
    return f"launch {PURPOSES[first.purpose]}, round {first.round + 1}"


def _finding(recorded: Finding, replayed: Finding | None) -> Iterator[str]:
    if replayed is None:
        yield "none"
        return
    for part in fields(Finding):
        before, now = getattr(recorded, part.name), getattr(replayed, part.name)
        if before != now:
            yield f"{part.name.replace('_', ' ')} {now} instead of {before}"
