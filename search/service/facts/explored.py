"""What charts need of studies, kept while their records stay as they are."""

from records.rows import StudyRow
from records.store import Store
from search.service.facts.front import StudyFront, study_front
from search.service.facts.history import StudyHistory, study_history
from search.service.facts.kept import Kept
from search.service.facts.knobs import StudyKnobs, study_knobs

MOST_DRAWN = 16


class Explored:
    """What charts need of studies, made once for each state of their records."""

    def __init__(self) -> None:
        self._histories = Kept[StudyHistory](MOST_DRAWN)
        self._fronts = Kept[StudyFront](MOST_DRAWN)
        self._knobs = Kept[StudyKnobs](MOST_DRAWN)

    def history(self, row: StudyRow, records: Store) -> StudyHistory:
        """See `study_history`."""
        stamp = records.stamp(row.id)
        return self._histories.get(row.id, stamp, lambda: study_history(row, records))

    def front(self, row: StudyRow, records: Store, against: str | None = None) -> StudyFront:
        """See `study_front`."""
        stamp, key = records.stamp(row.id), (row.id, against)
        return self._fronts.get(key, stamp, lambda: study_front(row, records, against))

    def knobs(self, row: StudyRow, records: Store) -> StudyKnobs:
        """See `study_knobs`."""
        return self._knobs.get(row.id, records.stamp(row.id), lambda: study_knobs(row, records))
