"""A trial that breaks a limit never leads; what the seed had is the measure where it is named."""

from dataclasses import replace

from records.study import Budget
from records.trial import FailureKind, Score
from search.report.data import StudyRecord, report_lines
from tests.support.evaluator import Fails, Takes
from tests.support.search import ONCE

BUDGET = Budget(trials=4, patience=9)
RACING = replace(ONCE, race_rounds=2, confirm_top=2, confirm_rounds=4, max_confirm_rounds=4)
TABLE = {
    0: Takes(step_time_s=0.50, peak_memory_bytes=100 << 10),
    1: Takes(step_time_s=0.10, peak_memory_bytes=900 << 10),
    2: Takes(step_time_s=0.40, peak_memory_bytes=200 << 10),
    3: Takes(step_time_s=0.60, peak_memory_bytes=100 << 10),
}
LIMIT = "peak_memory < 500 KiB"
BROKEN = "peak_memory < 500 KiB is broken: peak_memory is 900 KiB"


def reported(made, finding):
    record = StudyRecord.of(made.study_id, made.store)
    return [f"{label}: {words}" for label, words in report_lines(finding, record, "")]


def knob(made, ordinal):
    return made.history.trials[ordinal].config["n"]


def test_the_fastest_that_breaks_a_limit_neither_races_nor_wins(tabular):
    made = tabular(TABLE, limits=(LIMIT,), budget=BUDGET, measure=RACING)
    finding = made.run()
    assert knob(made, finding.winner) == 2
    assert made.launched.count(1) == 1
    (broken,) = [trial for trial in made.history if trial.score.broken]
    assert broken.score == Score(cost=0.1, value=0.1, unit="s", broken=(BROKEN,))
    assert f"({BROKEN})" in made.said.getvalue()
    lines = reported(made, finding)
    assert (
        "limits: 1 of 4 measured trials break a limit, so they cannot be the best; "
        f"trial {broken.ordinal}: {BROKEN}"
    ) in lines


def test_a_seed_that_breaks_a_limit_is_compared_with_and_does_not_win(tabular):
    table = {**TABLE, 0: Takes(step_time_s=0.05, peak_memory_bytes=900 << 10)}
    made = tabular(table, limits=(LIMIT,), budget=BUDGET, measure=RACING)
    finding = made.run()
    assert knob(made, finding.winner) == 2
    assert finding.against_seed is not None
    assert 0 not in finding.ties


def test_where_all_break_a_limit_there_is_no_best_and_the_report_says_why(tabular):
    made = tabular(TABLE, limits=("step_time < 1 ms",), budget=BUDGET, measure=RACING)
    finding = made.run()
    assert finding.winner is None
    assert len(made.launched) == 4
    assert "best: none, because every measured configuration breaks a limit" in reported(
        made, finding
    )


def test_ratios_to_the_seed_make_the_seed_itself_one(tabular):
    made = tabular(TABLE, objective="step_time/step_time@seed", budget=BUDGET, measure=RACING)
    finding = made.run()
    scores = {trial.config["n"]: trial.score.value for trial in made.history}
    assert scores[0] == 1.0
    assert scores[2] == 0.8
    assert knob(made, finding.winner) == 1
    assert finding.result.centre == 0.2
    assert not any(line.startswith("baseline: ") for line in reported(made, finding))


def test_the_first_measured_trial_stands_in_for_a_seed_that_failed(tabular):
    table = {**TABLE, 0: Fails(kind=FailureKind.OUT_OF_MEMORY)}
    made = tabular(table, objective="step_time/step_time@seed", budget=BUDGET, measure=RACING)
    finding = made.run()
    first = made.history.measured[0]
    assert first.ordinal == 1
    assert first.score.value == 1.0
    others = [trial for trial in made.history.measured if trial is not first]
    assert all(
        trial.score.value == trial.outcome.metric("step_time") / first.outcome.metric("step_time")
        for trial in others
    )
    assert "baseline: trial 1, the first that was measured, as the seed failed" in reported(
        made, finding
    )


def test_limits_and_baselines_survive_the_store_and_a_resumed_study(tabular):
    made = tabular(
        TABLE,
        objective="step_time/step_time@seed",
        limits=(LIMIT, "step_time < 2*step_time@seed"),
        budget=replace(BUDGET, trials=2),
    )
    made.run()
    made.budget = BUDGET
    finding = made.run()
    whole = tabular(TABLE, objective=made.objective, limits=made.limits, budget=BUDGET)
    whole.run()
    assert [trial.score for trial in made.history] == [trial.score for trial in whole.history]
    assert sum(bool(trial.score.broken) for trial in made.history) == 1
    assert knob(made, finding.winner) == 2
