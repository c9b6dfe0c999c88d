"""The report as HTML: well formed, alone, and deaf to what its texts say."""

import re
from base64 import b64encode
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.views.document import (
    Code,
    Diff,
    Document,
    Facts,
    Paragraph,
    Section,
    Table,
    TableRow,
    code,
    number,
)
from search.views.html import printable, render_html
from tests.support.report import HOSTILE, read_page, unreachable_regions


def page_of(text):
    """A page that says this text in every place that takes one."""
    row = TableRow.of(text, code(text), number(1.5, text))
    blocks = (
        Paragraph(text=text),
        Facts(lines=((text, text), (text, text))),
        Table(about=text, headings=(text, text, text), rows=(row,)),
        Code(text=text, language="python"),
        Diff(lines=("--- a", "+++ b", *text.split("\n"))),
    )
    section = Section(name="one", heading=text, lead=text, blocks=blocks)
    return Document(title=text, lead=text, sections=(section,))


@pytest.fixture
def whole(reported):
    """The page of a study with all sections."""
    text = render_html(reported(40))
    return text, read_page(text)


def test_a_page_has_one_title_headings_and_links_to_ids_that_are_given_once(whole):
    _, page = whole

    assert [each.text for each in page.all("h1")] == [each.text for each in page.all("title")][:1]
    sections = list(page.all("section"))
    assert [len(list(section.all("h2"))) for section in sections] == [1] * len(sections)
    (contents,) = page.all("nav")
    links = [each.attributes["href"] for each in contents.all("a")]
    assert links == [f"#{section.attributes['id']}" for section in sections]
    named = [each.attributes["id"] for each in page.all() if "id" in each.attributes]
    assert {each.attributes["href"][1:] for each in page.all("a")} <= {*named}
    # The hatching stands in every chart that has some, the same each time.
    named = [name for name in named if name != "hatched"]
    assert len(named) == len(set(named)) > 40


def test_a_page_reaches_for_nothing_and_only_its_own_style_and_script_may_run(whole):
    text, page = whole
    reaching = {"src", "href", "action", "data", "srcset", "style"}
    targets = [
        each.attributes[name] for each in page.all() for name in reaching & {*each.attributes}
    ]
    policy = next(
        each.attributes["content"]
        for each in page.all("meta")
        if each.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))

    def only(name):
        (element,) = page.all(name)
        return f"'sha256-{b64encode(sha256(element.text.encode()).digest()).decode()}'"

    assert all(target.startswith("#") for target in targets)
    assert "://" not in text
    assert "@import" not in text
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {"#hatched"}
    assert (rules["script-src"], rules["style-src"]) == (only("script"), only("style"))
    assert {rules[name] for name in ("default-src", "base-uri", "form-action")} == {"'none'"}


def test_a_table_says_what_it_holds_and_heads_its_rows_and_columns(whole):
    _, page = whole
    tables = list(page.all("table"))

    assert len(tables) >= 6
    for table in tables:
        (caption,) = table.all("caption")
        (head,) = table.all("thead")
        (body,) = table.all("tbody")
        width = len(list(head.all("th")))
        assert caption.text
        assert all(each.attributes["scope"] == "col" for each in head.all("th"))
        assert {len(row.children) for row in body.children} == {width}
        assert {row.children[0].attributes.get("scope") for row in body.children} == {"row"}


def test_what_scrolls_is_reached_by_keys_and_named(whole):
    _, page = whole
    charts = list(page.all("svg"))

    assert len(charts) == 5
    assert all([part.name for part in chart.children[:2]] == ["title", "desc"] for chart in charts)
    assert all(chart.attributes["role"] == "group" for chart in charts)
    assert any(each.attributes.get("class") == "wide" for each in page.all())
    assert not unreachable_regions(page)


def test_hostile_names_policies_and_messages_are_text(reported):
    tame, hostile = (
        read_page(render_html(reported(20, words, name=words))) for words in ("x", HOSTILE)
    )

    def structure(page):
        return [each.name for each in page.find("trials").all()]

    assert structure(hostile) == structure(tame)
    for page in (tame, hostile):
        assert len(list(page.all("script"))) == 1
        assert not list(page.all("img"))
        assert not [n for each in page.all() for n in each.attributes if n.startswith("on")]
    assert next(hostile.all("h1")).text.startswith("</script><script>alert(1)")
    assert "<img src=x onerror=alert(2)>" in hostile.find("policy").text
    assert "<img src=x onerror=alert(2)>" in hostile.find("failures").text


@given(st.text(min_size=1))
def test_whatever_a_text_says_the_page_keeps_its_form(text):
    page, tame = read_page(render_html(page_of(text))), read_page(render_html(page_of("x")))

    def names(root, *without):
        return [each.name for each in root.all() if each.name not in without]

    # A difference has an element for each line, and a cell without text no code.
    assert names(page, "span", "code") == names(tame, "span", "code")
    (told,) = (paragraph for paragraph in page.find("one").children[2:3])
    assert told.text == printable(text).replace("\r", "\n")
    steering = [c for c in page.text if not c.isprintable() and c not in "\n\t"]
    assert not steering
