"""`compare` on every kind of side: what it prints, what it refuses, and with which exit code."""

import json
from dataclasses import replace

import pytest

from evaluator.timing.screening.estimate import PRESETS, read_thresholds
from evaluator.timing.timing import LaunchTimes, Task, Timing
from records.codec import to_json
from records.store.rows import PendingTrial
from records.store.store import Store
from records.study import Measure
from records.trial import Repeat
from tests.support import records as testing
from tests.support.nvbench import benchmark, device, state, times, write_result

STUDY = "20260101-000000-aaaa"
MEASURE = Measure(margin=0.02, alpha=0.05, confirm_rounds=4, max_confirm_rounds=6)
STEADY = (1.0, 1.01, 0.99, 1.0, 1.005)
USUAL, FASTER = times(1.0, 1.001, 1.002, 1.003), times(0.8, 0.801, 0.802, 0.803)


@pytest.fixture
def store(tmp_path):
    """A study whose trials 0 and 1 took turns and whose trial 2 failed; gives its folder."""
    records = Store(tmp_path / "store")
    records.create(STUDY, replace(testing.study(), measure=MEASURE), "test")
    for trial in testing.history(0.5, 0.4, testing.failed()):
        intent = PendingTrial(
            ordinal=trial.ordinal, policy=trial.policy, started_at=trial.started_at, exchange=None
        )
        records.begin(STUDY, intent, None)
        records.finish(STUDY, trial)
    records.repeat(
        STUDY,
        *(
            Repeat(series=3, round=number, ordinal=ordinal, outcome=testing.measured(cost))
            for number, factor in enumerate(STEADY)
            for ordinal, cost in ((0, 0.5), (1, 0.4 * factor))
        ),
    )
    records.close()
    return records.root


@pytest.fixture
def files(tmp_path):
    """Writes two values as JSON; gives their files."""

    def write(a, b):
        paths = tmp_path / "a.json", tmp_path / "b.json"
        for path, value in zip(paths, (a, b), strict=True):
            path.write_text(value if isinstance(value, str) else to_json(value))
        return paths

    return write


@pytest.fixture
def benchmarks(tmp_path):
    """Writes two results of nvbench, of a state that became faster and one that did not."""
    paths = tmp_path / "ref.json", tmp_path / "cmp.json"
    for path, first in zip(paths, (USUAL, FASTER), strict=True):
        states = [state(first, {"T": "I32"}), state(USUAL, {"T": "F32"})]
        write_result(path, [benchmark("copy", states), benchmark("scan", states)])
    return paths


def timing(per_call_s, launches=STEADY, **names):
    """Ten blocks of two calls in every launch."""
    return Timing(
        task=Task(stmt="x + y", **names),
        number_per_run=2,
        launches=tuple(
            LaunchTimes(launch=str(number), raw_times_s=(2 * per_call_s * factor,) * 10)
            for number, factor in enumerate(launches)
        ),
    )


def test_people_are_told_who_is_who_then_the_verdict_then_the_evidence(cclsearch, store):
    ended = cclsearch("compare", "trial:0", "best", "--store", store)

    a, b = f"trial:{STUDY}:0", f"trial:{STUDY}:1"
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        f"A: {a}  n=0",
        f"B: {b}  n=1",
        "verdict: B is 1.25x faster than A (95 % interval 1.23x to 1.26x, 5 interleaved rounds)",
        "why: the whole interval is beyond the margin of 2.0 %",
        "",
        "step_time, lower is better",
        "    value  95 % interval         launches  steps",
        "A  500 ms  500 ms to 500 ms             5     25",
        "B  400 ms  396.7 ms to 404.1 ms         5     25",
        "",
        "A                                                             o",
        "B  |-o-|",
        "   396.7 ms                                              500 ms",
        "",
        "sensitivity: 6 rounds detect differences of 1.1 % in 80 % of cases; the ratio of a round "
        "varies by 0.74 %",
        "steps alone: B looks faster (the times lie 25 % apart; no clock rate was recorded that "
        "could confirm it); one launch of each, which proves nothing",
        f"next: cclsearch trace diff {a} {b} --store {store}",
    ]


