"""What a search says while it runs: lines for pipes, events for programs, rows for terminals."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from evaluator.timing.decision import Comparison, Noise, Verdict
from records.study import Measure
from records.trial import Breakdown, FailureKind, History, Repeat, Stage
from search.loop.leader import Race
from search.loop.study_result import trial_spread
from search.views.terminal import (
    JsonProgress,
    LiveProgress,
    PlainProgress,
    print_trials,
    trial_line,
)
from search.views.trial import outcome_facts, trial_facts
from tests.support import records as testing

KNOBS = {"activation_checkpointing": "selective", "dp_shard": 4, "micro_batch": 16, "tp": 2}
LONG = "rank 1 in setup: " + "the driver says no, " * 60
STUDY = testing.study()
RESUMED = "strategy coordinate; resumed with 1 trials on record"


def tell(observer, *trials):
    """A whole search: every event that a loop gives, for these trials."""
    history = testing.history()
    observer.study_started("20260101-000000-aaaa", STUDY, "strategy coordinate")
    for trial in trials:
        observer.trial_started(trial.ordinal, trial.policy)
        if trial.config is not None:
            observer.config_decided(trial.ordinal, trial.config)
            observer.phase("timed", trial.ordinal)
        history = history.append(trial)
        observer.trial_finished(trial, history)
    for outcome in (testing.measured(0.25), testing.failed()):
        repeat = Repeat(series=2, round=0, ordinal=1, outcome=outcome)
        observer.repeat_finished(repeat)
    return history


SEED = testing.trial(0, 0.5, KNOBS, author="seed")
FASTER = testing.trial(1, 0.25, {**KNOBS, "tp": 1}, author="coordinate")
FAILED = testing.trial(
    2, testing.failed(FailureKind.OUT_OF_MEMORY, message=LONG), {**KNOBS, "dp_shard": 8}
)
POLICY_ERROR = testing.trial(
    3, testing.failed(FailureKind.POLICY_ERROR, Stage.DECIDE, "line 1:\n\x1b[31mred"), None
)
TRIALS = (SEED, FASTER, FAILED, POLICY_ERROR)


def plain(*trials):
    out = io.StringIO()
    tell(PlainProgress(out), *trials)
    return out.getvalue().splitlines()


def events(*trials):
    out = io.StringIO()
    tell(JsonProgress(out), *trials)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def drawn(width, *trials):
    """What a terminal of this width shows, footers included."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    with LiveProgress(console, testing.history()) as live:
        tell(live, *trials)
    return out.getvalue()


def rows(width, *trials):
    out = io.StringIO()
    history = replace(testing.history(), trials=trials)
    print_trials(Console(file=out, width=width), trials, history)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_pipe_gets_one_line_for_each_trial_and_re_measuring_launch():
    assert plain(SEED, FASTER) == [
        "study 20260101-000000-aaaa: example, objective step_time",
        "strategy coordinate",
        "trial 0  seed  activation_checkpointing=selective dp_shard=4 micro_batch=16 tp=2  0.5 s  "
        "best so far  (compute 50 %, exposed 25 %, other 0 %, idle 25 %, hidden 12 %)",
        "trial 1  coordinate  activation_checkpointing=selective dp_shard=4 micro_batch=16 tp=1  "
        "0.25 s  best so far  (compute 50 %, exposed 25 %, other 0 %, idle 25 %, hidden 12 %)",
        "trial 1 repeated to confirm, round 1: step_time 0.25 s",
        "trial 1 repeated to confirm, round 1: FAILED crash: it broke",
    ]


def test_a_failure_is_told_on_one_line_without_control_characters():
    line = trial_line(POLICY_ERROR, testing.history())

    assert line == "trial 3  x  (no configuration)  FAILED policy_error: line 1: [31mred"


def test_a_long_message_is_cut():
    assert len(trial_line(FAILED, testing.history())) < 320


def test_a_re_measuring_launch_without_a_step_time_is_told_as_measured():
    out = io.StringIO()
    outcome = replace(testing.measured(), metrics=())

    PlainProgress(out).repeat_finished(Repeat(series=2, round=1, ordinal=0, outcome=outcome))

    assert out.getvalue() == "trial 0 repeated to confirm, round 2: measured\n"


def test_a_program_gets_one_event_for_everything_that_happens():
    assert [event["event"] for event in events(SEED, POLICY_ERROR)] == [
        "study_started",
        *("trial_started", "config_decided", "phase", "trial_finished"),
        *("trial_started", "trial_finished"),
        *("repeat_finished", "repeat_finished"),
    ]


