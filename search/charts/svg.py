"""The letters of a chart: escaped elements, words, marks that tell what they stand for."""

from html import escape
from typing import Final, TypeAlias

from search.words.trial import one_line

Attribute: TypeAlias = str | float | None

TIP_CHARS: Final = 400
TITLE_CHARS: Final = 200


def element(name: str, *children: str, **attributes: Attribute) -> str:
    """One element; `_` in the name of an attribute stands for `-`, one that is None is left out."""
    told = "".join(
        f' {key.strip("_").replace("_", "-")}="{escape(_spelled(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{told}>{''.join(children)}</{name}>"


def words(
    x: float, y: float, text: str, *, anchor: str = "start", kind: str = "label", chars: int = 40
) -> str:
    """A short text, cut to so many characters, placed by its baseline."""
    told = escape(one_line(text, chars))
    return element("text", told, class_=kind, x=x, y=y, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return element("line", class_=kind, x1=x1, y1=y1, x2=x2, y2=y2)


def polyline(
    points: list[tuple[float, float]], kind: str, tip: str = "", trial: int | None = None
) -> str:
    """A line through all points, which tells `tip` when it is pointed at."""
    told = " ".join(f"{_spelled(x)},{_spelled(y)}" for x, y in points)
    marked = _marked(kind, tip)
    return element("polyline", *_tip(tip), class_=marked, points=told, data_trial=trial)


def circle(
    x: float, y: float, radius: float, kind: str, tip: str = "", trial: int | None = None
) -> str:
    """A dot; `trial` is whose it is, for pages whose charts are selected in together."""
    place = {"cx": x, "cy": y, "r": radius}
    return element("circle", *_tip(tip), class_=_marked(kind, tip), **place, data_trial=trial)


def box(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> str:
    """A filled rectangle."""
    size = {"width": width, "height": height}
    return element("rect", *_tip(tip), class_=_marked(kind, tip), x=x, y=y, **size)


def cross(
    x: float, y: float, size: float, kind: str, tip: str = "", trial: int | None = None
) -> str:
    """A diagonal cross."""
    path = (
        f"M{_spelled(x - size)} {_spelled(y - size)}L{_spelled(x + size)} {_spelled(y + size)}"
        f"M{_spelled(x - size)} {_spelled(y + size)}L{_spelled(x + size)} {_spelled(y - size)}"
    )
    return element("path", *_tip(tip), class_=_marked(kind, tip), d=path, data_trial=trial)


def drawing(width: float, height: float, title: str, about: str, *parts: str) -> str:
    """A whole chart, with a title and a description for whoever does not see it."""
    return element(
        "svg",
        element("title", escape(one_line(title, TITLE_CHARS))),
        element("desc", escape(one_line(about, TIP_CHARS))),
        *parts,
        class_="chart",
        viewBox=f"0 0 {_spelled(width)} {_spelled(height)}",
        role="img",
    )


def _tip(tip: str) -> tuple[str, ...]:
    told = one_line(tip, TIP_CHARS)
    return (element("title", escape(told)),) if told else ()


def _marked(kind: str, tip: str) -> str:
    return f"{kind} mark" if _tip(tip) else kind


def _spelled(value: Attribute) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
