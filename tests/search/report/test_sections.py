"""What a report says of studies of every kind, as HTML and as Markdown alike."""

import re
import shlex
from dataclasses import replace
from itertools import chain

import pytest

from records.study import Context, Objective, Origin
from records.trial import Config, MetricValue
from search.cli.main import COMMANDS, loaded
from search.report.report import study_report
from search.views.document import Chart, Code, Diff, Facts, Paragraph, Table, thin
from search.views.html import render_html
from search.views.markdown import render_markdown
from tests.support import records as testing
from tests.support.report import HOSTILE, read_page

ALL = (
    *("study", "best", "history", "front", "knobs", "importance", "time", "trials", "failures"),
    *("cost", "policy", "reproduce"),
)


def section(page, name):
    return next(each for each in page.sections if each.name == name)


def names(page):
    return tuple(each.name for each in page.sections)


def tables(page, name):
    return [block for block in section(page, name).blocks if isinstance(block, Table)]


def facts(page, name):
    return [
        line
        for block in section(page, name).blocks
        if isinstance(block, Facts)
        for line in block.lines
    ]


def texts(page):
    """Everything a page says in words."""
    for each in page.sections:
        yield from (each.heading, each.lead)
        for block in each.blocks:
            match block:
                case Paragraph(text=text) | Chart(about=text):
                    yield text
                case Code(text=text):
                    yield from text.splitlines()
                case Diff(lines=lines):
                    yield from lines
                case Facts(lines=lines):
                    yield from chain(*lines)
                case Table():
                    yield from block.headings
                    yield from (cell.text for row in block.rows for cell in row.cells)


def told(text):
    """Markdown without its marks."""
    unescaped = re.sub(r"\\([^A-Za-z0-9\s])", r"\1", text)
    return " ".join(unescaped.replace("`", "").split())


@pytest.mark.parametrize("words", ["because", HOSTILE])
def test_both_forms_tell_the_same_in_every_section(reported, words):
    page = reported(40, words)
    assert names(page) == ALL

    html, markdown = read_page(render_html(page)).text, told(render_markdown(page))
    plain = " ".join(html.split())
    for text in texts(page):
        shown = " ".join(re.sub("[\x1b\u202e]", "\N{REPLACEMENT CHARACTER}", text).split())
        assert shown in plain
        assert told(shown) in markdown


def test_a_row_of_markdown_has_the_columns_of_its_table(reported):
    text = render_markdown(reported(12, HOSTILE))

    found = re.findall(r"(?:^\| .*\n)+", text, re.M)
    widths = [
        {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()} for table in found
    ]
    assert len(found) > 6
    assert [len(each) for each in widths] == [1] * len(found)
    assert "<" not in re.sub(r"^(`{3,})\w*\n.*?^\1$", "", text, flags=re.S | re.M).replace(
        r"\<", ""
    )


def test_a_study_without_a_trial_says_so(reported):
    page = reported(0)

    assert names(page) == ("study", "best", "trials", "cost", "reproduce")
    assert section(page, "best").lead == "No trial has ended yet."


def test_a_study_of_failures_alone_has_causes_and_no_chart(store):
    failures = tuple(
        replace(
            testing.trial(n, testing.failed(message=f"cause {n % 2}")), config=Config({"tp": 1})
        )
        for n in range(5)
    )
    store.add_study("failed", testing.study(), "test", failures)
    page = study_report(store.find("failed"), store, "")

    assert not [b for each in page.sections for b in each.blocks if isinstance(b, Chart)]
    (table,) = tables(page, "failures")
    assert [row.cells[1].text for row in table.rows] == ["3", "2"]
    assert [row.cells[4].text for row in table.rows] == ["cause 0", "cause 1"]
    assert "no configuration could be measured" in page.lead


def test_a_search_under_way_has_a_report_of_what_there_is(store):
    store.create("running", testing.study(), "test")
    with store.lock("running"):
        for ordinal, time_s in ((0, 0.5), (2, 0.25)):
            store.finish("running", testing.trial(ordinal, time_s, {"tp": ordinal or 1, "pp": 1}))
        page = study_report(store.find("running"), store, "")
    stopped = study_report(store.find("running"), store, "")

    assert page.lead.startswith("Trial 2 leads so far: step_time 0.25 s")
    assert "still running" in page.lead
    assert "was interrupted" in stopped.lead
    assert "cclsearch resume running" in render_markdown(stopped)
    assert "cclsearch resume running" not in render_markdown(page)


