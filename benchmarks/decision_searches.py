"""How often whole searches announce what is true, over launches whose times are simulated.

The referee, its contests, who leads and the finding are the real ones, with the settings that a
study has by default; only the launches and the store are replaced. Configurations are tried one by
one, and launched one after the other. Run it against another version of the code with that
version's folder first in PYTHONPATH.

    python benchmarks/decision_searches.py
    python benchmarks/decision_searches.py --searches 100 --noise 0.02 --only "busy at times"

A claim is a winner other than the seed that was shown to be faster than it; it is right when the
winner is the best configuration, and false when the winner is no better than the seed. A lean is
such a winner that was not shown to be faster. Without an interval are winners other than the seed
that nothing but single values speak for. The loss is how much longer the winner takes than the best
configuration that was launched. Of claims, `too good` is by how much the announced speedup exceeds
the true one, and `covers` how often its interval holds it. Costs count a launch by its true time.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TypeAlias, cast

from evaluator.objective import scoring_of
from evaluator.timing.decision import Verdict
from records.machine import Conditions
from records.store.store import Store
from records.study import Budget, Dimension, Measure, Study
from records.trial import (
    Config,
    History,
    Measured,
    Measurement,
    MetricValue,
    Outcome,
    Repeat,
    Trial,
)
from search.loop.budget import extend_budget, launches_used, stop_reason
from search.loop.races import ConfirmationPlan, RepeatRunner
from search.loop.study_result import StudyResult, find
from search.loop.trial import TrialRunner
from tests.support import records as testing

STUDY_ID = "simulated"
QUIET = Conditions(
    load_average=None,
    others_cpu_share=0.02,
    steal_share=0.0,
    cpu_pressure_share=None,
    memory_pressure_share=None,
    io_pressure_share=None,
    available_memory_bytes=None,
    cpu_clock_hz=None,
    cpu_temperature_celsius=None,
)
BUSY = replace(QUIET, others_cpu_share=0.6)

LOAD_BEGINS, LOAD_ENDS = 0.10, 0.15
"""Chance with each launch: two launches in five are disturbed, in spells of about seven."""
SHARED_SLOWDOWN, OWN_SLOWDOWN = 1.30, 0.15
"""While others are busy: a factor for all, and the spread of one that each launch has by itself."""
OVERLOAD, OVERLOAD_SPREAD = 2.0, 0.25
"""Far more work than cores: what eight busy processes on two cores did to launches."""
DRIFT_MEMORY, DRIFT = 0.95, 0.10
"""Slow changes that no reading of the machine shows: an AR(1) process of this spread."""

Moment: TypeAlias = tuple[Conditions, float]
"""What the machine says as a launch is made, and the factor by which it slows the launch."""


def quiet(_random: Random) -> Iterator[Moment]:
    while True:
        yield QUIET, 1.0


def busy_at_times(random: Random) -> Iterator[Moment]:
    busy = random.random() < LOAD_BEGINS / (LOAD_BEGINS + LOAD_ENDS)
    while True:
        busy = random.random() >= LOAD_ENDS if busy else random.random() < LOAD_BEGINS
        yield (BUSY, _slowdown(random)) if busy else (QUIET, 1.0)


def busy_throughout(random: Random) -> Iterator[Moment]:
    while True:
        yield BUSY, _slowdown(random)


def drifting(random: Random) -> Iterator[Moment]:
    level = random.gauss(0, DRIFT)
    while True:
        step = DRIFT * math.sqrt(1 - DRIFT_MEMORY**2)
        level = DRIFT_MEMORY * level + random.gauss(0, step)
        yield QUIET, math.exp(level)


def _slowdown(random: Random) -> float:
    return SHARED_SLOWDOWN * math.exp(abs(random.gauss(0, OWN_SLOWDOWN)))


def overloaded(random: Random) -> Iterator[Moment]:
    while True:
        yield BUSY, OVERLOAD * math.exp(random.gauss(0, OVERLOAD_SPREAD))


MACHINES: Mapping[str, Callable[[Random], Iterator[Moment]]] = {
    "quiet": quiet,
    "busy at times": busy_at_times,
    "busy throughout": busy_throughout,
    "overloaded": overloaded,
    "drifting": drifting,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What configurations take; a script that reports `exact` times reports them under any load.

    After `resumed_at` trials the search ends, and is resumed.
    """

    times_s: Callable[[Random], tuple[float, ...]]
    exact: bool = False
    resumed_at: int | None = None
    patience: int | None = None
    """The launches without improvement that end a search; None for as many as there are trials."""
    measure: Measure = field(default_factory=Measure)


def _one_better(random: Random) -> tuple[float, ...]:
    times_s = [1.0] * 10
    times_s[random.randrange(1, len(times_s))] = 1 / 1.1
    return tuple(times_s)


def _in_either_order(random: Random) -> tuple[float, ...]:
    return (0.07, *random.sample((0.03, 0.05), 2))


def _spread(random: Random) -> tuple[float, ...]:
    return (1.0, *(math.exp(random.uniform(math.log(0.3), math.log(1.1))) for _ in range(9)))


