"""Pages of the service taken apart, for the tests of what they show."""

from httpx2 import Client

from tests.support.report import Element, read_page, unreachable_regions

RUNS_SCRIPT = ("onerror", "onclick", "onload", "style")
"""Attributes that the policy of the pages forbids; a text that got out would have one."""


def get(client: Client, address: str, status: int = 200) -> Element:
    """A page that was answered with this status, is well formed, and holds nothing that runs."""
    answer = client.get(address, headers={"accept": "text/html"})
    assert answer.status_code == status, answer.text[:500]
    page = read_page(answer.text)
    for element in page.all():
        assert not set(RUNS_SCRIPT) & set(element.attributes), element.attributes
        assert element.name != "script" or element.attributes.get("src", "").startswith("/static/")
    assert not list(page.all("img"))
    assert not unreachable_regions(page)
    assert "\x1b" not in answer.text
    assert "\u202e" not in answer.text
    return page


def table(page: Element, caption: str) -> list[list[str]]:
    """The cells of the rows of the table whose caption begins so, without its headings."""
    found = next(
        each
        for each in page.all("table")
        if any(one.text.strip().startswith(caption) for one in each.all("caption"))
    )
    rows = [row for body in found.all("tbody") for row in body.children]
    return [[" ".join(cell.text.split()) for cell in row.children] for row in rows]


def links(page: Element) -> dict[str, str]:
    """Where links lead, by their words."""
    return {
        " ".join(each.text.split()): each.attributes.get("href") or "" for each in page.all("a")
    }
