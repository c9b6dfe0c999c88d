"""Every error text of the recorded searches; needs the recorded data, which is not ours to keep."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from evaluator.failures.logs import read_log
from policies.space import Space
from records.study import Constraint, Dimension, SearchSpace
from records.trial import Config
from tests.support.records import ENVIRONMENT, WORKLOAD

KINDS = {
    "infra_no_gpu": "infrastructure",
    "infra_slurm_step": "infrastructure",
    "infra_time_limit": "infrastructure",
    "policy_exception": "policy_error",
    "oom": "out_of_memory",
    "framework_crash": "crash",
    "framework_incompat": "crash",
    "run_script_bug": "crash",
}
"""Our kind for each label that was given with certainty."""

REFUSED_BEFORE_LAUNCH = "invalid_config"
"""A label that follows from the configuration alone: its texts tell only that ranks ended."""

BATCH = Constraint(
    name="batch",
    expression="global_batch % (dp * micro_batch_size) == 0",
    reason="the batch is divided evenly",
)


@pytest.fixture(scope="module")
def rows(recorded_data):
    lines = (
        line
        for path in sorted(recorded_data.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    )
    return [row for line in lines if (row := json.loads(line)).get("error_excerpt")]


def test_every_recorded_error_is_classified_as_it_is_labelled(rows):
    kinds = {row["error_excerpt"]: read_log(row["error_excerpt"]) for row in rows}
    labelled = [row for row in rows if row["inferred_cause"] in KINDS]
    disagreeing = Counter(
        (row["inferred_cause"], row["error_excerpt"])
        for row in labelled
        if kinds[row["error_excerpt"]].kind != KINDS[row["inferred_cause"]]
    )

    assert (len(rows), len(labelled)) == (96, 47)
    assert None not in kinds.values()
    assert disagreeing == Counter()
    others = {row["inferred_cause"] for row in rows} - KINDS.keys()
    assert others == {"unknown", "oom_likely", REFUSED_BEFORE_LAUNCH}


def test_configurations_that_were_labelled_invalid_are_refused_before_they_are_launched(rows):
    invalid = [row for row in rows if row["inferred_cause"] == REFUSED_BEFORE_LAUNCH]

    kept = [row["config"] for row in invalid if not refusals(row)]

    assert len(invalid) == 6
    assert kept == []


def refusals(row):
    config = row["config"]
    dimensions = tuple(Dimension(name=name, choices=(value,)) for name, value in config.items())
    workload = replace(WORKLOAD, global_batch=row["workload"]["card_batch_size"])
    space = SearchSpace(dimensions=dimensions, constraints=(BATCH,))
    return Space(space, workload, ENVIRONMENT).violations(Config(config))