def test_the_first_event_names_the_study_and_how_it_is_searched():
    assert events()[0] == {
        "event": "study_started",
        "study_id": "20260101-000000-aaaa",
        "name": "example",
        "objective": "step_time",
        "more_objectives": [],
        "limits": [],
        "strategy": "auto",
        "why": "strategy coordinate",
        "trials": 15,
    }


def test_a_failed_trial_has_null_where_a_measured_one_has_values():
    measured, failed = (
        trial_facts(each, trial_spread(each, History())) for each in (SEED, POLICY_ERROR)
    )

    assert measured.keys() == failed.keys()
    assert (failed["score"], failed["unit"], failed["metrics"], failed["config"]) == (None,) * 4
    assert (measured["failure_kind"], measured["failure_stage"], measured["message"]) == (None,) * 3
    assert (failed["failure_kind"], failed["failure_stage"]) == ("policy_error", "decide")
    assert measured["metrics"] == {"step_time": 0.5}


def test_a_re_measuring_launch_tells_programs_its_metrics_or_its_failure():
    measured, failed = events()[-2:]

    assert measured["metrics"] == {"step_time": 0.25}
    assert (measured["purpose"], measured["round"], measured["ordinal"]) == ("confirm", 0, 1)
    assert failed.items() >= outcome_facts(testing.failed()).items()


@pytest.mark.parametrize("observer", [PlainProgress, JsonProgress])
def test_a_reader_that_has_gone_interrupts_the_search(observer):
    class Gone(io.StringIO):
        def write(self, _text):
            raise BrokenPipeError

    with pytest.raises(KeyboardInterrupt):
        observer(Gone()).study_started("20260101-000000-aaaa", STUDY, "strategy coordinate")


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_row_is_wider_than_the_terminal(width):
    assert max(len(line) for line in rows(width, *TRIALS)) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_no_setting_is_broken_across_lines_of_a_common_terminal(width):
    shown = " ".join(rows(width, *TRIALS)).split()

    assert "activation_checkpointing=selective" in shown
    assert "out_of_memory" in shown
    assert "policy_error" in shown


def test_later_rows_tell_only_the_settings_that_the_first_has_not():
    text = "\n".join(rows(120, SEED, FASTER))

    assert text.count("activation_checkpointing=selective") == 1
    assert "tp=1" in text
    assert text.count("micro_batch=16") == 1


def test_a_row_tells_how_many_times_better_than_the_seed_a_trial_is():
    assert "2.00x" in rows(80, SEED, FASTER)[-1]


def test_a_row_marks_the_best_without_colour():
    assert [line for line in rows(80, SEED, FASTER) if "1*" in line]


def test_a_failure_takes_a_few_lines_however_long_its_message():
    assert len(rows(80, SEED, FAILED)) <= 9


def test_a_row_steers_no_terminal():
    assert "\x1b" not in "".join(rows(80, *TRIALS))


def test_rows_printed_one_after_the_other_line_up():
    out = io.StringIO()
    console = Console(file=out, width=120)
    history = replace(testing.history(), trials=(SEED, FASTER))
    print_trials(console, (SEED,), history)
    print_trials(console, (FASTER,), history)

    first, second = (line for line in out.getvalue().splitlines() if " s  " in line)
    assert first.index("0.5 s") == second.index("0.25 s")


def test_the_terminal_shows_budget_best_failures_and_what_is_under_way():
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    seconds = [0.0]
    with LiveProgress(console, testing.history(), clock=lambda: seconds[0]) as live:
        tell(live, *TRIALS)
        live.trial_started(4, FASTER.policy)
        live.config_decided(4, FASTER.config)
        live.phase("warmup", 4)
        seconds[0] = 125.0
        with console.capture() as captured:
            console.print(live.footer())

    shown = " ".join(captured.get().split())
    assert "trial 4 · warmup · tp=1" in shown
    assert "3 of 15 trials, 2 repeats, 2:05 min, best 0.25 s in trial 1, 1 out_of_memory" in shown


def test_the_terminal_shows_every_trial_that_is_under_way():
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    with LiveProgress(console, testing.history()) as live:
        tell(live, SEED)
        live.trial_started(1, FASTER.policy)
        live.trial_started(3, FASTER.policy)
        live.config_decided(1, FASTER.config)
        live.config_decided(3, replace(FASTER.config, values={**KNOBS, "micro_batch": 2}))
        live.phase("timed", 3)
        with console.capture() as both:
            console.print(live.footer())
        live.trial_finished(replace(FASTER, ordinal=3), testing.history().append(SEED))
        with console.capture() as one:
            console.print(live.footer())

    shown = [" ".join(line.split()) for line in both.get().splitlines()]
    assert any(line.endswith("trial 1 · starting · tp=1") for line in shown)
    assert "trial 3 · timed · micro_batch=2" in shown
    assert "trial 1 · starting" in one.get()
    assert "trial 3" not in one.get()


