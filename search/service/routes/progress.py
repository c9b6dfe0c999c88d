"""What a search does now, as server-sent events."""

import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from search.service.callers.slots import HeldResponse
from search.service.edge.access import Reader, TheService
from search.service.events import followed
from search.service.state import TooManyError

router = APIRouter(tags=["progress"])

OFFSET = re.compile(r"[0-9]{1,15}")


@router.get(
    "/studies/{study_id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
def events(
    study_id: str,
    service: TheService,
    caller: Reader,
    since: Annotated[
        int,
        Query(
            ge=-(1 << 20),
            le=1 << 50,
            description="Byte offset to begin at; a negative one is counted from the end.",
        ),
    ] = 0,
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
) -> StreamingResponse:
    """Follow a study: every event so far, then each as it happens, until the study ends.

    The names and fields are those of `cclsearch run --json`; `noise` is what else a search printed.
    A browser that comes back sends the id of the last event that it had, and goes on there. The
    event `end` says that no more will come.
    """
    service.study(study_id)
    start = int(last_event_id) if last_event_id and OFFSET.fullmatch(last_event_id) else since

    async def stream() -> AsyncIterator[str]:
        path, over = service.events(study_id), partial(service.is_over, study_id)
        with service.feeds.follow(path, over) as feed:
            async for text in followed(feed, start):
                yield text

    if not service.streams.take(caller.name):
        raise TooManyError("too many open event streams; close some")
    return HeldResponse(stream(), service.streams, caller.name, media_type="text/event-stream")
