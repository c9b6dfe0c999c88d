"""Recorded searches in JSON lines: what they become, and what is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records.errors import StudyError
from records.trial import FailureKind
from search.transfer.foreign_studies import BadRows
from search.transfer.importers import studies_of

AIM = {"name": "avg_step_time", "direction": "minimize", "formula": "avg_step_time"}
COMPOSITE = {"name": "s", "direction": "maximize", "formula": "0.5*16/G + 0.5*0.44/T"}


def line(seconds=0.5, **changes):
    """A recorded launch of a search."""
    return {
        "search_id": "one",
        "framework": "megatron-lm",
        "workload": {
            "model": "llama-3.1-8b",
            "seq_len": 1024,
            "card_batch_size": 16,
            "actual_global_batch_rule": "dp*micro_batch_size",
        },
        "hardware": {"accelerator": "a100", "gpus_available": 16, "gpus_per_node": 4},
        "objective": AIM,
        "config": {"tp": 4, "dp": 1, "pp": 4},
        "metrics": {"avg_step_time": seconds},
        "score": seconds,
        "status": "success",
        "error_class": None,
        "inferred_cause": None,
        "inferred_why": None,
        "error_excerpt": None,
        "served_from_cache": False,
        "step_seconds": seconds,
        "tokens_per_second": None,
        "tokens_per_step": 1024,
        "activation_checkpointing_effective": False,
        "gpus_used": 16,
        **changes,
    }


@pytest.fixture
def lines(tmp_path):
    def write(*rows):
        path = tmp_path / "searches.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return path

    return write


def read(path, *, skip=False):
    return list(studies_of(str(path), None, BadRows(skip=skip)))


def test_many_searches_in_a_file_become_many_studies(lines):
    found = read(lines(line(), line(search_id="two"), line(0.4, config={"tp": 2})))

    assert [(one.study.name, len(one.trials)) for one in found] == [("one", 2), ("two", 1)]


def test_a_composite_score_becomes_an_objective_over_our_metrics(lines):
    row = line(0.22, objective=COMPOSITE, score=1.5, gpus_used=16)

    (imported,) = read(lines(row))

    assert imported.study.objective.expression == "0.5*16/gpus + 0.5*0.44/step_time"
    assert imported.trials[0].score.value == pytest.approx(1.5)
    assert imported.trials[0].outcome.metric("published_score") == 1.5


def test_a_formula_that_says_nothing_to_us_leaves_the_published_score(lines):
    aim = {"name": "s", "direction": "maximize", "formula": "quality(T)"}

    (imported,) = read(lines(line(objective=aim, score=3.0)))

    assert imported.study.objective.expression == "published_score"
    assert imported.trials[0].score.cost == -3.0


def test_what_was_served_from_a_cache_is_no_result(lines):
    (imported,) = read(lines(line(), line(served_from_cache=True)))

    assert imported.trials[1].outcome.kind is FailureKind.DUPLICATE
    assert "trial 0" in imported.trials[1].outcome.message


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
def test_a_class_of_failures_on_record_is_believed(lines, name, kind):
    row = line(status="error", score=None, step_seconds=None, error_class=name)

    (imported,) = read(lines(line(), {**row, "inferred_cause": "a guess"}))

    assert imported.trials[1].outcome.kind is kind
    assert "a guess" in imported.trials[1].outcome.message


def test_a_knob_that_did_nothing_is_named(lines):
    (imported,) = read(lines(line()))
    (other,) = read(lines(line(activation_checkpointing_effective=True)))

    assert imported.study.origin.dead_knobs == ("activation_checkpointing",)
    assert other.study.origin.dead_knobs == ()


def test_simulated_workloads_are_studies_of_their_own(lines):
    def simulated(batch, cycles):
        work = {"name": f"bs{batch}", "batch_size": batch, "seq_len": 1024}
        changes = {"workload": work, "wall_time_cycles": cycles, "iteration": 0}
        return {**line(), **changes}

    found = read(lines(simulated(32, 5e6), simulated(64, 9e6)))

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
