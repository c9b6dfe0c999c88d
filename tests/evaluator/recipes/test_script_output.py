"""What a script leaves, and reports by `cclsearch.steps()`: what of it is believed."""

import gzip
import re
import shutil
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.recipes.script_output import TraceFolder
from records.errors import StudyError, TraceError
from records.study import Measure, Objective
from records.trial import Config, FailureKind, Measured

UNPROFILED = Measure(timeout_s=30, warmup_steps=2, timed_steps=5, profiled_steps=0)
TIMES = "[[0.1, 0.2, 0.1, 0.2, 0.3], [0.2, 0.1, 0.1, 0.2, 0.1]]"
REPORT = f'steps \'{{"tokens_per_step": 256, "step_times_s": {TIMES}}}\''


# What a script leaves, read.


def test_a_script_is_measured_by_the_steps_that_it_reports(tried):
    measured = tried(f"{REPORT}; traces").outcome

    measurement = measured.measurement
    assert measurement.step_times_s == ((0.1, 0.2, 0.1, 0.2, 0.3), (0.2, 0.1, 0.1, 0.2, 0.1))
    assert measurement.tokens_per_step == 256
    assert (measurement.profiled, measurement.tokens_verified) == (False, True)
    assert measurement.caveats == ()
    assert measurement.torch_version is None
    assert measurement.peak_memory_bytes == ()
    assert measured.metric("step_time") == 0.2
    assert measured.metric("rank_count") == 2
    assert measured.metric("tokens_per_s") == pytest.approx(1280)
    assert measured.metric("communication_fraction") == pytest.approx(0.1)
    assert measured.breakdown.compute_s == pytest.approx(0.005)
    assert measured.metric("peak_memory") is None


def test_the_versions_of_the_job_are_those_that_it_reports(tried):
    stated = '{"versions": {"vllm": "0.32.0", "torch": "2.13.0"}}'
    measurement = tried(f"steps '{stated}'; traces").measurement

    assert measurement.versions == {"vllm": "0.32.0", "torch": "2.13.0"}
    assert measurement.torch_version == "2.13.0"


def test_losses_and_memory_are_taken_where_a_script_reports_them(tried):
    more = '"losses": [4, 3.5], "grad_norms": [2], "peak_memory_bytes": [1024, 2048]'
    measured = tried(f"steps '{{\"tokens_per_step\": 256, {more}}}'; traces").outcome

    measurement = measured.measurement
    assert (measurement.losses, measurement.grad_norms) == ((4.0, 3.5), (2.0,))
    assert measured.metric("peak_memory") == 2048
    assert (measurement.profiled, measurement.tokens_verified) == (True, True)


def test_without_a_report_profiled_steps_are_timed_and_the_measurement_says_so(tried):
    measurement = tried("traces").measurement

    assert measurement.step_times_s == ((0.02, 0.03), (0.02, 0.03))
    assert (measurement.profiled, measurement.tokens_verified) == (True, False)
    assert measurement.caveats == (
        "tokens per step declared, not verified",
        "timed in profiled steps, which the profiler slows down",
    )


def test_ranks_that_communicate_nothing_may_train_separately_which_the_measurement_says(tried):
    silent = tried(
        f"{REPORT}; traces; sed -i 's/gloo:all_reduce/mine/' $TRACE_DIR/rank*"
    ).measurement
    told = "the ranks communicated nothing in the traced steps, so they may train separately"

    assert silent.caveats == (told,)


def test_without_profiled_steps_no_trace_is_asked_for(tried, script_study):
    untraced = replace(script_study().measure, profiled_steps=0)

    assert tried(REPORT, measure=untraced).measurement.profiled is False
    assert tried("traces", measure=untraced).measurement.profiled is True


