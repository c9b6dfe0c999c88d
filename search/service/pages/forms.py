"""What a form of ours sends, read within bounds."""

from collections.abc import Mapping
from typing import TypeAlias
from urllib.parse import parse_qsl

from fastapi import HTTPException, Request

MOST_FIELDS = 2000

Fields: TypeAlias = Mapping[str, tuple[str, ...]]


async def form_of(request: Request) -> Fields:
    """The fields of a form by name, each with all its values, those left empty too."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "a form is needed, as application/x-www-form-urlencoded")
    body = await request.body()
    found: dict[str, tuple[str, ...]] = {}
    try:
        pairs = parse_qsl(body.decode("utf-8"), True, errors="replace", max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise HTTPException(422, "the form cannot be read") from error
    for name, value in pairs:
        found[name] = (*found.get(name, ()), value)
    return found


def one(fields: Fields, name: str) -> str:
    """The first value of a field without what surrounds it; empty where it is missing."""
    return fields.get(name, ("",))[0].strip()
