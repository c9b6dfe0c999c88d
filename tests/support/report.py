"""A page taken apart, for the tests of whatever writes one, and text that would break out of it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final

HOSTILE: Final = (
    "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    "|`*_[x](javascript:y) http://evil.example <!-- ]]> &lt; \x1b[2J\u202e"
)
VOID: Final = frozenset({"meta", "img", "input", "br", "link", "col", "wbr"})


@dataclass(eq=False)
class Element:
    """One element of a page, with the texts in it and in all that it holds."""

    name: str
    attributes: dict[str, str | None]
    parent: "Element | None" = None
    children: list["Element"] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.texts)

    def all(self, *names: str) -> Iterator["Element"]:
        """Every element within, or those of these names, in the order of the page."""
        for child in self.children:
            if not names or child.name in names:
                yield child
            yield from child.all(*names)

    def find(self, identity: str) -> "Element":
        """The one with this id."""
        (found,) = (each for each in self.all() if each.attributes.get("id") == identity)
        return found


def read_page(text: str) -> Element:
    """The page as elements; raises `ValueError` where it is not well formed."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    if reader.at is not reader.root:
        raise ValueError(f"<{reader.at.name}> is not closed")
    return reader.root


def unreachable_regions(page: Element) -> list[dict[str, str | None]]:
    """Regions that scroll sideways, but that no key reaches or no name announces."""
    ids = {each.attributes.get("id") for each in page.all()}
    regions = [
        each.attributes
        for each in page.all()
        if each.name == "pre" or "wide" in (each.attributes.get("class") or "").split()
    ]
    return [
        region
        for region in regions
        if region.get("tabindex") != "0"
        or not (region.get("aria-label") or region.get("aria-labelledby") in ids - {None})
        or region.get("role") not in ("group", "region")
    ]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = self.at = Element("page", {})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if len(dict(attrs)) < len(attrs):
            raise ValueError(f"<{tag}> repeats an attribute")
        element = Element(tag, dict(attrs), parent=self.at)
        self.at.children.append(element)
        if tag not in VOID:
            self.at = element

    def handle_endtag(self, tag: str) -> None:
        if tag != self.at.name or self.at.parent is None:
            raise ValueError(f"</{tag}> ends <{self.at.name}>")
        self.at = self.at.parent

    def handle_data(self, data: str) -> None:
        element: Element | None = self.at
        while element is not None:
            element.texts.append(data)
            element = element.parent

    def handle_comment(self, data: str) -> None:
        raise ValueError(f"a comment: {data}")