def test_several_objectives_have_a_front_and_a_chart_for_each_pair_with_the_main_one(reported):
    memory = Objective(expression="peak_memory")
    speed = Objective(expression="1/step_time", direction="maximize")
    two, three = (
        reported(20, more_objectives=(memory,)),
        reported(20, more_objectives=(memory, speed)),
    )

    (front,) = tables(two, "front")
    assert section(two, "front").heading == "Pareto front"
    assert len(front.rows) > 1
    assert front.headings == ("trial", "step_time (s)", "peak_memory (bytes)", "sets")
    assert sum(isinstance(block, Chart) for block in section(three, "front").blocks) == 2


def test_an_expression_a_limit_and_a_context_are_told(reported):
    large = Context(
        name="large",
        workload=replace(testing.WORKLOAD, global_batch=64),
        environment=testing.ENVIRONMENT,
        held_out=True,
    )
    page = reported(
        12,
        objective=Objective(expression="0.5*step_time/step_time@seed + 0.5*step_time"),
        limits=("peak_memory < 2 GiB",),
        contexts=(large,),
    )

    told = facts(page, "study")
    assert ("limit", "peak_memory < 2 GiB") in told
    words = dict(told)["also in context"]
    assert words.startswith("large: decoder: training in fp32, global batch 64")
    assert words.endswith("held out until the end")
    assert any(
        cell.text.endswith("GiB") for row in tables(page, "trials")[0].rows for cell in row.cells
    )


def test_what_faster_hardware_would_bring_is_said_where_the_best_has_it(store):
    slow, fast = (
        testing.trial(0, 0.5, {"tp": 1, "pp": 1}),
        testing.trial(1, 0.25, {"tp": 2, "pp": 1}),
    )
    utilities = [
        MetricValue(name=name, value=value, unit="fraction", better="higher", version=1)
        for name, value in (("utility_communication", 0.02), ("utility_no_straggler", 0.175))
    ]
    outcome = replace(fast.outcome, metrics=(*fast.outcome.metrics, *utilities))
    store.add_study("traced", testing.study(), "test", (slow, replace(fast, outcome=outcome)))

    page = study_report(store.find("traced"), store, "")

    (table,) = tables(page, "faster")
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["no straggler", "17.5 %"],
        ["all links of twice the bandwidth", "2.0 %"],
    ]
    assert "`cclsearch trace whatif trial:traced:1`" in section(page, "faster").lead


def test_a_study_from_elsewhere_tells_where_and_offers_no_search(reported):
    origin = Origin(
        kind="jsonl",
        source="histories.jsonl",
        notes=("Units were taken for granted.",),
    )
    page = reported(24, origin=origin)

    assert ("imported from", "histories.jsonl (jsonl)") in facts(page, "study")
    assert ("assumed", "Units were taken for granted.") in facts(page, "study")
    assert "cclsearch replay" not in render_markdown(page)


def test_every_command_in_a_report_can_be_typed(reported):
    commands = dict(_commands({name: loaded(name) for name in COMMANDS}))
    (table,) = (t for t in tables(reported(12), "reproduce") if t.about == "Commands")

    for row in table.rows:
        words = shlex.split(row.cells[1].text)[1:]
        name = next(" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in commands)
        with commands[name].make_context(name, words[len(name.split()) :]) as context:
            assert context.params["study_id" if "study_id" in context.params else "which"]


def _commands(named, prefix=()):
    for name, command in named.items():
        if hasattr(command, "commands"):
            yield from _commands(command.commands, (*prefix, name))
        else:
            yield " ".join((*prefix, name)), command


def test_a_thousand_trials_stay_a_small_page(reported):
    page = reported(1000)
    text = render_html(page)

    assert len(text) < 2_000_000
    assert len(tables(page, "trials")[0].rows) == 1000
    assert len(re.findall("<polyline", text)) <= 310
    assert re.search(r"\d+ of 1000 are left out", section(page, "knobs").lead)
    assert "of 889 trials are shown" in section(page, "time").lead


def test_marks_are_thinned_out_but_for_those_that_count():
    kept = thin(range(10_000), lambda n: n in {3, 9_999}, 100)

    assert len(kept) == 102
    assert {3, 9_999} <= set(kept)
    assert kept == sorted(kept)
    assert thin([1, 2, 3], lambda _: False, 3) == [1, 2, 3]