def test_explaining_lists_the_rounds_and_being_brief_leaves_the_drawing_out(cclsearch, store):
    sides = ("compare", "trial:0", "trial:1", "--store", store, "--display")

    explained, brief = cclsearch(*sides, "explain").out, cclsearch(*sides, "simple").out

    assert "round             A       B  B over A\n" in explained
    assert "confirm 3 1  500 ms  404 ms     0.808\n" in explained
    assert "|-o-|" not in brief
    assert "verdict: B is 1.25x faster" in brief


def test_a_failed_side_has_no_value_but_a_reason(cclsearch, store):
    ended = cclsearch("compare", "trial:0", f"trial:{STUDY}:2", "--store", store)

    assert ended.code == 0
    assert ended.out.splitlines()[2:] == [
        "verdict: unknown, B failed: it broke",
        f"next: cclsearch trial show {STUDY} 2 --store {store}",
    ]


def test_two_stored_measurements_are_screened_and_prove_nothing(cclsearch, files):
    ended = cclsearch("compare", *files(testing.measured(0.5), testing.measured(0.4).measurement))

    assert ended.code == 0
    assert "verdict: undecided: B looks 1.25x faster than A\n" in ended.out
    assert "steps alone: B looks faster" in ended.out
    assert "next: cclsearch run --objective step_time\n" in ended.out


def test_a_trial_is_compared_with_one_that_was_printed_earlier(cclsearch, store, tmp_path):
    for ordinal in (0, 2):
        printed = cclsearch("trial", "show", ordinal, "--store", store, "--json").out
        (tmp_path / f"{ordinal}.json").write_text(printed)

    faster = cclsearch("compare", tmp_path / "0.json", "best", "--store", store)
    failed = cclsearch("compare", "best", tmp_path / "2.json", "--store", store)

    assert "verdict: undecided: B looks 1.25x faster than A\n" in faster.out
    assert f"B: trial:{STUDY}:1  n=1\n" in faster.out
    assert "verdict: unknown, B failed: it broke\n" in failed.out


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokens_per_step": 1}, "not_comparable:tokens_per_step"),
        ({"step_times_s": ((0.5,) * 5,)}, "not_comparable:rank_count"),
        ({"profiled": True}, "traced_samples"),
        ({"step_times_s": ((), ())}, "no_samples"),
        ({"step_times_s": ((0.0,), (0.0,))}, "bad_time"),
    ],
)
def test_stored_measurements_that_do_not_fit_are_unknown(cclsearch, files, changes, reason):
    usual = testing.measured().measurement

    ended = cclsearch("compare", *files(usual, replace(usual, **changes)), "--json")

    (found,) = json.loads(ended.out)["rows"]
    assert (found["verdict"], found["reason"]) == ("unknown", reason)


def test_timings_under_the_same_launch_names_are_rounds(cclsearch, files):
    sides = files(timing(1e-6, (1.0,) * 5, env="before"), timing(2e-6, env="after"))

    ended = cclsearch("compare", *sides, "--fail-on", "slow")

    assert ended.code == 3
    assert "verdict: B is 2.00x slower than A" in ended.out
    assert "time of a call of x + y before, lower is better\n" in ended.out


@pytest.mark.parametrize(("task_count", "code"), [(1, 3), (2, 5)])
def test_a_gate_over_timings_is_corrected_for_their_number(cclsearch, files, task_count, code):
    uneven = (1.0, 1.04, 0.97, 1.03, 0.98)
    steady = [timing(1e-6, (1.0,) * 5, label=name) for name in ("x", "y")[:task_count]]
    sides = [steady, [timing(1.06e-6, uneven, label="x"), *steady[1:]]]

    written = [json.dumps([json.loads(to_json(each)) for each in side]) for side in sides]
    ended = cclsearch("compare", *files(*written), "--fail-on", "slow")

    assert ended.code == code


