"""Runs that a tool appended to a workload card."""

import pytest

from records.errors import StudyError
from search.transfer.foreign_studies import BadRows
from search.transfer.importers import studies_of

HEAD = """\
description: a card
workload:
  model: {model_family: llama-3.1-8b}
  data: {batch_size: 4, seq_len: 512}
  hardware:
    xpu_spec: {type: GPU, model: generic, total_count: 4, count_per_node: 4}
"""
RUN = """\
- config: {tp: 4, dp: 1, pp: 1, compile_mode: null}
  metrics: {avg_step_time: 0.25}
  score: 0.25
  status: success
  error_msg: null
  policy: "def generate_config(workload, environment):\\n    return {'tp': 4}\\n"
"""


@pytest.fixture
def card(tmp_path):
    def write(runs, head=HEAD):
        path = tmp_path / "workload_card.yaml"
        path.write_text(f"{head}runs:\n{runs}", encoding="utf-8")
        return path

    return write


def read(path, *, skip=False):
    return list(studies_of(str(path), None, BadRows(skip=skip)))


def test_the_runs_of_a_card_become_a_study(card):
    (imported,) = read(card(RUN))

    (trial,) = imported.trials
    assert imported.study.name == "workload_card"
    assert imported.study.workload.tokens_per_step == 2048
    assert dict(trial.config.values) == {"dp": 1, "pp": 1, "tp": 4}  # null was not set
    assert trial.score.value == 0.25
    assert trial.outcome.metric("tokens_per_s") == 8192
    assert trial.policy.source.startswith("def generate_config")


def test_runs_may_share_a_table(card):
    shared = (
        "- {config: &plan {tp: 4}, score: 0.5, status: success}\n"
        "- {config: *plan, score: 0.6, status: success}\n"
    )

    (imported,) = read(card(shared))

    assert [trial.config["tp"] for trial in imported.trials] == [4, 4]


@pytest.mark.parametrize(
    "runs",
    [
        "- {config: !!python/object/apply:os.system ['touch ran'], status: success}\n",
        "- {config: !!python/tuple [1, 2], status: success}\n",
        "- &a [*a]\n",
        "- {config: &a {b: &b {c: 1}}, x: *a}\n",
        "- {config: 5, status: success}\n",
        "- {config: {tp: [1]}, status: success}\n",
        "- {config: {tp: .nan}, status: success}\n",
        "- 5\n",
        "5\n",
        "  {\n",
    ],
)
def test_a_card_that_is_none_is_refused_in_one_line(card, tmp_path, monkeypatch, runs):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(StudyError) as refused:
        read(card(runs))

    assert "\n" not in str(refused.value)
    assert "workload_card.yaml" in str(refused.value)
    assert not (tmp_path / "ran").exists()


def test_a_bad_run_can_be_left_out(card):
    bad = "- {config: {tp: [1]}, status: success}\n"

    (imported,) = read(card(RUN + bad), skip=True)

    assert len(imported.trials) == 1
    assert any("runs[1]" in note for note in imported.study.origin.notes)


def test_a_card_without_runs_says_what_to_give(tmp_path):
    path = tmp_path / "workload_card.yaml"
    path.write_text(HEAD, encoding="utf-8")

    with pytest.raises(StudyError, match="lists no runs; give the run folder"):
        read(path)
