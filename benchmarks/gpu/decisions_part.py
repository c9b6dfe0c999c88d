"""Noise and decisions on the device: equal launches, A/A, and slowdowns that are planted.

Every round launches all jobs together, and their steps take turns. A2 is the same job as A; the
others are slowed by 3, 5 and 10 % of each step. The verdicts are those of the search's own rule.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter

from decision_methods import Pair, round_of
from decision_recording import SLOWDOWN, Slowable
from decision_rounds import Taken, Taking, noise_parts, shift
from part import Findings, Grid, Place

from evaluator.doctor import check_noise, launch_repeatedly
from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.local import LocalLauncher
from evaluator.timing.decision import Comparison, DecisionRule, Verdict, decide
from records.study import Launch, Measure, Study
from records.trial import Config, Measured
from records.workload import Workload
from search.settings import trial_environment
from search.study.study_file import builtin_study

BENCHMARKS = Path(__file__).parents[1]
JOBS = {"cuda": {"A": 0, "A2": 0, "B3": 3, "B5": 5, "B10": 10}, "cpu": {"A": 0, "A2": 0, "B10": 10}}
ROUNDS = {"cuda": 8, "cpu": 2}
EQUAL_LAUNCHES = {"cuda": 4, "cpu": 2}
STEPS = {"cuda": 12, "cpu": 5}
ROUNDS_LIMIT_S = 100.0
SURE_PERCENT = 5
"""A slowdown from which on the rule has to see it."""


def judge(place: Place) -> Findings:
    """Launch the same job several times, then all jobs in rounds, and decide."""
    found = Findings(lead="Noise of equal launches, and what the search's rule says of known jobs.")
    study = small_study(place)
    with closing(launcher()) as first:
        evaluator = TrialEvaluator(Slowable(), first, _say, launcher)
        with closing(evaluator):
            equal = _add_noise(found, evaluator, study, place)
            rounds, wanted = take_rounds(evaluator, study, place), ROUNDS[place.machine.device]
    if len(rounds) < wanted:
        found.doubts.append(f"{len(rounds)} of {wanted} rounds were measured")
    if len(rounds) < 2:
        found.data = {"equal_launches": equal, "rounds": []}
        return found
    found.data = {"equal_launches": equal, **add_decisions(found, rounds, place)}
    if not place.has_gpu:
        found.lacks.append("slowdowns of 3 and 5 %, and more rounds: a small job shows none")
    return found


def add_decisions(found: Findings, rounds: Sequence[Taking], place: Place) -> dict[str, object]:
    """Show the noise of rounds, and what the rule says of each job; doubt what is wrong."""
    noise = noise_parts(rounds, rule_of(len(rounds)))
    found.facts += [
        ("a round's A2 over A, standard deviation", f"{100 * noise.ratio:.2f} %"),
        ("a step's time within a launch, standard deviation", f"{100 * noise.step:.2f} %"),
    ]
    jobs = [name for name in JOBS[place.machine.device] if name != "A"]
    judged = {name: _judged(rounds, name) for name in jobs}
    found.tables.append(_table(rounds, judged, JOBS[place.machine.device]))
    found.doubts += filter(None, (_doubt(name, judged[name][0], place) for name in jobs))
    return {
        "noise": asdict(noise),
        "decisions": {name: asdict(each) for name, (each, _) in judged.items()},
        "rounds": [{name: asdict(taken) for name, taken in each.items()} for each in rounds],
    }


def _say(phase: str) -> None:
    """Let the log show what a round spends its time on."""
    print(f"{perf_counter():.1f} s {phase}", flush=True)


def launcher() -> LocalLauncher:
    """A launcher whose ranks find the training that is slowed."""
    seen = trial_environment()
    paths = os.pathsep.join(filter(None, (str(BENCHMARKS), seen.get("PYTHONPATH"))))
    return LocalLauncher({**seen, "PYTHONPATH": paths}, 1)


def small_study(place: Place) -> Study:
    """A model on one rank, whose steps take few milliseconds on a CPU and tens on a GPU.

    Shorter steps of a GPU are as noisy as the host that launches them.
    """
    scale, steps = (32 if place.has_gpu else 1), STEPS[place.machine.device]
    workload = Workload(
        name="noise",
        precision="bf16" if place.has_gpu else "fp32",
        layer_count=4 if place.has_gpu else 2,
        hidden_size=64 * scale,
        head_count=scale if place.has_gpu else 4,
        kv_head_count=scale if place.has_gpu else 4,
        ffn_size=256 * scale,
        vocab_size=256 * scale,
        sequence_length=64 * scale if place.has_gpu else 32,
        global_batch=4,
    )
    machine = replace(place.machine, world_size=1, ranks_per_node=1)
    measure = Measure(
        warmup_steps=3,
        timed_steps=steps,
        max_timed_steps=steps,
        profiled_steps=0,
        timeout_s=60,
    )
    return replace(builtin_study(machine), workload=workload, measure=measure, launch=Launch())


def _add_noise(found: Findings, evaluator: TrialEvaluator, study: Study, place: Place) -> object:
    config = Config({"micro_batch": 4, SLOWDOWN: 0})
    with tempfile.TemporaryDirectory() as folder:
        count = EQUAL_LAUNCHES[place.machine.device]
        launches = launch_repeatedly(evaluator, study, config, Path(folder), count)
    if isinstance(launches, str):
        found.doubts.append(f"equal launches: {launches}")
        return launches
    found.facts.append(("equal launches", check_noise(launches).detail))
    return [launch.step_times_s for launch in launches]


def take_rounds(evaluator: TrialEvaluator, study: Study, place: Place) -> list[Taking]:
    """Take rounds as long as there is time for another one."""
    jobs, rounds = JOBS[place.machine.device], list[Taking]()
    started_s = perf_counter()
    for number in range(ROUNDS[place.machine.device]):
        if (perf_counter() - started_s) * (number + 1) > ROUNDS_LIMIT_S * max(1, number):
            break
        with ExitStack() as opened:
            folders = [Path(opened.enter_context(tempfile.TemporaryDirectory())) for _ in jobs]
            configs = [Config({"micro_batch": 4, SLOWDOWN: slow}) for slow in jobs.values()]
            outcomes = evaluator.evaluate_together(study, configs, folders, seed=number)
        measured = {
            name: _taken(outcome)
            for name, outcome in zip(jobs, outcomes, strict=True)
            if isinstance(outcome, Measured)
        }
        if measured.keys() == jobs.keys():
            rounds.append(measured)
        else:
            print(*outcomes, sep="\n")
    return rounds


def _taken(outcome: Measured) -> Taken:
    measurement = outcome.measurement
    return Taken(
        position=None,
        steps_s=measurement.slowest_rank_s,
        wall_s=measurement.wall_s or 0.0,
        disturbed=bool(measurement.conditions and measurement.conditions.disturbances),
        step_by_step={*measurement.turn_steps} == {1},
    )


def rule_of(count: int) -> DecisionRule:
    """The rule of a search, for N rounds at most."""
    return DecisionRule(margin=0.01, min_rounds=min(4, count), max_rounds=count)


def _judged(rounds: Sequence[Taking], name: str) -> tuple[Comparison, int]:
    """What the rule says of a job against A, and after how many rounds it has settled that."""
    rule, pairs = rule_of(len(rounds)), []
    for count, each in enumerate(rounds, 1):
        pairs.append(round_of(Pair(candidate=each[name], anchor=each["A"])))
        comparison = decide(pairs, rule)
        if comparison.settled:
            return comparison, count
    return comparison, len(rounds)


def _table(
    rounds: Sequence[Taking],
    judged: Mapping[str, tuple[Comparison, int]],
    jobs: Mapping[str, int],
) -> Grid:
    rows = []
    for name, (comparison, count) in judged.items():
        really = shift(rounds, name)
        shares = [100 * (ratio - 1) for ratio in (really.ratio, really.low, really.high)]
        found = "{:+.2f} % [{:+.2f}, {:+.2f}]".format(*shares)
        planted = f"{jobs[name]} %" if jobs[name] else "none (A/A)"
        verdict = f"{comparison.verdict}, {comparison.reason.replace('_', ' ')}"
        rows.append((planted, found, verdict, str(count)))
    headings = ("planted slowdown", f"measured over {len(rounds)} rounds", "verdict", "rounds")
    return Grid(about="Decisions by the rule of the search", headings=headings, rows=rows)


def _doubt(name: str, comparison: Comparison, place: Place) -> str | None:
    """Whether a verdict is wrong, or a slowdown that is easy to see was missed."""
    planted = JOBS[place.machine.device][name]
    claimed = comparison.verdict in (Verdict.FAST, Verdict.SLOW)
    words = f"{comparison.verdict} ({comparison.reason})"
    if not planted:
        return f"A/A: the rule claims {words}" if claimed else None
    if comparison.verdict is Verdict.FAST:
        return f"planted {planted} %: the rule claims {words}"
    if place.has_gpu and planted >= SURE_PERCENT and comparison.verdict is not Verdict.SLOW:
        return f"planted {planted} %: not seen, {words}"
    return None
