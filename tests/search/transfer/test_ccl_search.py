"""Run folders, runs in cards and searches in JSON lines: what they become, what is not believed."""

import csv
import io
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records.errors import StudyError
from records.trial import Failed, FailureKind
from search.transfer.foreign_studies import BadRows
from search.transfer.importers import studies_of

COLUMNS = (
    *("iteration", "version", "config", "metrics", "score", "status", "error_msg", "best_score"),
    *("search_time_s", "policy"),
)
HEAD = """\
description: a card
workload:
  model: {model_family: llama-3.1-8b, phase: training, precision: bf16}
  data: {batch_size: 4, seq_len: 512}
  hardware:
    xpu_spec: {type: GPU, model: generic, total_count: 16, count_per_node: 4}
Model-executor: {framework: {name: torchtitan}}
"""
RUN = """\
- config: {tp: 4, dp: 1, pp: 1, compile_mode: null}
  metrics: {avg_step_time: 0.25}
  score: 0.25
  status: success
  error_msg: null
  policy: "def generate_config(workload, environment):\\n    return {'tp': 4}\\n"
"""
BAD_RUN = "- {config: {tp: [1]}, status: success}\n"
PLAN = {"tp": 4, "dp": 4, "pp": 1, "micro_batch": 2}
AIM = {"name": "avg_step_time", "direction": "minimize", "formula": "avg_step_time"}
COMPOSITE = {"name": "s", "direction": "maximize", "formula": "0.5*16/G + 0.5*0.44/T"}


def ok(seconds, config=PLAN, **changes):
    metrics = json.dumps({"avg_step_time": seconds})
    row = {"config": json.dumps(config), "metrics": metrics, "score": seconds, "status": "success"}
    return row | changes


def failed(message, config=PLAN):
    return ok("inf", config, metrics="{}", status="error", error_msg=message)


def line(seconds=0.5, **changes):
    """A recorded launch of a search."""
    work = {"model": "llama-3.1-8b", "seq_len": 1024, "card_batch_size": 16}
    return {
        "search_id": "one",
        "framework": "megatron-lm",
        "workload": {**work, "actual_global_batch_rule": "dp*micro_batch_size"},
        "hardware": {"accelerator": "a100", "gpus_available": 16, "gpus_per_node": 4},
        "objective": AIM,
        "config": {"tp": 4, "dp": 1, "pp": 4},
        "metrics": {"avg_step_time": seconds},
        "score": seconds,
        "status": "success",
        **dict.fromkeys(("error_class", "inferred_cause", "inferred_why", "error_excerpt")),
        "served_from_cache": False,
        "step_seconds": seconds,
        "tokens_per_second": None,
        "tokens_per_step": 1024,
        "activation_checkpointing_effective": False,
        "gpus_used": 16,
        **changes,
    }


@pytest.fixture
def folder(tmp_path):
    """Writes a run folder as the tool does; gives it."""

    def write(*rows, name="20260101_120000"):
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        text = io.StringIO()
        table = csv.DictWriter(text, COLUMNS, restval="")
        table.writeheader()
        table.writerows({"iteration": n, "version": n, **row} for n, row in enumerate(rows))
        (path / "results.csv").write_text(text.getvalue(), encoding="utf-8")
        return path

    return write


@pytest.fixture
def card(tmp_path):
    """Writes a workload card with runs; gives it."""

    def write(runs):
        path = tmp_path / "workload_card.yaml"
        path.write_text(f"{HEAD}runs:\n{runs}" if runs else HEAD, encoding="utf-8")
        return path

    return write


@pytest.fixture
def lines(tmp_path):
    """Writes recorded launches as JSON lines; gives the file."""

    def write(*rows):
        path = tmp_path / "searches.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return path

    return write


def read(path, card=None, *, skip=False):
    return list(studies_of(str(path), card, BadRows(skip=skip)))


def kinds(imported):
    outcomes = [trial.outcome for trial in imported.trials]
    return [o.kind if isinstance(o, Failed) else "measured" for o in outcomes]


# Run folders.