def test_traces_may_lie_deeper_and_be_packed(tried, script_study):
    script = (
        'mkdir -p "$TRACE_DIR/step_9"; traces; cd "$TRACE_DIR"; gzip rank?.json; mv rank* step_9'
    )

    found = tried(script, asked=script_study(trace_files=("**/*.json.gz",)))

    assert found.measurement.step_times_s == ((0.02, 0.03), (0.02, 0.03))


def test_the_one_rank_of_a_job_of_one_needs_no_number(tried):
    script = """
    trace 0 mine.json 1
    sed -i 's/"distributedInfo": {[^}]*}, //' "$TRACE_DIR/mine.json"
    """

    one = tried(script, config=Config({"dp": 1, "fast": True}))

    assert one.measurement.step_times_s == ((0.02, 0.03),)


@pytest.mark.parametrize("name", ["kineto_trace_{}.json", "x.rank-{}.pt.trace.json"])
def test_a_rank_may_be_told_by_the_name_of_its_file(name, tried):
    script = f"""
    for rank in 0 1; do
      trace $rank "{name.format("$rank")}"
      sed -i 's/"distributedInfo": {{[^}}]*}}, //' "$TRACE_DIR/{name.format("$rank")}"
    done
    """

    assert len(tried(script).measurement.step_times_s) == 2


def test_what_another_trial_left_is_out_of_reach(tried):
    assert isinstance(tried("traces").outcome, Measured)

    failed = tried('ls -A "$TRACE_DIR" > listing; pwd > place')

    assert failed.failure.message == (
        "the script ended with status 0 but left no trace: no *.json or *.json.gz or "
        "*.xplane.pb in TRACE_DIR; write `for batch in cclsearch.steps(batches)` in its training "
        "loop; or write a trace of each rank there; or steps.json with the step times, and set "
        "[measure] profiled_steps = 0; see docs/recipes.md"
    )
    assert (failed.folder / "listing").read_text() == ""
    assert (failed.folder / "place").read_text().strip() == str(failed.folder)


def times(*last: object) -> str:
    """A report of five steps of one rank, and of four and these of the other."""
    return f'{{"step_times_s": [[1, 1, 1, 1, 1], [1, 1, 1, 1, {", ".join(map(str, last))}]]}}'


def refused(failure, message: str, kind: str = "metric_error") -> bool:
    one_line = "\n" not in failure.message
    return (failure.message.startswith(message), failure.kind, one_line) == (True, kind, True)


NO_TRACE = "the script ended with status 0 but left no trace: no "
NO_STEP = "no step was timed: TRACE_DIR/steps.json gives no step_times_s, and no ProfilerStep "


