"""What a search does now, as server-sent events."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Query
from fastapi.responses import StreamingResponse

from search.service.access import Reader, TheService
from search.service.events import followed

router = APIRouter(tags=["progress"])


@router.get(
    "/studies/{study_id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
def events(
    study_id: str,
    service: TheService,
    caller: Reader,
    since: Annotated[int, Query(ge=0, le=1 << 50, description="Byte offset to begin at.")] = 0,
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
) -> StreamingResponse:
    """Follow a study: every event so far, then each as it happens, until the study ends.

    The names and fields are those of `cclsearch run --json`. A browser that comes back sends the
    id of the last event that it had, and goes on there.
    """
    service.study(study_id)
    start = int(last_event_id) if last_event_id and last_event_id.isdecimal() else since
    if service.streams[caller.name] >= service.config.limits.event_streams:
        raise HTTPException(429, "too many open event streams; close some")

    async def stream() -> AsyncIterator[str]:
        service.streams[caller.name] += 1
        try:
            path, over = service.events(study_id), partial(service.is_over, study_id)
            async for text in followed(path, start, over):
                yield text
        finally:
            service.streams[caller.name] -= 1

    return StreamingResponse(stream(), media_type="text/event-stream")
