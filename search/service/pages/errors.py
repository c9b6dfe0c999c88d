"""What a person sees where a page cannot be shown."""

from fastapi import Request
from fastapi.responses import HTMLResponse

from search.service.pages.rendering import page

HEADINGS = {
    400: "That request makes no sense",
    401: "Please sign in",
    403: "You may not do that",
    404: "There is nothing here",
    405: "That does not work here",
    409: "That does not fit any more",
    413: "That is too large",
    422: "That does not work as it stands",
    429: "Too much at once",
    503: "The records cannot be used now",
}


def error_page(request: Request, status: int, words: str) -> HTMLResponse:
    """A page that says what went wrong, and where to go on."""
    heading = HEADINGS.get(status, "Something went wrong")
    return page(request, "error.html", status=status, code=status, heading=heading, words=words)
