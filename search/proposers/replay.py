"""The policies of another study once more, in their order, whatever comes of them."""

from collections.abc import Sequence
from dataclasses import replace

from records.errors import StudyError
from records.history import History
from records.rows import StudyRow
from records.store import Store
from records.study import Study
from records.trial import Policy
from search.ports import Proposal


class ReplayProposer:
    """Proposes recorded policies as they are: who wrote them stays on record with them."""

    name = "replay"

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._policies = tuple(policies)

    def propose(self, study: Study, history: History) -> Proposal | None:  # noqa: ARG002 - the port
        """Give the next policy, or None when all were proposed again."""
        begun = len(history) + len(history.pending)
        return Proposal(policy=self._policies[begun]) if begun < len(self._policies) else None


def study_again(row: StudyRow, store: Store) -> Study:
    """A new study that launches the policies of one on record, with a budget that lasts for all."""
    study = replace(row.study, strategy=ReplayProposer.name, replay_of=row.id)
    count = len(policies_again(study, store))
    budget = replace(
        row.study.budget,
        trials=count,
        patience=count,
        max_failures=count,
        launches=None,
        max_wall_s=None,
    )
    return replace(study, budget=budget)


def policies_again(study: Study, store: Store) -> tuple[Policy, ...]:
    """Policies of the study that this one replays; raises `StudyError` when it names none."""
    if study.replay_of is None:
        raise StudyError("strategy 'replay' launches a study again; name it with --from STUDY")
    policies = tuple(trial.policy for trial in store.history(study.replay_of))
    if not policies:
        raise StudyError(
            f"study {study.replay_of} has no finished trial in {store.root}, "
            "so there is nothing to launch again; choose another with `cclsearch list`"
        )
    return policies
