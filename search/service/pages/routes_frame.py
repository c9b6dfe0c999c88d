"""What all pages share: the way in, and files that browsers keep."""

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from search.service.edge.access import Reader
from search.service.pages.rendering import static_files
from search.service.state import MissingError

router = APIRouter(include_in_schema=False)

KINDS = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
A_YEAR = "public, max-age=31536000, immutable"


@router.get("/")
def home(_caller: Reader) -> Response:
    """The first page."""
    return RedirectResponse("/studies", status_code=303)


@router.get("/static/{_version}/{name}")
def static(_version: str, name: str) -> Response:
    """A style sheet, script or icon; needs no token, as it tells nothing."""
    content = static_files().get(name)
    if content is None:
        raise MissingError("there is no such file")
    kind = KINDS.get(name.rpartition(".")[2], "application/octet-stream")
    return Response(content, media_type=kind, headers={"cache-control": A_YEAR})


@router.get("/favicon.ico")
def icon() -> Response:
    """The icon of browsers that ask for it by its old name."""
    return RedirectResponse("/static/0/icon.svg", status_code=301)