def test_a_table_becomes_a_study_with_its_step_times(folder):
    seconds = math.nextafter(8.0, 9.0)
    (imported,) = read(folder(ok(11.5), ok(seconds, {**PLAN, "tp": 2, "dp": 8})))
    first, second = imported.trials
    assert (first.score.value, second.score.value) == (11.5, seconds)
    assert first.outcome.measurement.imported
    assert first.outcome.measurement.slowest_rank_s == (11.5,)
    assert first.outcome.metric("rank_count") == 16
    assert {metric.version for metric in first.outcome.metrics} == {0}
    assert imported.study.objective.expression == "step_time"
    assert imported.study.origin.kind == "ccl-search"
    assert [d.name for d in imported.study.space.dimensions] == ["tp", "dp", "pp", "micro_batch"]
    assert imported.study.space.dimensions[0].choices == (2, 4)


def test_policies_in_the_table_or_in_files_become_policies_and_are_never_run(folder, tmp_path):
    program = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    path = folder(ok(9.0), ok(8.0, {"tp": 1}), ok(7.0, {"tp": 2}, policy=program))
    (path / "policies").mkdir()
    (path / "policies" / "generate_config_v1.py").write_text(program, encoding="utf-8")
    (imported,) = read(path)
    seed, *others = imported.trials
    assert [trial.policy.source for trial in others] == [program, program]
    assert "'tp': 4" in seed.policy.source  # it decides what is recorded, as its text is not
    assert [trial.policy.author for trial in imported.trials] == ["seed", *["ccl-search"] * 2]
    assert not (tmp_path / "ran").exists()


def test_a_policy_file_that_is_a_link_is_not_read(folder, tmp_path):
    path = folder(ok(9.0), ok(8.0, {**PLAN, "micro_batch": 4}))
    (tmp_path / "secret").write_text("private", encoding="utf-8")
    (path / "policies").mkdir()
    (path / "policies" / "generate_config_v1.py").symlink_to(tmp_path / "secret")
    assert "private" not in read(path)[0].trials[1].policy.source


@pytest.mark.parametrize("score", ["nan", "inf", "-inf", "-1", ""])
def test_a_success_without_a_score_is_a_failure_of_the_metric(folder, score):
    (imported,) = read(folder(ok(9.0), {**ok(8.0, {"tp": 1}), "score": score}))
    assert kinds(imported) == ["measured", FailureKind.METRIC_ERROR]
    assert imported.trials[1].score is None


def test_failures_are_told_apart_by_what_their_output_says(folder):
    late = "exit 1: slurmstepd: error: *** STEP 1.2 CANCELLED DUE TO TIME LIMIT ***"
    broken = "exit 1: \nTypeError: forward() missing\nsrun: error: nid1: task 0: Exited"
    texts = {
        "generate_config raised: 'name'": FailureKind.POLICY_ERROR,
        "exit 1: CUDA out of memory. Tried to allocate 2 GiB": FailureKind.OUT_OF_MEMORY,
        late: FailureKind.INFRASTRUCTURE,
        broken: FailureKind.CRASH,
        "exit 1: DistNetworkError: Connection was likely closed": FailureKind.CRASH,
        "": FailureKind.CRASH,
    }
    (imported,) = read(folder(*(failed(t, {"tp": n}) for n, t in enumerate(texts))))
    assert kinds(imported) == list(texts.values())
    assert imported.trials[-1].outcome.message == "no reason is recorded"


def test_the_same_result_of_the_same_configuration_is_a_cached_one(folder):
    again = failed("exit 1: Process 947260 got signal: 15", {"tp": 2})
    unknown = failed("generate_config raised: 'name'", {})
    (imported,) = read(folder(ok(9.0), again, ok(9.0), again, ok(9.1), unknown, unknown))
    assert kinds(imported) == [
        *("measured", FailureKind.CRASH, FailureKind.DUPLICATE, FailureKind.DUPLICATE, "measured"),
        *(FailureKind.POLICY_ERROR, FailureKind.POLICY_ERROR),
    ]
    assert imported.trials[2].outcome.message.startswith("the result of trial 0,")


def test_a_composite_score_is_kept_as_it_was_published(folder):
    low = ok(1.5, metrics='{"gpu_step_score": 1.5}', best_score=1.5)
    high = ok(2.5, {"tp": 1}, metrics='{"gpu_step_score": 2.5}', best_score=2.5)
    (imported,) = read(folder(low, high))
    assert imported.study.objective.expression == "published_score"
    assert imported.study.objective.direction == "maximize"
    assert [trial.score.cost for trial in imported.trials] == [-1.5, -2.5]


