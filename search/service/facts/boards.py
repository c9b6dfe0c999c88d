"""The leaderboard of the studies on record, as the command line ranks them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluator.metrics.base import Metric
from records.rows import StudyRow
from records.store import Store
from search.leaderboard.gathering import gathered
from search.leaderboard.ranking import Leaderboard, leaderboard
from search.leaderboard.studies import study_submission
from search.leaderboard.submission import Submission
from search.service.facts.kept import Kept

MOST_STUDIES = 5000
MOST_BOARDS = 8


class Boards:
    """Leaderboards, made anew where a study has changed; of each study only then."""

    def __init__(self) -> None:
        self._submissions = Kept[Submission | None](MOST_STUDIES)
        self._boards = Kept[Leaderboard](MOST_BOARDS)

    def board(
        self,
        records: Store,
        *,
        by: str | None = None,
        workload: str | None = None,
        metrics: Sequence[str] = (),
    ) -> Leaderboard:
        """All studies ranked `by` a metric, or those of a workload, with these metrics or all.

        Raises `StudyError` for a metric that no study has.
        """

        def made() -> Leaderboard:
            none: tuple[Path, ...] = ()
            found, notes = gathered(
                records, (), none, workload, lambda _count: None, self._submission
            )
            return leaderboard(found, by, metrics, notes)

        asked = (by, workload, tuple(metrics))
        return self._boards.get(asked, records.stamp_of_all(), made)

    def _submission(
        self, row: StudyRow, records: Store, known: Mapping[str, Metric]
    ) -> Submission | None:
        return self._submissions.get(
            row.id, records.stamp(row.id), lambda: study_submission(row, records, known)
        )
