"""`cclsearch trace`: what each view prints for people and programs, of folders and of trials."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from records.study import Command
from tests.support import records as testing

TRACES = Path(__file__).parents[2] / "data" / "traces"
SYNTHETIC, GLOO = TRACES / "synth_fsdp_4rank_straggler2", TRACES / "gloo_ddp_2rank"
VIEWS = ["breakdown", "collectives", "stragglers", "kernels", "operators"]
PARTS = ["compute_s", "exposed_communication_s", "exposed_copy_s", "fill_s", "idle_s"]


@pytest.fixture
def told(cclsearch):
    """Runs `cclsearch trace`; gives what is printed for programs."""

    def run(*arguments):
        ended = cclsearch("trace", *arguments, "--no-cache", "--json")
        assert (ended.code, ended.err) == (0, "")
        return json.loads(ended.out, parse_constant=pytest.fail)

    return run


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("folder", [SYNTHETIC, GLOO])
def test_a_view_for_people_fits_a_page(cclsearch, view, folder):
    ended = cclsearch("trace", view, folder, "--no-cache")

    lines = [line for line in ended.out.splitlines()[1:] if not line.startswith("caveat: ")]
    assert (ended.code, ended.err) == (0, "")
    assert len(lines) < 30
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("folder", [SYNTHETIC, GLOO])
def test_parts_of_steps_and_causes_of_idling_add_up(cclsearch, told, folder):
    facts = told("breakdown", folder)
    out = cclsearch("trace", "breakdown", folder, "--no-cache").out

    for row in [*facts["breakdown"], *facts["steps"]]:
        assert sum(row[part] for part in PARTS) == pytest.approx(row["window_s"], rel=1e-9)
    for row in facts["idle"]:
        causes = (row["kernel_wait_s"], row["sync_s"], row["host_wait_s"], row["other_s"])
        assert sum(causes) == pytest.approx(row["idle_s"], rel=1e-9)
    sum_line = next(line for line in out.splitlines() if line.startswith("ms:"))
    whole, parts = sum_line.removeprefix("ms:").split("=")
    added = sum(float(part.split()[0]) for part in parts.split("+"))
    assert added == pytest.approx(float(whole), rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("stragglers", SYNTHETIC), ["straggler: rank 2; the others wait for it"]),
        (("collectives", SYNTHETIC), ["all_gather          4  52 MB     60"]),
        (
            ("kernels", SYNTHETIC, "--top", "2"),
            [
                "ncclDevKernel_ReduceScatter",
                "11 more names with 57.4 % of the time; --json has all",
            ],
        ),
        (
            ("operators", GLOO, "--top", "3"),
            ["ms   3720  optimizer", ".../Sequential/Linear", "Optimizer.step#AdamW.step"],
        ),
        (("operators", SYNTHETIC), ["89.1 % compute  aten::mm"]),
        # Of one rank alone bandwidth is a lower bound, and no wait is known.
        (
            ("collectives", SYNTHETIC / "rank0_trace.json.gz"),
            ["≥ ", "caveat: 3 of 4 ranks left no trace", "GB/s       -  "],
        ),
    ],
)
def test_people_read_what_matters_first(cclsearch, arguments, words):
    out = cclsearch("trace", *arguments, "--no-cache").out

    assert [each for each in words if each not in out] == []


def test_programs_read_stragglers_and_all_collectives(told):
    waits, rows = told("stragglers", SYNTHETIC), told("collectives", SYNTHETIC)["collectives"]

    assert waits["straggler"] == 2
    assert waits["compute_max_over_min"] == pytest.approx(1.248, abs=0.001)
    assert len(rows) == 90
    assert {row["bytes"] for row in rows} == {52_000_000}


def test_each_table_attributes_all_work_exactly_once(told):
    facts, kernels = told("operators", GLOO), told("kernels", GLOO)["kernels"]
    total_s = sum(row["total_s"] for row in kernels)
    for table in ("phases", "operators", "modules", "ranges"):
        assert sum(row["total_s"] for row in facts[table]) == pytest.approx(total_s, rel=1e-9)
        assert sum(row["count"] for row in facts[table]) == sum(row["count"] for row in kernels)
        assert sum(row["share"] for row in facts[table]) == pytest.approx(1)


def test_for_traces_without_operators_the_user_is_told_what_records_them(cclsearch, told, tmp_path):
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "pid": 0, "tid": 7}
    path = tmp_path / "rank0_trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [kernel]}))

    assert "activities=[CPU, CUDA]" in cclsearch("trace", "operators", path, "--no-cache").out
    assert told("operators", path)["operators"] == []


def test_a_difference_is_sorted_by_its_effect_and_there_is_none_to_itself(told):
    facts, same = told("diff", SYNTHETIC, GLOO), told("diff", GLOO, GLOO)

    assert [part["name"] for part in facts["parts"]][:2] == ["window", "compute"]
    for section in ("kernels", "collectives"):
        effects = [abs(each["change_s"]) for each in facts[section]]
        assert effects == sorted(effects, reverse=True)
        assert {each["change_s"] for each in same[section]} == {0.0}
    window = facts["parts"][0]
    assert window["change_s"] == window["after"]["time_s"] - window["before"]["time_s"]


def test_plots_and_a_report_that_reaches_for_nothing_are_written(cclsearch, tmp_path):
    drawn = {name: tmp_path / f"{name}.svg" for name in ("parts", "overlap", "bandwidth")}

    cclsearch(
        *("trace", "breakdown", SYNTHETIC, "--no-cache"),
        *("--plot", drawn["parts"], "--timeline", drawn["overlap"]),
    )
    cclsearch("trace", "collectives", SYNTHETIC, "--no-cache", "--plot", drawn["bandwidth"])
    ended = cclsearch("trace", "report", SYNTHETIC, "--to", tmp_path / "r.html", "--no-cache")

    assert all(path.read_text().startswith("<svg xmlns") for path in drawn.values())
    assert (ended.code, ended.out) == (0, f"written: {tmp_path / 'r.html'}\n")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "straggler: rank 2; the others wait for it" in page  # what the terminal prints
    assert (page.count("<svg"), page.count("<script"), page.count("://")) == (3, 1, 0)
    assert "vectorized_elementwise_kernel&lt;" in page


def test_what_cannot_be_written_ends_with_4(cclsearch, tmp_path):
    for target in ("report", "breakdown"):
        option = "--to" if target == "report" else "--plot"
        ended = cclsearch("trace", target, GLOO, option, tmp_path / "no" / "file.svg", "--no-cache")

        assert ended.code == 4
        assert f"cannot write {tmp_path / 'no' / 'file.svg'}: " in ended.err


def test_the_traces_of_a_script_are_found_by_its_own_patterns(told, traced_store):
    command = Command(run=("bash", "run.sh"), trace_files=("*_trace.json.gz",))
    store = traced_store(replace(testing.study(), command=command), folder="trace/")

    assert len(told("breakdown", "trial:2026:0", "--store", store)["ranks"]) == 2


def test_a_trial_that_is_shown_says_how_to_look_into_its_traces(cclsearch, traced_store):
    store = traced_store()

    out = cclsearch("trial", "show", "0", "--store", store).out

    command = f"cclsearch trace breakdown trial:20260101-000000-aaaa:0 --store {store}"
    assert f"next: {command}\n" in out
    assert cclsearch(*command.split()[1:]).code == 0


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        ("trial:1", "trial 1 of study 20260101-000000-aaaa left no traces"),
        ("trial:7", "has no trial 7; it has 2"),
        ("trial:x", "write trial:3 or trial:STUDY:3"),
        ("trial:9:0", "no study '9'"),
        ("nowhere", "error: nowhere"),
    ],
)
def test_what_is_not_there_ends_with_2_and_says_so(cclsearch, traced_store, trace, words):
    ended = cclsearch("trace", "breakdown", trace, "--store", traced_store())

    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err


def test_names_in_traces_do_not_steer_the_terminal(cclsearch, tmp_path):
    event = '{"ph":"X","cat":"kernel","name":"%s","pid":0,"tid":7,"ts":%d,"dur":5,"args":{}}'
    name = "\\u001b[2J<script>[bold]"
    (tmp_path / "rank0.json").write_text(
        '{"deviceProperties":[{"id":0,"name":"\\u001b[2J"}],'
        f'"traceEvents":[{event % (name, 10)},{event % (name, 20)}]}}',
        encoding="utf-8",
    )

    for view in VIEWS:
        ended = cclsearch("trace", view, tmp_path, "--no-cache")
        assert ended.code == 0
        assert "\x1b" not in ended.out
    cclsearch("trace", "report", tmp_path, "--to", tmp_path / "r.html", "--no-cache")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<script>[bold]" not in page
    assert "\x1b" not in page


def test_every_recorded_trace_is_shown_or_refused(cclsearch, recorded_data):
    found = [
        path
        for folder in ("kineto", "xla", "nsys")
        for path in sorted((recorded_data / "traces" / folder).iterdir())
        if not path.name.startswith(".")
    ]

    for path in found:
        ended = cclsearch("trace", "collectives", path, "--no-cache", "--json")
        assert ended.code in {0, 2}, path
        assert ended.code == 0 or ended.err.startswith("error: "), path
        assert ended.err or json.loads(ended.out, parse_constant=pytest.fail)


def test_people_read_what_faster_links_and_no_straggler_would_bring(cclsearch, told):
    out = cclsearch("trace", "whatif", SYNTHETIC, "--no-cache").out
    facts = told("whatif", SYNTHETIC, "--no-straggler")

    assert "no straggler" in out
    assert "caveat: aligned clocks" in out
    assert [line for line in out.splitlines() if len(line) > 100] == []
    (answer,) = facts["answers"]
    assert facts["identity_error"] < 0.001
    assert answer["utility"] == pytest.approx(0.17, abs=0.01)
    assert answer["low_s"] <= answer["step_s"] <= answer["high_s"]


def test_people_read_how_throughput_grows_with_the_nodes(cclsearch, told):
    asked = ("whatif", SYNTHETIC, "--nodes", "8", "--ranks-per-node", "2")
    out = cclsearch("trace", *asked, "--no-cache").out
    (answer,) = told(*asked)["answers"]

    assert "with 8 nodes and the same work for each rank a step takes" in out
    assert "it does 4x the work, so throughput is" in out
    assert (answer["question"], answer["work"]) == ("8 nodes and the same work for each rank", 4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scale", "scale_out=2"), "add --ranks-per-node N"),
        (("--scale", "scale_out"), "write NAME=K with K above 0"),
        (("--scale", "gemv=2"), "no kernel has this in its name"),
        (("--slow", "9=2"), "rank 9 left no trace"),
        (("--nodes", "8"), "add --ranks-per-node N"),
    ],
)
def test_a_question_that_cannot_be_asked_says_what_to_do(cclsearch, options, words):
    ended = cclsearch("trace", "whatif", SYNTHETIC, "--no-cache", *options)

    assert ended.code == 2
    assert words in ended.err


def test_the_critical_path_stands_above_the_merged_trace(cclsearch, told, tmp_path):
    merged = tmp_path / "path.json"

    facts = told("critical-path", SYNTHETIC)
    ended = cclsearch("trace", "critical-path", SYNTHETIC, "--no-cache", "-o", merged)

    assert sum(facts["path_s"].values()) == pytest.approx(facts["step_s"], rel=0.01)
    assert ended.code == 0
    spans = json.loads(merged.read_text())["traceEvents"]
    above = [one for one in spans if one.get("cat") == "critical_path"]
    assert {one["pid"] for one in above} == {4}  # after the four ranks