def test_a_card_tells_what_a_step_had_to_do(folder, card):
    (alone,) = read(folder(ok(8.0)))
    (imported,) = read(folder(ok(8.0)), card(""))
    assert imported.study.workload.tokens_per_step == 4 * 512
    assert imported.study.environment.world_size == 16
    assert imported.study.origin.framework == "torchtitan"
    assert imported.trials[0].outcome.metric("tokens_per_s") == 256
    assert not imported.trials[0].outcome.measurement.tokens_verified
    assert alone.trials[0].outcome.metric("tokens_per_s") is None
    assert any("--card" in note for note in alone.study.origin.notes)


def test_the_id_of_each_run_folder_says_what_it_was_and_follows_from_the_content(folder, tmp_path):
    folder(ok(9.0), name="b")
    folder(ok(8.0), name="a")
    first, second = read(tmp_path)
    assert [first.study.name, second.study.name] == ["a", "b"]
    assert [one.id for one in read(tmp_path)] == [first.id, second.id]
    assert first.id.startswith("a-")
    assert read(folder(ok(8.5), name="a"))[0].id != first.id


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**ok(9.0), "config": "{"}, "not JSON"),
        ({**ok(9.0), "config": "[" * 100_000}, "not JSON|recursion"),
        ({**ok(9.0), "config": '{"tp": [1]}'}, "tp"),
        ({**ok(9.0), "config": '{"tp": NaN}'}, "tp"),
        ({**ok(9.0), "config": '{"tp": 1000000, "dp": 1000000}'}, "ranks; a trial has"),
        ({**ok(9.0), "score": "fast"}, "'fast' is not a number"),
    ],
)
def test_a_bad_row_is_refused_with_file_and_line_or_left_out(folder, row, words):
    path = folder(ok(9.0), row, ok(8.0, {"tp": 8}))
    with pytest.raises(StudyError, match=rf"results\.csv:3: .*({words})"):
        read(path)
    (imported,) = read(path, skip=True)
    assert [trial.ordinal for trial in imported.trials] == [0, 1]
    assert any("results.csv:3" in note for note in imported.study.origin.notes)


@pytest.mark.parametrize("name", ["empty", "a.txt", "b.bin", "missing"])
def test_what_is_no_history_is_refused_in_one_line(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("hello", encoding="utf-8")
    (tmp_path / "b.bin").write_bytes(bytes(range(256)))
    with pytest.raises(StudyError) as refused:
        read(tmp_path / name)
    assert "\n" not in str(refused.value)
    assert name in str(refused.value)


# Runs that the tool appended to a workload card.


def test_the_runs_of_a_card_become_a_study(card):
    (imported,) = read(card(RUN))
    (trial,) = imported.trials
    assert imported.study.name == "workload_card"
    assert imported.study.workload.tokens_per_step == 2048
    assert dict(trial.config.values) == {"dp": 1, "pp": 1, "tp": 4}  # null was not set
    assert (trial.score.value, trial.outcome.metric("tokens_per_s")) == (0.25, 8192)
    assert trial.policy.source.startswith("def generate_config")


def test_runs_may_share_a_table_and_a_bad_one_can_be_left_out(card):
    shared = (
        "- {config: &plan {tp: 4}, score: 0.5, status: success}\n"
        "- {config: *plan, score: 0.6, status: success}\n"
    )
    (imported,) = read(card(shared + BAD_RUN), skip=True)
    assert [trial.config["tp"] for trial in imported.trials] == [4, 4]
    assert any("runs[2]" in note for note in imported.study.origin.notes)


@pytest.mark.parametrize(
    "runs",
    [
        "- {config: !!python/object/apply:os.system ['touch ran'], status: success}\n",
        "- {config: !!python/tuple [1, 2], status: success}\n",
        "- &a [*a]\n",
        "- {config: &a {b: &b {c: 1}}, x: *a}\n",
        "- {config: 5, status: success}\n",
        "- {config: {2026-01-01: 1}, status: success}\n",
        BAD_RUN,
        "- {config: {tp: .nan}, status: success}\n",
        "- 5\n",
        "5\n",
        "  {\n",
        "",
    ],
)
def test_a_card_that_is_none_is_refused_in_one_line(card, tmp_path, monkeypatch, runs):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StudyError) as refused:
        read(card(runs))
    assert "\n" not in str(refused.value)
    assert "workload_card.yaml" in str(refused.value)
    assert "lists no runs" in str(refused.value) or runs
    assert not (tmp_path / "ran").exists()


# Searches in JSON lines.