@pytest.mark.parametrize(
    ("script", "message"),
    [
        # nothing, or not enough
        ("true", NO_TRACE),
        (REPORT, NO_TRACE),
        ('rmdir "$TRACE_DIR"', NO_TRACE),
        ('rmdir "$TRACE_DIR"; echo 1 > "$TRACE_DIR"', NO_TRACE),
        ("trace 0", "rank 1 left no trace in TRACE_DIR; there are traces of rank 0"),
        ("trace 0; trace 0 b.json", "trace/rank0.json: holds rank 0, and so does trace/b.json"),
        (
            "trace 0 a.json 4; trace 1 b.json 4",
            "the traces are of a job of 4 ranks, but [command] rank_count gives 2",
        ),
        ('traces; sed -i s/ProfilerStep/Step/ "$TRACE_DIR"/*', NO_STEP),
        ('traces; sed -i s/Step#/Step#1/ "$TRACE_DIR/rank1.json"', NO_STEP),
        ('traces; sed -i \'s/"dur": 20000/"dur": 0/\' "$TRACE_DIR/rank1.json"', NO_STEP),
        # no report
        ("head -c 9999 /dev/urandom > $TRACE_DIR/steps.json", "steps.json: "),
        (
            'truncate -s 17M "$TRACE_DIR/steps.json"',
            "steps.json: holds more than 16777216 bytes on disk",
        ),
        ('ln -s /dev/zero "$TRACE_DIR/steps.json"', "steps.json: is a link"),
        ('mkdir "$TRACE_DIR/steps.json"', "steps.json: is not a regular file"),
        # no traces
        (
            "trace 0; echo '{' > $TRACE_DIR/rank1.json",
            "trace/rank1.json: is JSON without trace events",
        ),
        (
            "traces; echo '{}' > $TRACE_DIR/notes.json",
            "trace/notes.json: is JSON without trace events",
        ),
        ("traces; truncate -s 3G $TRACE_DIR/rank0.json", "trace/rank0.json: holds more"),
        # traces of another trial
        (
            "traces; touch -d '1 hour ago' $TRACE_DIR/rank1.json",
            "trace/rank1.json: was written before this trial was launched",
        ),
        (
            "trace 0; trace 1 ../rank1.json; ln rank1.json $TRACE_DIR/",
            "trace/rank1.json: is also linked from elsewhere",
        ),
        (
            "trace 0; trace 1 ../rank1.json; ln -s $PWD/rank1.json $TRACE_DIR/rank1.json",
            "trace/rank1.json: is a link",
        ),
        (
            "traces; mv $TRACE_DIR elsewhere; ln -s $PWD/elsewhere $TRACE_DIR",
            "trace/rank0.json: TRACE_DIR was replaced by a link",
        ),
        ("trace 0; trace 1 rank1.json 2 60", "trace: the trace of rank 1 begins "),
    ],
)
def test_what_a_script_left_is_not_believed_unless_it_is_whole_and_its_own(script, message, tried):
    failure = tried(script).failure

    assert refused(failure, message), failure


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ('{"tokens_per_step": 256', "Input data was truncated"),
        ("", "Input data was truncated"),
        ("[]", "Expected `object`, got `array`"),
        ('{"tokens": 256}', "Object contains unknown"),
        ('{"tokens_per_step": 256.5}', "Expected `int"),
        ('{"step_times_s": [[1, 1, 1, 1, 1]]}', "step_times_s has 1 lists"),
        ('{"step_times_s": []}', "step_times_s has 0 lists"),
        ('{"step_times_s": [[1], [1]]}', "step_times_s has 1 steps, 5 "),
        (times(1, 1), "step_times_s has lists of different lengths"),
        (times(0), "step_times_s holds a time that is not above 0"),
        (times(-1), "step_times_s holds a time that is not above 0"),
        (times("NaN"), "JSON is malformed"),
        ('{"peak_memory_bytes": [1]}', "peak_memory_bytes must"),
        ('{"peak_memory_bytes": [1, -1]}', "peak_memory_bytes must"),
    ],
)
def test_a_report_that_says_something_else_is_refused(report, message, tried):
    failure = tried(f"steps '{report}'; traces").failure

    assert refused(failure, f"steps.json: {message}"), failure


ONE_LIST = '"step_times_s": [[0.1, 0.2, 0.1, 0.2, 0.3]]'
JAX = Path(__file__).parents[2] / "data/traces/xla/jax_cpu_4dev.trace.json.gz"
FOUR = Config({"dp": 4, "fast": True})


def test_one_process_that_drives_all_devices_gives_one_list_of_times(tried, script_study):
    script = f"steps '{{{ONE_LIST}}}'; cat {JAX} > $TRACE_DIR/vm.trace.json.gz"

    one_file = tried(script, asked=script_study(trace_files=("*.gz",)), config=FOUR)
    stated = tried(f"steps '{{{ONE_LIST}, \"device_count\": 4}}'", measure=UNPROFILED, config=FOUR)

    for measurement in (one_file.measurement, stated.measurement):
        assert measurement.step_times_s == ((0.1, 0.2, 0.1, 0.2, 0.3),) * 4