def test_several_timings_are_joined_by_their_tasks(cclsearch, files):
    names = ("small", "large", "odd")
    a = [json.loads(to_json(timing(1e-6, label=name))) for name in names[:2]]
    b = [json.loads(to_json(timing(1e-6, (1.0,), label=name))) for name in names[1:]]

    found = json.loads(cclsearch("compare", *files(json.dumps(a), json.dumps(b)), "--json").out)

    assert [(each["name"], each["reason"]) for each in found["rows"]] == [
        ("large x + y", "too_few_rounds")
    ]
    assert (found["only_a"], found["only_b"]) == (["small x + y"], ["odd x + y"])


def test_results_of_nvbench_are_compared_state_by_state(cclsearch, benchmarks):
    ended = cclsearch("compare", *benchmarks)

    assert (ended.code, ended.err) == (0, "")
    assert "verdicts: 2 fast, 2 same\n" in ended.out
    assert cclsearch("compare", *reversed(benchmarks), "--fail-on", "slow").code == 3


def test_folders_of_nvbench_results_are_compared_by_name(cclsearch, benchmarks, tmp_path):
    for folder, result in zip(("old", "new"), benchmarks, strict=True):
        (tmp_path / folder).mkdir()
        result.rename(tmp_path / folder / "run.json")

    found = json.loads(cclsearch("compare", tmp_path / "old", tmp_path / "new", "--json").out)

    assert found["counts"]["fast"] == 2


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        (["-a", "T=I32"], [("copy", "I32"), ("scan", "I32")]),
        (["-b", "scan", "-a", "T=I32"], [("scan", "I32")]),
        (
            ["-b", "copy", "-b", "scan", "-a", "T=F32"],
            [("copy", "F32"), ("copy", "I32"), ("scan", "F32")],
        ),
        (["-a", "T=F32", "-b", "copy", "-b", "scan"], [("copy", "F32"), ("scan", "F32")]),
        (
            ["-b", "copy", "-a", "T=F32", "-b", "scan"],
            [("copy", "F32"), ("scan", "F32"), ("scan", "I32")],
        ),
    ],
)
def test_an_axis_belongs_to_the_benchmark_before_it(cclsearch, benchmarks, filters, kept):
    found = json.loads(cclsearch("compare", *filters, *benchmarks, "--json").out)

    rows = [(each["benchmark"], each["axes"]["T"]) for each in found["rows"]]
    assert sorted(rows) == kept


def test_devices_are_chosen_and_may_be_said_to_differ(cclsearch, tmp_path):
    results = tmp_path / "ref.json", tmp_path / "cmp.json"
    for path, name in zip(results, ("One", "Other"), strict=True):
        write_result(path, [benchmark("copy", [state(USUAL)])], [device(0, name)])

    refused = cclsearch("compare", *results)
    chosen = ("--reference-devices", "0", "--candidate-devices", "0")

    assert refused.code == 2
    assert "--ignore-devices" in refused.err
    assert cclsearch("compare", *results, "--ignore-devices").code == 0
    assert "devices differ in name" in cclsearch("compare", *results, *chosen).err


def test_a_program_that_loads_the_samples_is_written(cclsearch, benchmarks, tmp_path):
    cclsearch("compare", *benchmarks, "--bulk-script", tmp_path / "bulk.py")

    compile((tmp_path / "bulk.py").read_text(), "bulk.py", "exec")
    nowhere = cclsearch("compare", *benchmarks, "--bulk-script", tmp_path)
    assert (nowhere.code, nowhere.out) == (2, "")


def test_the_limits_for_single_launches_are_printed_without_any_side(cclsearch, tmp_path):
    ended = cclsearch("compare", "--dump-config", "--preset", "strict")
    (tmp_path / "strict.toml").write_text(ended.out)

    again = cclsearch("compare", "--dump-config", "--config", tmp_path / "strict.toml")

    assert read_thresholds(ended.out) == PRESETS["strict"]
    assert again.out == ended.out
