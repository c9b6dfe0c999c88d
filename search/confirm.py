"""Which launches re-measure the finalists: the best few and the seed, interleaved by round."""

from dataclasses import replace
from random import Random

from records.study import Study
from records.trial import History, Trial


def finalists(history: History, top: int) -> tuple[Trial, ...]:
    """The best measured trials, and the seed as the anchor if it was measured."""
    best = history.ranked[:top]
    seed = tuple(t for t in history.measured if t.ordinal == 0 and t not in best)
    return (*best, *seed) if len(history.measured) > 1 else best


def launch_order(study: Study, history: History) -> tuple[tuple[int, Trial], ...]:
    """Pairs of round and finalist, shuffled inside each round so that drift hits all alike."""
    chosen = finalists(history, study.measure.confirm_top)
    order: list[tuple[int, Trial]] = []
    for number in range(study.measure.confirm_rounds):
        turn = list(chosen)
        Random(f"{study.random_seed}/{len(history)}/{number}").shuffle(turn)
        order += [(number, trial) for trial in turn]
    return tuple(order)


def untraced(study: Study) -> Study:
    """The same study with no profiled steps: a re-measuring launch needs timing only."""
    return replace(study, measure=replace(study.measure, profiled_steps=0))
