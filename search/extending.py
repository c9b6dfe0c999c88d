"""More launches for a study on record."""

from dataclasses import replace

from records.errors import StudyError
from records.store import Store
from records.study import Study


def extended(study_id: str, more: int, records: Store, most: int | None = None) -> Study:
    """The study with a budget that lasts for `more` launches from here, as it is now on record.

    Raises `StudyError` where it would have more than `most`.
    """
    with records.lock(study_id):  # whoever runs it has read its budget
        study = records.find(study_id).study
        trials = records.history(study_id).launched_count + more
        if most is not None and trials > most:
            raise StudyError(
                f"{more} more make {trials} trials; at most {most} are allowed here for a study"
            )
        launches = study.budget.launches
        budget = replace(
            study.budget,
            trials=trials,
            patience=study.budget.patience + more,
            launches=None if launches is None else launches + 3 * more,
        )
        extended = replace(study, budget=budget)
        records.replace_study(study_id, extended)
    return extended
