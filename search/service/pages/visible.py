"""Output of jobs as text in which nothing is hidden: control characters are shown, not obeyed."""

from unicodedata import category

CARET_OFFSET = 0x40
"""A control character and the letter that is written behind a caret for it differ by this."""
DELETE = "\x7f"


def visible(text: str) -> str:
    """The text with a sign for each character that a terminal or a browser would obey: `^[`."""
    text = text.replace("\r\n", "\n")
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_seen, text))


def _seen(character: str) -> str:
    if character in "\n\t" or character.isprintable() or category(character) == "Zs":
        return character
    if character == "\r":  # a line that was written over: each state on a line of its own
        return "^M\n"
    if character < " " or character == DELETE:
        return f"^{chr(ord(character) ^ CARET_OFFSET)}"
    return f"<U+{ord(character):04X}>"