@pytest.mark.parametrize("more", ["", ', "device_count": 2'])
def test_one_list_of_a_job_that_may_have_more_processes_is_refused(more, tried):
    failure = tried(f"steps '{{{ONE_LIST}{more}}}'", measure=UNPROFILED, config=FOUR).failure

    assert refused(failure, "steps.json: step_times_s has 1 lists"), failure


def test_steps_of_one_process_that_drives_all_devices_are_those_of_the_job(tried):
    script = """
    cat > jax.py <<'PYTHON'
    process_count, device_count, live_arrays = lambda: 1, lambda: 4, list
    block_until_ready = lambda arrays: arrays
    PYTHON
    python -c 'import cclsearch, jax; [cclsearch.log(tokens=256) for _ in cclsearch.steps()]'
    """

    measurement = tried(textwrap.dedent(script), measure=UNPROFILED, config=FOUR).measurement

    assert [len(steps) for steps in measurement.step_times_s] == [5] * 4
    assert measurement.tokens_verified


def test_a_script_that_did_other_work_is_refused(tried):
    failure = tried("steps '{\"tokens_per_step\": 32}'; traces").failure

    message = "processed 32 tokens per step, the study asks for 256; trials must do the same work"
    assert refused(failure, message, "invalid_config"), failure


def test_a_study_without_a_length_is_told_the_one_that_the_script_has(tried, script_study):
    study = script_study()
    unset = replace(study, workload=replace(study.workload, global_batch=4, sequence_length=1))

    failure = tried("steps '{\"tokens_per_step\": 256}'; traces", asked=unset).failure

    assert "or set sequence_length = 64 in [workload] of the study file" in failure.message


def test_where_the_objective_counts_per_token_steps_may_do_other_work(tried, script_study):
    throughput = replace(script_study(), objective=Objective(expression="tokens_per_s"))
    report = f'steps \'{{"tokens_per_step": 32, "step_times_s": {TIMES}}}\''

    measured = tried(report, asked=throughput, measure=UNPROFILED).outcome

    assert measured.metric("tokens_per_s") == pytest.approx(32 / measured.metric("step_time"))
    assert measured.measurement.caveats == ("32 tokens per step, compared per token",)


def test_a_trace_on_a_clock_of_its_own_is_not_taken_for_an_old_one(tried):
    script = 'traces; sed -i -E \'s/"ts": [0-9]{9,10}/"ts": 1/\' $TRACE_DIR/rank?.json'

    assert isinstance(tried(script).outcome, Measured)


@pytest.mark.parametrize("script", ["exit 3", "no-such-program", "python -c 1/0"])
def test_a_script_that_says_it_failed_is_no_result_even_if_it_left_one(script, tried):
    failure = tried(f"{REPORT}; traces; {script}").failure

    assert failure.kind is FailureKind.CRASH


ABORT = "python -c 'import os; os.abort()'"


@pytest.mark.parametrize("script", ["kill -SEGV $$", f"exec {ABORT}", ABORT])
def test_finished_work_is_measured_although_the_job_died_while_it_ended(script, tried):
    measurement = tried(f"{REPORT}; traces; {script}").measurement

    assert measurement.slowest_rank_s == (0.2, 0.2, 0.1, 0.2, 0.3)
    (caveat,) = measurement.caveats
    assert caveat.startswith("the job failed while it ended, all steps done: the command ")


def test_finished_work_is_measured_although_torchrun_says_that_a_rank_died_at_its_end(tried):
    summary = """
======================================================
train.py FAILED
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : -6 (pid: 8875)
  traceback : Signal 6 (SIGABRT) received by PID 8875
======================================================
"""
    measurement = tried(f"{REPORT}; traces; echo '{summary}'; exit 1").measurement

    (caveat,) = measurement.caveats
    assert caveat == ("the job failed while it ended, all steps done: rank 1: died of SIGABRT")


def test_finished_work_is_measured_although_the_job_did_not_end(tried, script_study):
    measure = replace(script_study().measure, timeout_s=2)

    measurement = tried(f"{REPORT}; traces; sleep 60", measure=measure).measurement

    assert re.search(r"all steps done: no end after \d+ s", measurement.caveats[0])


