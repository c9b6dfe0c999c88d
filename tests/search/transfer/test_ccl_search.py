"""Run folders of CCL-Search: what they become, and what is not believed."""

import csv
import io
import json
import math

import pytest

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
PLAN = {"tp": 4, "dp": 4, "pp": 1, "micro_batch": 2}


def ok(seconds, config=PLAN, **changes):
    metrics = json.dumps({"avg_step_time": seconds})
    row = {"config": json.dumps(config), "metrics": metrics, "score": seconds, "status": "success"}
    return row | changes


def failed(message, config=PLAN):
    return ok("inf", config, metrics="{}", status="error", error_msg=message)


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
    """A workload card."""
    path = tmp_path / "workload_card.yaml"
    path.write_text(HEAD, encoding="utf-8")
    return path


def read(path, card=None, *, skip=False):
    return list(studies_of(str(path), card, BadRows(skip=skip)))


def kinds(imported):
    outcomes = [trial.outcome for trial in imported.trials]
    return [o.kind if isinstance(o, Failed) else "measured" for o in outcomes]


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
    (imported,) = read(folder(ok(8.0)), card)
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
