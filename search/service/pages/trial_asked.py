"""What part of a table of trials is asked for, as the address of a page says it."""

from typing import Annotated, Literal
from urllib.parse import urlencode

from pydantic import BaseModel, Field

from records.trial import FailureKind
from records.trial_pages import TrialQuery

Column = Annotated[str, Field(max_length=120)]


class TrialsAsked(BaseModel):
    """Filters, order, columns and place in a table of trials; a form leaves empty what is not set.

    `columns` are `config.KNOB` and `metric.NAME`; without any the page chooses.
    """

    sort: Annotated[str, Field(max_length=120)] = "ordinal"
    order: Literal["up", "down"] = "up"
    status: Literal["", "measured", "failed"] = ""
    kind: FailureKind | Literal[""] = ""
    author: Annotated[str, Field(max_length=100)] = ""
    text: Annotated[str, Field(max_length=200)] = ""
    columns: Annotated[list[Column], Field(max_length=200)] = Field(default_factory=list)
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    offset: Annotated[int, Field(ge=0, le=10**9)] = 0

    @property
    def is_filtered(self) -> bool:
        """Whether it asks for some of the trials only."""
        return bool(self.status or self.kind or self.author or self.text)

    def query(self, *, limit: int | None = None, offset: int | None = None) -> TrialQuery:
        """The same as a question to the store."""
        return TrialQuery(
            sort=self.sort,
            descending=self.order == "down",
            status=self.status or None,
            kind=self.kind or None,
            author=self.author or None,
            text=self.text or None,
            limit=self.limit if limit is None else limit,
            offset=self.offset if offset is None else offset,
        )

    def address(self, **changes: str | int) -> str:
        """The query string that asks for the same with these changes, from the first row on."""
        asked = {**self.model_dump(mode="json", exclude_defaults=True), "offset": 0, **changes}
        return "?" + urlencode({k: v for k, v in asked.items() if v not in ("", 0)}, doseq=True)

    @property
    def paged(self) -> str:
        """The beginning of the query string of another page, which ends with its offset."""
        asked = self.address()
        return asked if asked == "?" else f"{asked}&"

    def sorted_by(self, column: str) -> str:
        """The query string that sorts by a column: the other way round where it is already."""
        turned = self.sort == column and self.order == "up"
        return self.address(sort=column, order="down" if turned else "up")

    def direction(self, column: str) -> str | None:
        """How the table is sorted by a column, in the words of ARIA; None where it is not."""
        if self.sort != column:
            return None
        return "ascending" if self.order == "up" else "descending"