def test_a_program_is_told_whose_launch_entered_a_phase():
    (phase,) = [event for event in events(FASTER) if event["event"] == "phase"]

    assert phase == {"event": "phase", "phase": "timed", "ordinal": 1}


def test_the_terminal_says_which_launch_is_made_again():
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    with LiveProgress(console, testing.history()) as live:
        tell(live, SEED)
        live.phase("timed", None)
        with console.capture() as captured:
            console.print(live.footer())

    assert "repeating · timed · trial 1 in round 1, to confirm" in captured.get()


WON = Race(
    challenger=1,
    incumbent=0,
    comparison=Comparison(
        verdict=Verdict.FAST,
        reason="paired_interval_clears_band",
        ratio=0.5,
        ratio_low=0.4,
        ratio_high=0.625,
        round_count=2,
    ),
)
LOST = replace(WON, comparison=replace(WON.comparison, verdict=Verdict.UNDECIDED, reason="no"))
NOISE = Noise(sd=0.0512, freedom=2)
MEASURE = Measure(max_confirm_rounds=6)
NOISE_WORDS = (
    "noise: rounds of equal launches differ by 5.1 % (standard deviation); 6 rounds show "
    "differences from 7.6 %"
)


def test_every_face_tells_the_noise_and_who_leads_after_a_race():
    pipe, program, screen = io.StringIO(), io.StringIO(), io.StringIO()
    console = Console(file=screen, width=120, force_terminal=True, color_system=None)
    history = replace(testing.history(), trials=(SEED, FASTER), incumbent=0)
    live = LiveProgress(console, history)

    for observer in (PlainProgress(pipe), JsonProgress(program), live):
        observer.noise_measured(NOISE, MEASURE)
        observer.race_decided(LOST)
        observer.race_decided(WON)
    console.print(live.footer())

    words = "2.00x better (95 % interval 1.60 to 2.50, 2 interleaved rounds)"
    for out in (pipe, screen):
        assert NOISE_WORDS in " ".join(out.getvalue().split())
        assert f"compared: trial 1 against trial 0: {words}" in " ".join(out.getvalue().split())
        assert "undecided: no, so trial 0 leads" in " ".join(out.getvalue().split())
    noise, _, won = [json.loads(line) for line in program.getvalue().splitlines()]
    assert noise.items() >= {"event": "noise_measured", "sd": 0.0512, "freedom": 2}.items()
    assert noise["detectable"] == pytest.approx(1.0757, abs=1e-4)
    assert (won["event"], won["challenger"]) == ("race_decided", 1)
    assert (won["comparison"]["verdict"], won["comparison"]["ratio"]) == ("fast", 0.5)


def test_every_face_shows_what_a_person_should_know_now():
    pipe, program, screen = io.StringIO(), io.StringIO(), io.StringIO()
    console = Console(file=screen, width=120, force_terminal=True, color_system=None)

    for observer in (PlainProgress(pipe), JsonProgress(program), LiveProgress(console, History())):
        observer.notice("no model is asked: set a key")

    assert pipe.getvalue() == "NOTICE: no model is asked: set a key\n"
    assert "NOTICE: no model is asked: set a key" in screen.getvalue()
    assert json.loads(program.getvalue()) == {
        "event": "notice",
        "words": "no model is asked: set a key",
    }


def test_a_resumed_search_shows_the_rows_on_record_first():
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system=None)
    on_record = replace(testing.history(), trials=(SEED,))
    with LiveProgress(console, on_record) as live:
        live.study_started("20260101-000000-aaaa", STUDY, RESUMED)
        live.trial_finished(FASTER, on_record.append(FASTER))

    text = out.getvalue()
    assert text.count("configuration") == 1
    assert 0 < text.index("0.5 s") < text.index("0.25 s")


@pytest.mark.parametrize("width", [80, 120])
def test_a_bar_fills_its_cells(width):
    thirds = Breakdown(
        compute_s=0.37,
        exposed_communication_s=0.37,
        hidden_communication_s=0.0,
        other_s=0.13,
        idle_s=0.13,
    )
    trial = testing.trial(0, replace(testing.measured(), breakdown=thirds), KNOBS)
    row = next(line for line in rows(width, trial) if "█ " not in line and "█" in line)

    assert sum(row.count(mark) for mark in "█▒·") == (12 if width == 80 else 20)
