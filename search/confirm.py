"""Which launches re-measure the finalists: the best few and the seed, interleaved by round."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from records.study import Study
from records.trial import History, Trial


def finalists(history: History, top: int, known: Mapping[int, float]) -> tuple[Trial, ...]:
    """The best measured trials, and the seed as the anchor if it was measured.

    `known` is the cost of trials that were re-measured before, by ordinal: it counts more than
    the one launch that a trial had.
    """
    ranked = sorted(history.ranked, key=lambda trial: _cost(trial, known))
    best = tuple(ranked[:top])
    seed = tuple(t for t in history.measured if t.ordinal == 0 and t not in best)
    return (*best, *seed) if len(history.measured) > 1 else best


def launch_order(
    study: Study, history: History, known: Mapping[int, float]
) -> tuple[tuple[int, Trial], ...]:
    """Pairs of round and finalist, shuffled inside each round so that drift hits all alike."""
    chosen = finalists(history, study.measure.confirm_top, known)
    order: list[tuple[int, Trial]] = []
    for number in range(study.measure.confirm_rounds):
        turn = list(chosen)
        Random(f"{study.random_seed}/{len(history)}/{number}").shuffle(turn)
        order += [(number, trial) for trial in turn]
    return tuple(order)


def untraced(study: Study) -> Study:
    """The same study with no profiled steps: a re-measuring launch needs timing only."""
    return replace(study, measure=replace(study.measure, profiled_steps=0))


def _cost(trial: Trial, known: Mapping[int, float]) -> float:
    if trial.score is None:
        raise ValueError(f"trial {trial.ordinal} has no score")
    return known.get(trial.ordinal, trial.score.cost)