@pytest.mark.parametrize(
    "left", [REPORT, f"{REPORT}; trace 0", "steps '{\"step_times_s\": [[1], [1]]}'; traces"]
)
def test_a_job_that_died_before_all_was_reported_is_a_crash(left, tried):
    assert tried(f"{left}; {ABORT}").failure.kind is FailureKind.CRASH


def test_a_script_that_will_not_end_is_ended_with_all_it_started(tried, script_study):
    script = """
    trap '' TERM
    (trap '' TERM; while :; do sleep 0.2; done) &
    echo $! > child; while :; do sleep 0.2; done
    """

    ended = tried(script, measure=replace(script_study().measure, timeout_s=3))

    assert ended.failure.kind is FailureKind.HANG
    child = int((ended.folder / "child").read_text())
    assert not Path(f"/proc/{child}").exists()


# Traces as frameworks write them.


@pytest.mark.parametrize("name", ["h100_bert_small", "mi250_minitoy", "mi300_sglang_decode"])
def test_traces_of_gpus_are_read_where_one_rank_ran(name, recorded_data, tmp_path):
    shutil.copy(recorded_data / f"traces/kineto/{name}.json.gz", tmp_path)

    traces = TraceFolder(path=tmp_path, launched_ns=0).traces(["*.gz"], 1)

    assert not isinstance(traces, str), traces
    assert traces.ranks[0].steps.number.size == 1


def test_a_rank_of_a_larger_job_is_not_taken_for_the_whole(recorded_data, tmp_path):
    shutil.copy(recorded_data / "traces/kineto/mi300_ddp8_rank0.json.gz", tmp_path)
    folder = TraceFolder(path=tmp_path, launched_ns=0)

    assert folder.traces(["*.gz"], 1).startswith("the traces are of a job of 8 ranks")
    assert folder.traces(["*.gz"], 8).startswith("rank 1, 2, 3, 4, 5, 6, 7 left no ")


def test_a_real_trace_of_the_past_is_refused(recorded_data, tmp_path):
    content = gzip.decompress((recorded_data / "traces/kineto/mi250_minitoy.json.gz").read_bytes())
    (tmp_path / "rank0.json").write_bytes(content)
    folder = TraceFolder(path=tmp_path, launched_ns=time.time_ns() - 10**9)

    with pytest.raises(TraceError, match=r"begins .* s before the launch: it is of an older"):
        folder.traces(["*.json"], 1)


# Step times that an unchanged script prints.

STEPS = "for n in 900 800 10 20 30 20 20; do echo step 7 took $n ms; done"
EXPRESSION = "took (?P<ms>[0-9.a-z]+) ms"


def test_an_unchanged_script_is_measured_by_the_step_times_that_it_prints(tried, script_study):
    measurement = tried(STEPS, asked=script_study(step_time=EXPRESSION)).measurement

    assert measurement.warmup_times_s == ((0.9, 0.8),) * 2
    assert measurement.step_times_s == (pytest.approx((0.01, 0.02, 0.03, 0.02, 0.02)),) * 2
    assert (measurement.printed, measurement.tokens_verified) == (True, False)
    assert "step times as the script printed them" in measurement.caveats


@pytest.mark.parametrize("printed", ["", "took none ms", "took 0 ms", "took nan ms", "took -1 ms"])
def test_a_script_that_prints_too_few_step_times_is_not_measured(tried, script_study, printed):
    lines = f"for n in 1 2 3 4 5 6; do echo took $n ms; done; echo '{printed}'"
    failure = tried(lines, asked=script_study(step_time=EXPRESSION)).failure

    assert failure.kind is FailureKind.METRIC_ERROR
    assert "found 6 step times" in failure.message