def test_many_searches_in_a_file_become_many_studies(lines):
    found = read(lines(line(), line(search_id="two"), line(0.4, config={"tp": 2})))
    assert [(one.study.name, len(one.trials)) for one in found] == [("one", 2), ("two", 1)]


@pytest.mark.parametrize(
    ("formula", "expression", "value"),
    [
        (COMPOSITE["formula"], "0.5*16/gpus + 0.5*0.44/step_time", 1.5),
        ("quality(T)", "published_score", 3.0),  # it says nothing to us
    ],
)
def test_a_formula_becomes_an_objective_over_our_metrics(lines, formula, expression, value):
    aim = {"name": "s", "direction": "maximize", "formula": formula}
    (imported,) = read(lines(line(0.22, objective=aim, score=value)))
    assert imported.study.objective.expression == expression
    assert imported.trials[0].score.cost == pytest.approx(-value)
    assert imported.trials[0].outcome.metric("published_score") == value


def test_what_was_served_from_a_cache_is_no_result(lines):
    outcome = read(lines(line(), line(served_from_cache=True)))[0].trials[1].outcome
    assert (outcome.kind, "trial 0" in outcome.message) == (FailureKind.DUPLICATE, True)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("infra_no_gpu", FailureKind.INFRASTRUCTURE),
        ("policy_exception", FailureKind.POLICY_ERROR),
        ("oom", FailureKind.OUT_OF_MEMORY),
        ("invalid_config", FailureKind.INVALID_CONFIG),
        ("child_exit_1_no_traceback", FailureKind.CRASH),
        ("sim_timeout", FailureKind.HANG),
    ],
)
def test_a_recorded_class_of_failures_is_believed(lines, name, kind):
    row = line(None, status="error", error_class=name, inferred_cause="a guess")
    outcome = read(lines(line(), row))[0].trials[1].outcome
    assert (outcome.kind, "a guess" in outcome.message) == (kind, True)


@pytest.mark.parametrize("effective", [True, False])
def test_a_knob_that_did_nothing_is_named(lines, effective):
    (imported,) = read(lines(line(activation_checkpointing_effective=effective)))
    assert imported.study.origin.dead_knobs == (() if effective else ("activation_checkpointing",))


def test_simulated_workloads_are_separate_studies(lines):
    works = [{"name": f"bs{batch}", "batch_size": batch, "seq_len": 1024} for batch in (32, 64)]
    found = read(lines(*(line(workload=w, wall_time_cycles=5e6, iteration=0) for w in works)))
    assert [one.study.name for one in found] == ["one bs32", "one bs64"]
    assert found[0].study.objective.expression == "published_score"
    assert found[0].trials[0].outcome.measurement.slowest_rank_s == ()  # cycles are no seconds


@pytest.mark.parametrize(
    "bad",
    [
        {"framework": 5},
        {"config": {"tp": None}},
        {"config": {"tp": {"a": 1}}},
        {"gpus_used": 10**9},
        {"tokens_per_step": -1},
        {"score": "fast"},
        {"config": {f"knob{n}": 1 for n in range(300)}},
        {"config": {"": 1}},
        {"config": {"tp": "x" * 5000}},
        {"config": {"tp": "\ud800"}},
        {"config": {"\ud800": 1}},
    ],
)
def test_a_bad_line_is_refused_with_its_number_or_left_out(lines, bad):
    path = lines(line(), line(**bad))
    with pytest.raises(StudyError, match=r"searches\.jsonl:2: "):
        read(path)
    (imported,) = read(path, skip=True)
    assert len(imported.trials) == 1
    assert any("searches.jsonl:2" in note for note in imported.study.origin.notes)


def test_a_workload_that_cannot_be_is_refused_with_the_file(lines):
    row = line(workload={"model": "m", "seq_len": 0, "card_batch_size": 16})
    with pytest.raises(StudyError, match=r"searches\.jsonl.*sequence_length is 0"):
        read(lines(row))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(max_examples=40)
@given(key=st.sampled_from(sorted(line())), value=ANYTHING)
def test_any_value_in_any_place_is_read_or_refused_in_one_line(tmp_path_factory, key, value):
    path = tmp_path_factory.mktemp("rows") / "searches.jsonl"
    path.write_text(f"{json.dumps(line())}\n{json.dumps({**line(), key: value})}\n")
    try:
        found = read(path)
    except StudyError as error:
        assert "\n" not in str(error)
    else:
        assert sum(len(one.trials) for one in found) == 2
