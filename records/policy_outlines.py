"""Policies of a study in outline, out of columns: who wrote which, and how their trials ended."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from records.connection import Database
from records.database import refusals
from records.rows import Row, to_policy
from records.trial import FailureKind, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOutline:
    """A policy that a study tried, without its text; the rest is of the trial that had it first."""

    digest: str
    author: str
    parent: str | None
    rationale: str
    first_trial: int
    trial_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """How a trial of a policy ended: with a value, or by a failure."""

    ordinal: int
    value: float | None
    unit: str
    failure: FailureKind | None
    was_asked: bool = False
    """Whether a model was asked for it."""


class PolicyRecords:
    """The read side of a store, as far as it is asked about the policies of a study."""

    root: Path
    _db: Database

    def policy_outlines(
        self, study_id: str, limit: int, offset: int
    ) -> tuple[tuple[PolicyOutline, ...], int]:
        """Some policies of a study, in the order of their first trials, and how many it has."""
        with refusals(self.root, "read"):
            (total,) = self._db.execute(
                "select count(distinct policy_digest) from trials where study_id = ?", (study_id,)
            ).fetchone()
            rows = self._db.query(
                "select t.policy_digest, t.author, t.parent, t.rationale, f.first_trial,"
                " f.trial_count from (select min(ordinal) as first_trial, count(*) as trial_count"
                " from trials where study_id = ? group by policy_digest order by first_trial"
                " limit ? offset ?) f join trials t on t.study_id = ? and t.ordinal = f.first_trial"
                " order by f.first_trial",
                (study_id, limit, offset, study_id),
            )
            return tuple(map(_outline, rows)), int(total)

    def policy_results(
        self, study_id: str, digests: Sequence[str], most: int
    ) -> Mapping[str, tuple[PolicyResult, ...]]:
        """How the first so many trials of each of these policies ended."""
        found: dict[str, tuple[PolicyResult, ...]] = {}
        with refusals(self.root, "read"):
            rows = self._db.query(
                "select t.policy_digest, t.ordinal, t.score_value, t.score_unit,"
                " t.failure_kind, t.exchange_digest from (select ordinal, row_number() over"
                " (partition by policy_digest order by ordinal) as place from trials"
                " where study_id = ? and policy_digest in (select value from json_each(?))) f"
                " join trials t on t.study_id = ? and t.ordinal = f.ordinal"
                " where f.place <= ? order by t.ordinal",
                (study_id, json.dumps([*digests]), study_id, most),
            )
            for row in rows:
                digest = str(row["policy_digest"])
                found[digest] = (*found.get(digest, ()), _result(row))
        return found

    def policy_trial_count(self, study_id: str, digest: str) -> int:
        """How many trials of a study had a policy."""
        with refusals(self.root, "read"):
            (count,) = self._db.execute(
                "select count(*) from trials where study_id = ? and policy_digest = ?",
                (study_id, digest),
            ).fetchone()
            return int(count)

    def policy(self, study_id: str, digest: str) -> Policy | None:
        """A policy as the first trial of a study had it; None where none had."""
        with refusals(self.root, "read"):
            rows = self._db.query(
                "select t.author, t.parent, t.rationale, t.predicted_speedup, t.predicted_over,"
                " p.source from trials t"
                " join policies p on p.digest = t.policy_digest"
                " where t.study_id = ? and t.policy_digest = ? order by t.ordinal limit 1",
                (study_id, digest),
            )
            return next(map(to_policy, rows), None)


def _outline(row: Row) -> PolicyOutline:
    parent = row["parent"]
    return PolicyOutline(
        digest=str(row["policy_digest"]),
        author=str(row["author"]),
        parent=None if parent is None else str(parent),
        rationale=str(row["rationale"]),
        first_trial=int(row["first_trial"] or 0),
        trial_count=int(row["trial_count"] or 0),
    )


def _result(row: Row) -> PolicyResult:
    value, kind = row["score_value"], row["failure_kind"]
    return PolicyResult(
        ordinal=int(row["ordinal"] or 0),
        value=None if value is None else float(value),
        unit=str(row["score_unit"] or ""),
        failure=None if kind is None else FailureKind(str(kind)),
        was_asked=row["exchange_digest"] is not None,
    )
