"""A recorded study in a notebook: its report, trials and charts."""

import html
import re

import pytest

import cclsearch
from records.errors import StudyError
from search.views.html import render_html

CHARTS = ("plot_history", "plot_front", "plot_parallel", "plot_importance", "plot_breakdown")


@pytest.fixture
def shown(reported, store):
    report = reported(30)
    return report, cclsearch.study(store=store.root)


def test_a_notebook_shows_the_report_of_a_study(shown):
    report, study = shown

    page = re.fullmatch(r'<iframe srcdoc="([^"]*)" .* sandbox></iframe>', study._repr_html_())
    assert html.unescape(page[1]).partition("<h2")[0] == render_html(report).partition("<h2")[0]
    assert len(study.trials()) == 30
    assert study.id in repr(study)


@pytest.mark.parametrize("plot", CHARTS)
def test_a_chart_is_shown_and_written(shown, tmp_path, plot):
    chart = getattr(shown[1], plot)(tmp_path / "chart.svg")

    assert chart._repr_svg_().startswith("<svg")
    assert (tmp_path / "chart.svg").read_text(encoding="utf-8").startswith("<svg")


def test_a_chart_without_data_says_why_there_is_none(reported, store):
    reported(2)

    with pytest.raises(StudyError, match="Too few trials to estimate importance"):
        cclsearch.study(store=store.root).plot_importance()
