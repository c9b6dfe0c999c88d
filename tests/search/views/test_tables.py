"""Columns of text line up, fit the page and cannot be torn apart by what they hold."""

from search.views import terminal as tables
from search.views.terminal import TerminalColumn, number_column, table_lines


def test_columns_line_up_and_numbers_end_at_one_place():
    lines = table_lines(
        [TerminalColumn(heading="name", cells=["a", "bcd"]), number_column("n", ["1", "1000"])],
        width=80,
    )

    assert lines == ["name     n", "a        1", "bcd   1000"]


def test_a_yielding_column_is_cut_until_the_page_fits():
    lines = table_lines(
        [
            number_column("n", ["1"]),
            TerminalColumn(heading="name", cells=["kernel" * 30], yielding=True),
        ],
        width=40,
    )

    assert len(lines[1]) == 40
    assert lines[1].endswith("...")


def test_wide_characters_count_as_wide():
    lines = table_lines(
        [TerminalColumn(heading="name", cells=["核心", "ab"]), number_column("n", ["1", "2"])],
        width=80,
    )

    assert lines[1:] == ["核心  1", "ab    2"]


def test_control_characters_and_line_ends_are_no_part_of_a_cell():
    lines = table_lines([TerminalColumn(heading="name", cells=["a\nb\x1b[2J\tc"])], width=80)

    assert lines[1] == "a b [2J c"


def test_on_a_terminal_lines_break_between_words(monkeypatch, capsys):
    monkeypatch.setattr(tables, "on_terminal", lambda: True)
    monkeypatch.setattr(tables, "page_cells", lambda: 20)

    tables.echo_wrapped("why: launches_of_one_configuration_vary more than these two")
    tables.echo_wrapped("next: cclsearch trace diff trial:0 trial:1")

    assert capsys.readouterr().out.splitlines() == [
        "why:",
        "  launches_of_one_configuration_vary",
        "  more than these",
        "  two",
        "next: cclsearch trace diff trial:0 trial:1",
    ]
