"""Where a study on record comes from, if not from a search of ours."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["ccl-search", "jsonl", "optuna", "bundle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What was imported, and what its own tool said of it.

    `digests` are the SHA-256 of the files it was read from, by name. `dead_knobs` had no effect on
    what was launched, whatever they were set to. `direction` is which way the tool's own score is
    better; that score is the metric `published_score` of a trial. `notes` say what was lost or
    taken for granted, one sentence each.
    """

    kind: Kind
    source: str
    digests: Mapping[str, str] = field(default_factory=dict)
    framework: str | None = None
    dead_knobs: tuple[str, ...] = ()
    direction: Literal["minimize", "maximize"] | None = None
    notes: tuple[str, ...] = ()
