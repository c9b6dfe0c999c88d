"""Answer what the model asks about the traces of a trial, from the record and stored traces."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from evaluator.traces.analysis.difference import difference
from records.errors import CclsearchError, StoreError, StudyError
from records.store.store import Store
from records.trial import History, Measured, Trial
from search.llm.tools import TraceQuestion, TraceTopic
from search.traces import view, whatif
from search.traces.open import OpenTraces, small_traces
from search.views.diagnosis import diagnosis_lines, diagnosis_of, diagnosis_words
from search.views.document import Block, Table
from search.views.format import fenced, one_line
from search.views.terminal import block_lines

ANSWER_CHARS: Final = 4000
LINE_CHARS: Final = 200
MOST_NAMES: Final = 10
MOST_CAVEATS: Final = 3


@dataclass(frozen=True, slots=True)
class TraceReader:
    """Answers questions about the traces of a study in a few lines; reads no large traces."""

    study_id: str
    store: Store

    def answer(self, question: TraceQuestion, history: History) -> str:
        """Return what the traces show, or why they do not, cut and fenced: names are untrusted."""
        try:
            text = "\n".join(self._lines(question, history))
        except StoreError:
            text = "the traces are no longer in the store, or are not what was stored"
        except CclsearchError as error:
            text = one_line(str(error), LINE_CHARS)
        return fenced(text, limit=ANSWER_CHARS)

    def _lines(self, question: TraceQuestion, history: History) -> Iterator[str]:
        after = _trial(question.trial, history)
        if question.question is not TraceTopic.DIFFERENCE:
            yield f"trial {after.ordinal}, {question.question.replace('_', ' ')}"
        match question.question:
            case TraceTopic.STEP:
                yield from _step(after)
            case TraceTopic.WHAT_IF:
                yield from _what_if(after)
            case TraceTopic.DIFFERENCE:
                before = _trial(question.against, history)
                yield from self._difference(before, after)
            case _:
                yield from _shown(question.question, self._open(after))

    def _open(self, trial: Trial) -> OpenTraces:
        return small_traces(self.store.find(self.study_id), trial, self.store)

    def _difference(self, before: Trial, after: Trial) -> Iterator[str]:
        if before is after:
            raise StudyError("give the numbers of two trials as trial and against")
        yield f"from trial {before.ordinal} to trial {after.ordinal}, per step and rank"
        found = difference(self._open(before).traces, self._open(after).traces)
        if found is None:
            raise StudyError(view.NOT_COMPARABLE)
        for blocks in view.changes(found, MOST_NAMES):
            yield from _lines_of(blocks)


def _trial(ordinal: int | None, history: History) -> Trial:
    """Return a trial, the best for None; raise `StudyError` where it was not measured."""
    trial = history.best if ordinal is None else history.find(ordinal)
    if trial is None:
        which = "no trial is measured yet" if ordinal is None else f"there is no trial {ordinal}"
        raise StudyError(which)
    if not isinstance(trial.outcome, Measured):
        raise StudyError(f"trial {trial.ordinal} failed, so it has no traces to ask about")
    return trial


def _step(trial: Trial) -> Iterator[str]:
    found = diagnosis_of(trial.outcome)
    if found is None:
        raise StudyError(f"no step of trial {trial.ordinal} was profiled")
    yield diagnosis_words(found)
    yield from diagnosis_lines(found)


def _what_if(trial: Trial) -> Iterator[str]:
    assert isinstance(trial.outcome, Measured)
    table = whatif.saved_table(trial.outcome)
    if table is None:
        raise StudyError(f"no answer: {trial.outcome.absent.get(whatif.ANY_LINKS, 'not computed')}")
    yield from _lines_of([table])


def _shown(topic: TraceTopic, found: OpenTraces) -> Iterator[str]:
    caveats: Iterable[str] = found.traces.caveats
    match topic:
        case TraceTopic.COLLECTIVES:
            yield from _lines_of(view.collectives(found))
        case TraceTopic.STRAGGLERS:
            yield from _lines_of(view.stragglers(found))
            caveats = (*view.matching_caveats(found), *caveats)
        case TraceTopic.KERNELS:
            yield from _lines_of(view.kernels(found, MOST_NAMES))
        case TraceTopic.OPERATORS:
            yield from _lines_of(view.operators(found, MOST_NAMES))
        case _:
            replayed = whatif.checked_replay(found)
            yield from _lines_of(whatif.path_blocks(replayed, replayed.path))
            caveats = (*whatif.whatif_caveats(replayed), *caveats)
    for caveat in [*caveats][:MOST_CAVEATS]:
        yield one_line(f"caveat: {caveat}", LINE_CHARS)


def _lines_of(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield the lines of blocks; the cells of tables have no control characters."""
    for block in blocks:
        lines = [line.replace(view.HAS_ALL, "") for line in block_lines(block, LINE_CHARS)]
        yield from lines if isinstance(block, Table) else (one_line(e, LINE_CHARS) for e in lines)
