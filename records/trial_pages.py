"""Which trials of a study to show, and in which order, as SQL."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from records.errors import StudyError, shown
from records.trial import FailureKind

COLUMNS = {
    "ordinal": "t.ordinal",
    "score": "t.score_cost",
    "author": "t.author",
    "status": "t.status",
    "kind": "t.failure_kind",
    "started_at": "t.started_at",
}
KNOB, METRIC = "config.", "metric."


def score_cost(costs: Mapping[int, float]) -> tuple[str, list[str | int]]:
    """The cost of each of `trials t`, and its arguments: by these where they name the trial."""
    if not costs:
        return COLUMNS["score"], []
    known = json.dumps({str(ordinal): cost for ordinal, cost in costs.items()})
    return f"""coalesce(json_extract(?, '$."' || t.ordinal || '"'), {COLUMNS["score"]})""", [known]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialQuery:
    """A page of the trials of a study.

    `sort` is one of `COLUMNS`, `config.KNOB` or `metric.NAME`; a lower cost sorts as a lower score.
    `costs` are those of trials that were launched again, which count before that of their first
    launch. `text` is looked for in the configuration and in what went wrong.
    """

    sort: str = "ordinal"
    descending: bool = False
    status: Literal["measured", "failed"] | None = None
    kind: FailureKind | None = None
    author: str | None = None
    text: str | None = None
    limit: int = 100
    offset: int = 0
    costs: Mapping[int, float] = field(default_factory=dict)

    def where(self, study_id: str) -> tuple[str, list[str | int]]:
        """A condition on `trials t`, and its arguments."""
        parts, arguments = ["t.study_id = ?"], list[str | int]([study_id])
        if self.status is not None:  # in the words of an index
            parts.append(f"t.failure_kind is {'not ' if self.status == 'failed' else ''}null")
        exact = {"t.failure_kind": self.kind, "t.author": self.author}
        for column, value in exact.items():
            if value is not None:
                parts.append(f"{column} = ?")
                arguments.append(str(value))
        if self.text:
            parts.append("(instr(lower(t.config), ?) or instr(lower(t.message), ?))")
            arguments += [self.text.lower()] * 2
        return " and ".join(parts), arguments

    @property
    def is_whole(self) -> bool:
        """Whether every trial of the study is of that kind."""
        return not (self.status or self.kind or self.author or self.text)

    def order(self) -> tuple[str, list[str | int]]:
        """The order, and its arguments: what lacks the value comes last, ties by ordinal."""
        expression, arguments = self._sorted_by()
        direction = "desc" if self.descending else "asc"
        if expression == COLUMNS["ordinal"]:
            return f"{expression} {direction}", arguments
        return f"{expression} {direction} nulls last, t.ordinal {direction}", arguments

    def _sorted_by(self) -> tuple[str, list[str | int]]:
        if self.sort == "score":
            return score_cost(self.costs)
        if self.sort in COLUMNS:
            return COLUMNS[self.sort], []
        if self.sort.startswith(KNOB) and '"' not in self.sort:
            return "json_extract(t.config, ?)", [f'$."{self.sort.removeprefix(KNOB)}"']
        if self.sort.startswith(METRIC):
            return (
                "(select m.value from newest_metrics m where m.study_id = t.study_id"
                " and m.ordinal = t.ordinal and m.name = ?)",
                [self.sort.removeprefix(METRIC)],
            )
        raise StudyError(
            f"cannot sort by {shown(self.sort)}; known are {', '.join(COLUMNS)}, config.KNOB "
            "and metric.NAME"
        )
