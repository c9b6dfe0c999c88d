"""Entries of CCL-Bench: the card of what ran, and the rules that keep the rest out."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from records.study import Environment, Link
from records.trial import Config
from search.study.card_reader import looked_up
from search.transfer.ccl_bench import TEMPLATE, card_checks, card_of, nested, trial_checks
from tests.support import records as testing

GOLDEN = Path(__file__).parent / "golden" / "workload_card.yaml"
GIVEN = (
    *("--set", "contributor=A. Name", "--set", "contact=a@example.org"),
    *("--set", "workload.model.model_arch.num_params=1000"),
    *("--set", "workload.model.model_arch.num_params_embedding=100"),
    *("--set", "workload.model.model_arch.num_heads=4"),
    *("--set", "workload.model.model_arch.head_dim=16"),
    *("--set", "Model-executor.model_plan_parallelization.pp_mb=2"),
)


def faults(checks):
    return {name: broken for name, broken in checks.items() if broken}


@pytest.fixture
def card():
    return yaml.safe_load(GOLDEN.read_text())


@pytest.fixture
def entry(export):
    return partial(export, "entry", name="entry")


def test_an_entry_has_one_card_its_traces_and_its_record(entry, recorded, records_of, tmp_path):
    before = records_of(recorded.root)
    ended, folder = entry(*GIVEN)
    assert (ended.code, ended.err) == (0, "")
    assert (folder / "workload_card.yaml").read_text() == GOLDEN.read_text()
    assert sorted(path.name for path in folder.iterdir()) == [
        *("launch.sh", "rank0_trace.json", "rank1_trace.json", "record", "workload_card.yaml")
    ]
    assert (folder / "record" / "policy.py").read_text() == recorded.trials[0].policy.source
    assert json.loads((folder / "record" / "metrics.json").read_text())[0]["value"] == 0.25
    assert "--data" in (folder / "launch.sh").read_text()
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".entry")] == []
    assert records_of(recorded.root) == before


def test_what_breaks_a_rule_is_not_written(entry):
    ended, folder = entry()
    assert (ended.code, folder.exists()) == (2, False)
    assert "contributor is missing; give it with --set 'contributor=...'" in ended.err
    assert entry("--incomplete")[0].code == 0
    told = json.loads((folder / "record" / "checks.json").read_text())
    assert "contributor" in told["schema"][0] and told["plan"] == []


def test_checking_only_writes_nothing(entry):
    ended, folder = entry("--check-only")
    assert (ended.code, "plan         ok" in ended.out, folder.exists()) == (3, True, False)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("workload.data.batch_size=1", "the record says 16"),
        ("workload.data.batch=1", "no such field"),
        ("workload.model.model_arch.num_params=many", "not a whole number"),
        ("contributor", "FIELD=VALUE"),
    ],
)
def test_what_the_record_tells_cannot_be_set_otherwise(entry, field, words):
    ended, _ = entry("--set", field)
    assert (ended.code, words in ended.err) == (2, True)


def test_a_folder_of_others_is_never_replaced(entry, tmp_path):
    thesis = tmp_path / "entry" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("mine")
    assert [entry(*GIVEN, *options)[0].code for options in ((), ("--force",))] == [2, 2]
    assert thesis.read_text() == "mine"
    thesis.unlink()
    assert [entry(*GIVEN, *options)[0].code for options in ((), ("--force",))] == [0, 0]


@pytest.mark.parametrize(
    ("trial", "why"), [("1", "the trial failed"), ("all", "an entry holds one trial")]
)
def test_an_entry_is_of_one_trial_that_was_measured(entry, trial, why):
    ended, folder = entry(*GIVEN[:4], "--trial", trial)
    assert (ended.code, folder.exists(), why in ended.err) == (2, False, True)


def test_every_field_of_the_template_is_there_and_no_other(card):
    assert faults(card_checks(card)) == {}
    assert set(nested({})) == set(card)
    for field in TEMPLATE:
        if field.needed:
            assert looked_up(card, field.path) is not None


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        ("workload.model.moe", "yes", "schema"),
        ("workload.model.phase", "dreaming", "schema"),
        ("workload.extra", 1, "schema"),
        ("contact", None, "schema"),
        ("workload.model.iteration", 4, "protocol"),
        ("workload.hardware.driver_version", "TBD", "environment"),
        ("workload.hardware.network_topo.bandwidth_gbps", ["N/A", "N/A"], "schema"),
        ("workload.hardware.xpu_spec.count_per_node", 1, "environment"),
        ("Model-executor.model_plan_parallelization.tp", 4, "plan"),
        ("Model-executor.model_plan_parallelization", None, "plan"),
    ],
)
def test_a_card_that_breaks_a_rule_is_told_which(path, value, rule, card):
    *folders, name = path.split(".")
    place = card
    for folder in folders:
        place = place[folder]
    place[name] = value
    assert rule in faults(card_checks(card))


def test_inference_takes_answers_of_some_length(card):
    card["workload"]["model"]["phase"] = "inference"
    assert "output_len is N/A" in faults(card_checks(card))["protocol"][0]
    card["workload"]["data"]["output_len"] = 128
    assert faults(card_checks(card)) == {}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"step_times_s": ((0.1,) * 4,)}, "steps"),
        ({"warmup_times_s": ((),)}, "steps"),
        ({"imported": True}, "steps"),
        ({"profiled": True}, "steps"),
        ({"tokens_verified": False}, "tokens"),
        ({"tokens_per_step": 7}, "tokens"),
    ],
)
def test_a_trial_that_breaks_a_rule_is_told_which(changes, rule):
    measured = testing.measured()
    sample = replace(measured.measurement, **changes)
    trial = replace(testing.trial(0, 0.5), outcome=replace(measured, measurement=sample))
    assert rule in faults(trial_checks(testing.study(), trial, 2))


def test_traces_of_fewer_ranks_are_told():
    checks = trial_checks(testing.study(), testing.trial(0, 0.5), 1)
    assert "1 traces of 2 ranks" in faults(checks)["traces"][0]


def test_several_nodes_need_both_bandwidths_in_the_templates_order():
    environment = Environment(
        name="x", device="cuda", accelerator="nvidia_h100", world_size=8, ranks_per_node=1,
        scale_up=Link(bandwidth_bytes_per_s=3e11), scale_out=Link(bandwidth_bytes_per_s=5e10),
    )  # fmt: skip
    study = replace(testing.study(), environment=environment)
    trial = replace(testing.trial(0, 0.5), config=Config({"dp": 2, "micro_batch_size": 4}))
    card = card_of(study, trial, "s", None, {})
    assert looked_up(card, "workload.hardware.network_topo.bandwidth_gbps") == [400, 2400]
    plan = looked_up(card, "Model-executor.model_plan_parallelization")
    assert (plan["dp_replicate"], plan["pp_mb"], plan["tp"]) == (2, 4, 1)