def _far_from_the_seed(random: Random) -> tuple[float, ...]:
    return (3.0, *random.sample((1.0, 1.02, 1.15, 1.5, 2.0), 5))


TRUTHS: Mapping[str, Truth] = {
    "10 equal": Truth(times_s=lambda _: (1.0,) * 10),
    "6, the seed 3 times as slow": Truth(times_s=_far_from_the_seed),
    "1 of 10 is 10 % better": Truth(times_s=_one_better),
    "0.3 to 1.1 of the seed": Truth(times_s=_spread, patience=Budget().patience),
    "0.07, then 0.03, 0.05 s, exact": Truth(times_s=_in_either_order, exact=True),
    "0.09, 0.07, resumed: 0.03, exact": Truth(
        times_s=lambda _: (0.09, 0.07, 0.03),
        exact=True,
        resumed_at=2,
        measure=Measure(race_rounds=0),
    ),
}


@dataclass(slots=True, kw_only=True)
class Memory:
    """What contests and referees ask of a store, without a disk."""

    study: Study
    trials: list[Trial] = field(default_factory=list)
    launches: list[Repeat] = field(default_factory=list)

    def lock(self, _study_id: str) -> AbstractContextManager[None]:
        """Nobody else is there."""
        return nullcontext()

    def find(self, _study_id: str) -> SimpleNamespace:
        """The study as it is now."""
        return SimpleNamespace(study=self.study)

    def replace_study(self, _study_id: str, study: Study) -> None:
        """Go on with another budget."""
        self.study = study

    def history(self, _study_id: str) -> History:
        """Every trial so far."""
        return History(trials=tuple(self.trials))

    def repeats(self, _study_id: str) -> tuple[Repeat, ...]:
        """Every launch that was made again."""
        return tuple(self.launches)

    def repeat(self, _study_id: str, *repeats: Repeat) -> None:
        """Keep these launches."""
        self.launches += repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Launches configurations one after the other."""

    times_s: Sequence[float]
    noise: float
    exact: bool
    moments: Iterator[Moment]
    random: Random

    def launch_once(self, _study: Study, config: Config, _folder: str = "") -> Outcome:
        """One launch at this moment."""
        conditions, slowdown = next(self.moments)
        time_s = self.times_s[int(config["n"])]
        if not self.exact:
            time_s *= slowdown * math.exp(self.random.gauss(0, self.noise))
        return _measured(time_s, conditions)


def _measured(time_s: float, conditions: Conditions) -> Measured:
    measurement = Measurement(
        step_times_s=((time_s,) * 5,),
        warmup_times_s=((time_s,),),
        losses=(1.0,),
        tokens_per_step=1,
        peak_memory_bytes=(1,),
        wall_s=None,
        device="cpu",
        torch_version=None,
        # Neither changes a decision here, where all steps are equal; both spare most of the work.
        profiled=True,
        turn_steps=(5,),
        conditions=conditions,
    )
    value = MetricValue(name="step_time", value=time_s, unit="s", better="lower", version=1)
    return Measured(measurement=measurement, metrics=(value,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One search: what it found, how many launches it took, and which configuration was best."""

    finding: StudyResult
    launch_count: int
    best: int
    loss: float
    """How much longer the winner takes than the best configuration that was launched."""
    cost: float
    """Launches, each as long as its configuration takes over the best."""
    true_log: float
    """Logarithm of what the winner takes over the seed."""

    @property
    def claims(self) -> bool:
        """Whether the winner was shown to be faster than the seed."""
        against = self.finding.against_seed
        return self.finding.winner != 0 and against is not None and against.verdict is Verdict.FAST

    @property
    def too_good(self) -> float:
        """By how much the announced speedup exceeds the true one, as a log ratio."""
        against = self.finding.against_seed
        ratio = None if against is None else against.ratio
        return 0.0 if ratio is None else self.true_log - math.log(ratio)

    @property
    def covers(self) -> bool:
        """Whether the announced interval holds the true speedup."""
        against = self.finding.against_seed
        if against is None or against.ratio_low is None or against.ratio_high is None:
            return True
        low, high = math.log(against.ratio_low), math.log(against.ratio_high)
        return low <= self.true_log <= high

    @property
    def has_no_interval(self) -> bool:
        """Whether a winner was announced on too few rounds to say how sure that is."""
        against = self.finding.against_seed
        return self.finding.winner != 0 and (against is None or against.ratio_low is None)


def search(truth: Truth, machine: Machine) -> Ended:
    """Run one search to its end."""
    configs = [Config({"n": n}) for n in range(len(machine.times_s))]
    knob = Dimension(name="n", choices=tuple(range(len(configs))))
    first = truth.resumed_at or len(configs)
    study = replace(
        testing.study(knob),
        budget=Budget(trials=first, patience=truth.patience or first),
        measure=replace(truth.measure, profiled_steps=0),
    )
    store = Memory(study=study)
    finding = _run(study, configs, store, machine)
    if first < len(configs):
        study = extend_budget(STUDY_ID, len(configs) - first, cast(Store, store))
        finding = _run(study, configs, store, machine)
    launches = launches_used(store.history(STUDY_ID), store.launches)
    best = min(range(len(store.trials)), key=lambda n: machine.times_s[n])
    times_s, winner = machine.times_s, finding.winner or 0
    again = (launch.ordinal for launch in store.launches)
    return Ended(
        finding=finding,
        launch_count=launches,
        best=best,
        loss=times_s[winner] / times_s[best] - 1,
        cost=sum(times_s[n] for n in (*range(len(store.trials)), *again)) / times_s[best],
        true_log=math.log(times_s[winner] / times_s[0]),
    )


