"""How many published workload cards are read, what is concluded for them, and which are refused.

A folder of cards, as in the public CCL-Bench collection, is read without a launch. A card that only
lacks its batch is read again with `--batch-size`; whether the built-in recipe can train or serve
what was read is counted apart, as other recipes ask for less.

    python benchmarks/published_cards.py FOLDER [--batch-size 32] [--cards]
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from records.errors import StudyError
from records.study import Environment, Study
from search.study.card_reader import Given
from search.study.cards import card_study
from search.study.spaces import completed
from search.study.study_file import builtin_study

BASE = builtin_study(
    Environment(name="here", device="cpu", accelerator="cpu", world_size=4, ranks_per_node=4)
)
KINDS = {
    "agent_": "of CCL-Search itself",
    "workload_suite_": "workload suite",
    "trace_collection_bad": "set aside",
    "workload_card_template": "template",
}
"""Kinds of cards by the beginnings of their names; all others are of collected jobs."""
JOBS = "collected jobs"
READ = "read"
WITH_BATCH = "read with --batch-size"
REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one card: the study, or why there is none."""

    path: Path
    category: str
    study: Study | None
    reason: str = ""
    builtin_reason: str = ""
    """Why the built-in recipe cannot launch it; empty where it can."""

    @property
    def kind(self) -> str:
        """Which part of the collection it is from."""
        name = self.path.name
        if "trace_collection_bad" in name or "collection_bad_" in name or "n_bad_" in name:
            return KINDS["trace_collection_bad"]
        return next((kind for start, kind in KINDS.items() if name.startswith(start)), JOBS)


def outcomes(folder: Path, batch_size: int) -> Iterator[Outcome]:
    for path in sorted(folder.glob("*.yaml")):
        yield _outcome(path, batch_size)


def _outcome(path: Path, batch_size: int) -> Outcome:
    try:
        study = card_study(path, None, Given(), BASE)
    except StudyError as error:
        reason = str(error).removeprefix(f"{path}: ")
        if "batch_size is missing" not in reason:
            return Outcome(path=path, category=REFUSED, study=None, reason=reason)
        return _with_batch(path, batch_size, reason)
    return Outcome(path=path, category=READ, study=study, builtin_reason=_builtin_reason(study))


def _with_batch(path: Path, batch_size: int, reason: str) -> Outcome:
    try:
        study = card_study(path, None, Given(batch_size=batch_size), BASE)
    except StudyError:
        return Outcome(path=path, category=REFUSED, study=None, reason=reason)
    why_not = _builtin_reason(study)
    return Outcome(
        path=path, category=WITH_BATCH, study=study, reason=reason, builtin_reason=why_not
    )


def _builtin_reason(study: Study) -> str:
    try:
        completed(study)
    except StudyError as error:
        return str(error)
    return ""


def _print(found: list[Outcome], *, every_card: bool) -> None:
    columns = (READ, WITH_BATCH, REFUSED)
    print(f"{'':24}{'cards':>7}" + "".join(f"{name:>24}" for name in columns))
    for kind in dict.fromkeys(outcome.kind for outcome in found):
        print(_row(kind, [outcome for outcome in found if outcome.kind == kind], columns))
    print(_row("all", found, columns))
    launched = sum(outcome.study is not None and not outcome.builtin_reason for outcome in found)
    print(f"\n{launched} of those read can be launched by the built-in recipe; of the others:")
    _print_counts(outcome.builtin_reason for outcome in found if outcome.builtin_reason)
    print("\nconcluded and said (cards):")
    _print_counts(
        sentence for outcome in found if outcome.study for sentence in outcome.study.inferences
    )
    print("\nrefused:")
    for outcome in found:
        if outcome.category == REFUSED:
            print(f"  {outcome.path.name}: {outcome.reason}")
    for outcome in found if every_card else ():
        print(f"\n{outcome.path.name}: {outcome.category}")
        for sentence in outcome.study.inferences if outcome.study else ():
            print(f"  {sentence}")


def _row(name: str, found: list[Outcome], columns: tuple[str, ...]) -> str:
    counts = Counter(outcome.category for outcome in found)
    return f"{name:24}{len(found):7}" + "".join(f"{counts[column]:24}" for column in columns)


def _print_counts(sentences: Iterator[str]) -> None:
    for sentence, count in Counter(sentences).most_common():
        print(f"{count:5}  {sentence}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the cards are (*.yaml)")
    parser.add_argument("--batch-size", type=int, default=32, help="for cards that state none")
    parser.add_argument("--cards", action="store_true", help="list every card with its inferences")
    asked = parser.parse_args()
    _print(list(outcomes(asked.folder, asked.batch_size)), every_card=asked.cards)


if __name__ == "__main__":
    main()
