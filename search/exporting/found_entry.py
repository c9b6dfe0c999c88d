"""Checks an entry that lies in a folder, whoever made it."""

from pathlib import Path

from records.errors import StudyError
from search.card_file import Card, is_number
from search.exporting.checks import Check, card_checks, traces_check
from search.exporting.template import TOTAL, looked_up

_YAML = (".yaml", ".yml")
_NO_TRACES = ("metrics.json", "trial.json", "checks.json", "launch.json", "job.json")


def checks_of(path: Path) -> tuple[Check, ...]:
    """The rules for the card at a path, and for the traces beside it if that is a folder.

    Raises `StudyError` where there is no card, or several to choose from.
    """
    if not path.is_dir():
        return card_checks(_fields(path))
    cards = sorted(each for each in path.iterdir() if each.suffix in _YAML)
    if not cards:
        raise StudyError(f"{path}: holds no card (*.yaml); name the folder of an entry")
    several = Check(
        name="card",
        faults=()
        if len(cards) == 1
        else (f"{len(cards)} YAML files; the toolkit takes any of them for the card",),
    )
    card = _fields(next((each for each in cards if "card" in each.name), cards[0]))
    total = looked_up(card, TOTAL)
    traces = [each for each in path.iterdir() if _is_trace(each)]
    ranks = int(total) if is_number(total) else 1
    return (several, *card_checks(card), traces_check(len(traces), ranks))


def _fields(path: Path) -> dict[str, object]:
    return {str(name): value for name, value in Card(path).fields.items()}


def _is_trace(path: Path) -> bool:
    if path.name in _NO_TRACES or not path.is_file():
        return False
    return path.name.endswith((".json", ".json.gz", ".xplane.pb", ".sqlite", ".nsys-rep"))