@pytest.mark.parametrize("expression", ["took ([0-9]+)", "took (?P<ms>[0-9]+", "(?P<s>.)(?P<ms>.)"])
def test_an_expression_for_step_times_names_one_unit(script_study, expression):
    with pytest.raises(StudyError, match=r"\[command\] step_time"):
        script_study(step_time=expression)


# Two ranks, as a launcher would start them.
RANKS = """
cat > train.py <<'PYTHON'
import os, time
import cclsearch
rank = int(os.environ["RANK"])
{body}
PYTHON
for rank in 0 1; do RANK=$rank python train.py & done
wait
"""


def two_ranks(body: str) -> str:
    return RANKS.format(body=textwrap.dedent(body).strip())


def test_the_steps_of_all_ranks_are_the_measurement(tried):
    script = two_ranks(
        """
        for step in cclsearch.steps():
            time.sleep(0.01)
            cclsearch.log(loss=rank + 4.0 - step, tokens=128)
        """
    )

    measurement = tried(script, measure=UNPROFILED).measurement

    assert [len(steps) for steps in measurement.step_times_s] == [5, 5]
    assert [len(steps) for steps in measurement.warmup_times_s] == [2, 2]
    assert min(min(steps) for steps in measurement.step_times_s) >= 0.01
    assert measurement.losses[:3] == (4.5, 3.5, 2.5)
    assert all(peak > 0 for peak in measurement.peak_memory_bytes)
    assert (measurement.profiled, measurement.tokens_verified) == (False, True)


def test_tokens_that_no_rank_logs_are_those_declared(tried):
    measurement = tried(
        two_ranks("for _ in cclsearch.steps(): pass"), measure=UNPROFILED
    ).measurement
    assert measurement.caveats == ("tokens per step declared, not verified",)


def test_torch_profiles_the_last_steps_and_its_version_is_recorded(tried):
    script = """
    cat > train.py <<'PYTHON'
    import cclsearch, os, torch
    where = f"file://{os.getcwd()}/meet"
    torch.distributed.init_process_group("gloo", where, rank=0, world_size=1)
    for _ in cclsearch.steps():
        torch.distributed.all_reduce(torch.ones(1000) @ torch.ones(1000))
    PYTHON
    RANK=0 python train.py
    """

    measured = tried(
        textwrap.dedent(script),
        config=Config({"dp": 1, "fast": True}),
        measure=Measure(timeout_s=240, timed_steps=5, profiled_steps=2),
    ).outcome

    assert measured.measurement.torch_version.startswith("2.")
    assert measured.breakdown is not None
    assert measured.metric("communication_fraction") > 0


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (
            "if rank == 0: list(cclsearch.steps())",
            "metric_error",
            "rank 1 reported no steps, although others did",
        ),
        (
            "for step in cclsearch.steps():\n    if step == 3: break",
            "metric_error",
            "rank 0: the loop over cclsearch.steps() ended after 3 of 7 steps",
        ),
        (
            "for step in cclsearch.steps(): cclsearch.log(tokens=100 + step)",
            "metric_error",
            "steps fed from 200 to 212 tokens",
        ),
        (
            "for step in cclsearch.steps(): cclsearch.log(tokens=100)",
            "invalid_config",
            "processed 200 tokens per step, the study asks for 256",
        ),
    ],
)
def test_steps_that_cannot_be_compared_fail(body, kind, message, tried):
    failure = tried(two_ranks(body), measure=UNPROFILED).failure
    assert (failure.kind, message in failure.message) == (kind, True), failure.message


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ("echo '{}' > $TRACE_DIR/steps/rank0.json", "steps/rank0.json: Object missing"),
        ("ln -s /dev/zero $TRACE_DIR/steps/rank0.json", "steps/rank0.json: is a link"),
    ],
)
def test_a_report_of_a_rank_is_read_as_a_stranger_s_file(report, message, tried):
    failure = tried(f"mkdir $TRACE_DIR/steps; {report}", measure=UNPROFILED).failure
    assert message in failure.message
