"""What a search says while it runs: lines for pipes, events for programs, rows for terminals."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from evaluator.timing.decision import Comparison, Noise, Verdict
from records.machine import LaunchRecord
from records.study import Measure
from records.trial import Breakdown, FailureKind, Repeat, Stage
from search.loop.leader import Race
from search.loop.running import RunningLaunch
from search.views.terminal import (
    JsonProgress,
    LiveProgress,
    PlainProgress,
    print_trials,
    trial_line,
)
from search.views.trial import outcome_facts
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


def screen(out=None):
    """A terminal 120 cells wide."""
    return Console(file=out or io.StringIO(), width=120, force_terminal=True, color_system=None)


def replace_height(console, height):
    console.size = (120, height)
    return console


def footer(live):
    """The lines below the trials."""
    console = screen()
    with console.capture() as captured:
        console.print(live.footer())
    return [" ".join(line.split()) for line in captured.get().splitlines()]


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


def test_a_failure_is_told_on_one_short_line_without_control_characters():
    line = trial_line(POLICY_ERROR, testing.history())

    assert line == "trial 3  x  (no configuration)  FAILED policy_error: line 1: [31mred"
    assert len(trial_line(FAILED, testing.history())) < 320


def test_a_phase_is_a_line_only_after_a_silence():
    out, now_s = io.StringIO(), [0.0]
    progress = PlainProgress(out, lambda: now_s[0])

    for now_s[0], phase in ((19.0, "setup"), (21.0, "warmup"), (30.0, "timed")):
        progress.phase(phase, 0)
    now_s[0] = 60.0
    progress.phase("done", None)

    assert out.getvalue() == "... trial 0: warmup\n... repeated launches: done\n"


def test_a_re_measuring_launch_without_a_step_time_is_told_as_measured():
    out = io.StringIO()
    outcome = replace(testing.measured(), metrics=())

    PlainProgress(out).repeat_finished(Repeat(series=2, round=1, ordinal=0, outcome=outcome))

    assert out.getvalue() == "trial 0 repeated to confirm, round 2: measured\n"


def test_a_program_gets_one_event_for_everything_that_happens():
    found = events(SEED, POLICY_ERROR)

    assert [event["event"] for event in found] == [
        "study_started",
        *("trial_started", "config_decided", "phase", "trial_finished"),
        *("trial_started", "trial_finished"),
        *("repeat_finished", "repeat_finished"),
    ]
    assert found[0] == {
        "event": "study_started",
        "study_id": "20260101-000000-aaaa",
        "name": "example",
        "objective": "step_time",
        "more_objectives": [],
        "limits": [],
        "strategy": "auto",
        "why": "strategy coordinate",
        "trials": 40,
    }
    assert found[3] == {"event": "phase", "phase": "timed", "ordinal": 0}


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
def test_rows_fit_the_terminal_and_break_no_setting(width):
    lines = rows(width, *TRIALS)
    words = " ".join(lines).split()

    assert max(map(len, lines)) <= width
    assert "\x1b" not in "".join(lines)
    if width >= 80:
        kinds = {"activation_checkpointing=selective", "out_of_memory", "policy_error"}
        assert kinds <= set(words)


def test_a_later_row_shows_its_difference_to_the_first_and_to_the_seed():
    lines = rows(120, SEED, FASTER)
    text = "\n".join(lines)

    assert text.count("activation_checkpointing=selective") == text.count("micro_batch=16") == 1
    assert "tp=1" in lines[-1]
    assert "2.00x" in lines[-1]
    assert "1*" in lines[-1]  # the best, without colour


def test_a_failure_takes_a_few_lines_however_long_its_message():
    assert len(rows(80, SEED, FAILED)) <= 9


def test_rows_printed_one_after_the_other_line_up():
    out = io.StringIO()
    console = Console(file=out, width=120)
    history = replace(testing.history(), trials=(SEED, FASTER))
    print_trials(console, (SEED,), history)
    print_trials(console, (FASTER,), history)

    first, second = (line for line in out.getvalue().splitlines() if " s  " in line)
    assert first.index("0.5 s") == second.index("0.25 s")


def test_the_terminal_shows_budget_best_failures_and_what_is_under_way():
    seconds = [0.0]
    with LiveProgress(screen(), testing.history(), clock=lambda: seconds[0]) as live:
        tell(live, *TRIALS)
        live.phase("timed", None)
        again = " ".join(footer(live))
        live.trial_started(4, FASTER.policy)
        live.config_decided(4, FASTER.config)
        live.phase("warmup", 4)
        seconds[0] = 125.0
        shown = " ".join(footer(live))

    assert "repeating · timed · trial 1 in round 1, to confirm" in again
    assert "trial 4 · warmup · tp=1" in shown
    assert "3 of 40 trials, 2 repeats, 2:05 min, best 0.25 s in trial 1, 1 out_of_memory" in shown


def runs(step, log=(), ordinal=None):
    """A launch that has begun a step."""
    return RunningLaunch(
        ordinal=ordinal, phase="timed", step=step, elapsed_s=31.4, log_name="job.log", log=log
    )


def test_the_terminal_shows_the_step_the_time_left_and_the_end_of_the_log():
    seconds, launches = [0.0], [runs(12, ("lost", "step 9", "step 10", "\x1b[31mstep 11"))]
    record = LaunchRecord(argv=("x",), reason="finished", wall_s=30.0)
    seed = replace(SEED, outcome=replace(SEED.outcome, launched=record))
    console = replace_height(screen(), 40)
    with LiveProgress(
        console, testing.history(), (), lambda: tuple(launches), clock=lambda: seconds[0]
    ) as live:
        tell(live, seed)
        live.trial_started(1, FASTER.policy)
        live.phase("timed", 1)
        seen = footer(live)
        launches[:] = [runs(13)]
        soon = " ".join(footer(live))
        seconds[0] = 2.0
        later = " ".join(footer(live))

    assert any("trial 1 · timed · step 12 of at most 23, 31 s" in line for line in seen)
    assert seen[-5:-2] == ["step 9", "step 10", "[31mstep 11"]
    assert (
        "about 20 min to 1 h 26 min left: 39 trials and up to 134 repeats at 30 s per launch"
        in later
    )
    assert "step 12 of" in soon  # one look a second is enough
    assert "step 13 of" in later


def test_a_low_terminal_shows_no_log():
    console = replace_height(screen(), 20)
    with LiveProgress(console, testing.history(), (), lambda: (runs(1, ("line",)),)) as live:
        tell(live, SEED)
        live.phase("timed", None)
        shown = footer(live)

    assert "line" not in shown


def test_the_terminal_shows_every_trial_that_is_under_way():
    with LiveProgress(screen(), testing.history()) as live:
        tell(live, SEED)
        for ordinal, config in (
            (1, FASTER.config),
            (3, replace(FASTER.config, values={**KNOBS, "micro_batch": 2})),
        ):
            live.trial_started(ordinal, FASTER.policy)
            live.config_decided(ordinal, config)
        live.phase("timed", 3)
        both = footer(live)
        live.trial_finished(replace(FASTER, ordinal=3), testing.history().append(SEED))
        one = " ".join(footer(live))

    assert any(line.endswith("trial 1 · starting · tp=1") for line in both)
    assert "trial 3 · timed · micro_batch=2" in both
    assert "trial 1 · starting" in one
    assert "trial 3" not in one


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
NOISE_WORDS = (
    "noise: rounds of equal launches differ by 5.1 % (standard deviation); 6 rounds show "
    "differences from 13.1 %"
)


def test_every_face_tells_the_noise_who_leads_after_a_race_and_notices():
    pipe, program, terminal = io.StringIO(), io.StringIO(), io.StringIO()
    history = replace(testing.history(), trials=(SEED, FASTER), incumbent=0)
    live = LiveProgress(screen(terminal), history)

    for observer in (PlainProgress(pipe), JsonProgress(program), live):
        observer.noise_measured(Noise(sd=0.0512, freedom=2), Measure(max_confirm_rounds=6))
        observer.race_decided(LOST)
        observer.race_decided(WON)
        observer.notice("no model is asked: set a key")

    words = "2.00x better (95 % interval 1.60x to 2.50x, 2 interleaved rounds)"
    for out in (pipe, terminal):
        said = " ".join(out.getvalue().split())
        assert NOISE_WORDS in said
        assert f"compared: trial 1 against trial 0: {words}" in said
        assert "undecided: no, so trial 0 leads" in said
        assert "NOTICE: no model is asked: set a key" in said
    noise, _, won, notice = [json.loads(line) for line in program.getvalue().splitlines()]
    assert noise.items() >= {"event": "noise_measured", "sd": 0.0512, "freedom": 2}.items()
    assert noise["detectable"] == pytest.approx(1.13130, abs=1e-4)
    assert (won["event"], won["challenger"]) == ("race_decided", 1)
    assert (won["comparison"]["verdict"], won["comparison"]["ratio"]) == ("fast", 0.5)
    assert notice == {"event": "notice", "words": "no model is asked: set a key"}


def test_a_resumed_search_shows_the_rows_on_record_first():
    out = io.StringIO()
    on_record = replace(testing.history(), trials=(SEED,))
    with LiveProgress(screen(out), on_record) as live:
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
