"""More launches for a study on record."""

from dataclasses import replace

from records.errors import StudyError
from records.store import Store
from records.study import Budget, Study
from search.budget import launches_used


def extended(study_id: str, more: int, records: Store, most: int | None = None) -> Study:
    """The study with a budget that lasts for `more` trials from here, as it is now on record.

    Races and the final are made again for them, so they may take what a study of so many trials
    may. Raises `StudyError` where it would have more than `most`.
    """
    with records.lock(study_id):  # whoever runs it has read its budget
        study = records.find(study_id).study
        history = records.history(study_id)
        trials = history.launched_count + more
        if most is not None and trials > most:
            raise StudyError(
                f"{more} more make {trials} trials; at most {most} are allowed here for a study"
            )
        used = launches_used(history, records.repeats(study_id))
        spent = used if study.budget.launches is None else study.budget.launches
        enough = spent + Budget(trials=more).launch_limit
        by_default = study.budget.launches is None and Budget(trials=trials).launch_limit >= enough
        budget = replace(
            study.budget,
            trials=trials,
            patience=study.budget.patience + more,
            launches=None if by_default else enough,
        )
        extended = replace(study, budget=budget)
        records.replace_study(study_id, extended)
    return extended
