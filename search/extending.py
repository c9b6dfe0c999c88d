"""More launches for a study on record."""

from dataclasses import replace

from records.store import Store
from records.study import Study


def extended(study_id: str, more: int, records: Store) -> Study:
    """The study with a budget that lasts for `more` launches from here, as it is now on record."""
    with records.lock(study_id):  # whoever runs it has read its budget
        study = records.find(study_id).study
        trials = records.history(study_id).launched_count + more
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