def _run(study: Study, configs: Sequence[Config], store: Memory, machine: Machine) -> StudyResult:
    """Try what was not tried yet, as the search does, then conclude."""
    scoring = scoring_of(study)
    trial_runner = SimpleNamespace(
        study_id=STUDY_ID,
        store=store,
        observer=_Silent(),
        launch_once=machine.launch_once,
        fits=lambda *_: False,
        has_time=lambda *_: True,
    )
    plan = ConfirmationPlan(RepeatRunner(cast(TrialRunner, trial_runner), study, scoring))
    settled = plan.settled_count
    while True:
        history = plan.settle(settled).history
        settled, used = len(history), launches_used(history, store.launches)
        reason = stop_reason(study.budget, history, used, None)
        if reason is not None:
            break
        outcome = machine.launch_once(study, configs[settled])
        trial = replace(testing.trial(settled, 1.0), config=configs[settled], outcome=outcome)
        store.trials.append(scoring.scored(trial))
    launches = plan.conclude()
    return find(plan.leader(), launches, scoring, study.measure, reason)


class _Silent(SimpleNamespace):
    """Hears everything and says nothing."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Shares of searches on one machine over one truth."""

    right: float
    wrong: float
    leans_right: float
    leans_wrong: float
    no_interval: float
    tied: float
    loss: float
    launch_count: float
    cost: float
    false: float
    too_good: float
    covers: float


def cell(truth: Truth, machine: str, noise: float, count: int) -> Cell:
    """Run this number of searches."""
    ended: list[Ended] = []
    for number in range(count):
        random = Random(f"{machine}/{number}")
        there = Machine(
            times_s=truth.times_s(random),
            noise=noise,
            exact=truth.exact,
            moments=MACHINES[machine](random),
            random=random,
        )
        ended.append(search(truth, there))
    found = [(each, each.finding.winner == each.best != 0) for each in ended]
    claims = [each for each in ended if each.claims]
    leaning = [(each, right) for each, right in found if not each.claims and each.finding.winner]
    return Cell(
        right=sum(each.claims and right for each, right in found) / count,
        wrong=sum(each.claims and not right for each, right in found) / count,
        leans_right=sum(right for _, right in leaning) / count,
        leans_wrong=sum(not right for _, right in leaning) / count,
        no_interval=sum(each.has_no_interval for each in ended) / count,
        tied=sum(any(each.finding.ties) for each in ended) / count,
        loss=sum(each.loss for each in ended) / count,
        launch_count=sum(each.launch_count for each in ended) / count,
        cost=sum(each.cost for each in ended) / count,
        false=sum(each.true_log >= 0 for each in claims) / count,
        too_good=sum(each.too_good for each in claims) / max(len(claims), 1),
        covers=sum(each.covers for each in claims) / max(len(claims), 1),
    )


HEAD = (
    f"{'machine':16} {'truth':32} {'right':>7} {'wrong':>7} {'leans +':>8} {'leans -':>8} "
    f"{'no int.':>8} {'tied':>7} {'loss':>7} {'false':>7} {'too good':>9} {'covers':>7} "
    f"{'launches':>9} {'cost':>7} {'seconds':>8}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description="How often whole searches are right.")
    parser.add_argument("--searches", type=int, default=600, help="in each cell")
    parser.add_argument(
        "--noise", type=float, default=0.05, help="spread of a launch, default 0.05"
    )
    parser.add_argument("--only", choices=tuple(MACHINES), action="append", help="this machine")
    parser.add_argument("--truth", choices=tuple(TRUTHS), action="append", help="this truth")
    options = parser.parse_args()
    code = Path(__import__("search").__file__ or "").parents[1].name
    noise = f"launches vary by {options.noise:.1%}"
    print(f"{options.searches} searches a cell, {noise}, code in {code}")
    print(HEAD)
    for machine in options.only or MACHINES:
        for name in options.truth or TRUTHS:
            truth = TRUTHS[name]
            if truth.exact and not machine.startswith(("quiet", "busy")):
                continue
            begun = time.perf_counter()
            found = cell(truth, machine, options.noise, options.searches)
            shares = (found.right, found.wrong)
            leans = (found.leans_right, found.leans_wrong, found.no_interval)
            print(
                f"{machine:16} {name:32}",
                *(f"{share:7.1%}" for share in shares),
                *(f"{share:8.1%}" for share in leans),
                f"{found.tied:7.1%} {found.loss:7.1%} {found.false:7.1%} {found.too_good:9.1%}",
                f"{found.covers:7.1%} {found.launch_count:9.1f} {found.cost:7.1f}",
                f"{time.perf_counter() - begun:8.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
