"""The frame of a page that is one file: it reaches for nothing, and no text in it can run."""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files

from search.charts.style import chart_style
from search.words.trial import one_line

TITLE_CHARS = 200


def framed(title: str, body: str, *, scripted: bool = False) -> str:
    """A page around a body, which is trusted; its own style and script are all that may run."""
    style = chart_style() + _text("page.css")
    script = _text("page.js") if scripted else ""
    may_run = _only(script) if scripted else "'none'"
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src {_only(style)}; script-src {may_run}"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(one_line(title, TITLE_CHARS))}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n{body}\n" + (f"<script>{script}</script>\n" if scripted else "") + "</body>\n"
        "</html>\n"
    )


def _only(text: str) -> str:
    """The source expression that lets this text run, and no other."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@cache
def _text(name: str) -> str:
    return (files("search.report_page") / name).read_text(encoding="utf-8")
