"""What texts of failing jobs mean: from pattern to failure kind, and why; `texts.toml` lists them.

A text that no rule matches means nothing here; an exception without a rule is a crash.
"""

import re
from enum import StrEnum
from importlib.resources import files

import msgspec

from records.expression import format_bytes
from records.trial import FailureKind


class Weight(StrEnum):
    """How much a text says about why a job failed."""

    CAUSE = "cause"  # what went wrong
    SYMPTOM = "symptom"  # another process was lost or waited for: its cause is elsewhere, if known
    END = "end"  # that a process ended, said by its launcher


class TextRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts that mean the same: the kind of the failure, and in a few words what happened."""

    kind: FailureKind
    why: str
    pattern: re.Pattern[str] = msgspec.field(name="patterns")
    weight: Weight = Weight.CAUSE


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hints: tuple[str, ...]
    rules: tuple[TextRule, ...]
    limited_memory: TextRule


def _pattern(_: type, patterns: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE | re.ASCII)


_TABLE = msgspec.toml.decode(
    (files("evaluator.failures") / "texts.toml").read_text(encoding="utf-8"),
    type=_Table,
    dec_hook=_pattern,
)
RULES = _TABLE.rules
_BY_REASON = {rule.why: rule for rule in RULES}
KILLED, TOO_LARGE = _BY_REASON["killed from outside"], _BY_REASON["wrote more than a job may"]
_ASKED = re.compile(
    r"tried to allocate (?P<size>[\d.]+ ?[KMGT]i?B)|allocate (?P<bytes>\d+) bytes|"
    r"unable to allocate (?P<array>[\d.]+ [KMGT]i?B)|allocating (?P<xla>\d+) bytes",
    re.IGNORECASE,
)


def meaning(text: str, *, memory_limited: bool = False) -> TextRule | None:
    """Return the first rule that the text matches; under a limit a thread may lack the memory."""
    if memory_limited and _TABLE.limited_memory.pattern.search(text):
        return _TABLE.limited_memory
    lowered = text.lower()
    if not any(hint in lowered for hint in _TABLE.hints):
        return None
    return next((rule for rule in RULES if rule.pattern.search(text)), None)


def memory_asked(text: str) -> str | None:
    """How much memory was asked for when it ran out, as the text says it."""
    found = _ASKED.search(text)
    if found is None:
        return None
    count = found["bytes"] or found["xla"]
    return found["size"] or found["array"] or format_bytes(int(count))
