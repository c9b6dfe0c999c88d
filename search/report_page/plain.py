"""Text without what could steer a reader's program: control characters and halves of pairs."""

UNSEEN = "\N{REPLACEMENT CHARACTER}"
DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They would show a program in another order than it runs."""


def plain(text: str) -> str:
    """The same text with a mark in the place of what cannot be printed; lines and tabs stay."""
    if text.isprintable() and text.isascii():
        return text
    return "".join(
        c if (c.isprintable() or c in "\n\t") and c not in DIRECTIONS else UNSEEN for c in text
    )
