"""A CCL-Search script in the place of the built-in recipe: a card's trials start it with bash."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import yaml

from evaluator.recipes.script_files import located
from policies.catalog import FIRST
from records.errors import StudyError
from records.files import read_text
from records.study import Command, Study

TIMEOUT_S = 3600.0
"""What CCL-Search gives a script."""

_TRUE_WORDS = ("true", "yes", "on")
_BOOLEAN = "tag:yaml.org,2002:bool"


def with_script(study: Study, script: Path, tuning: Path | None) -> Study:
    """The study with its trials started by a script; the tuning file is known to be sound."""
    if tuning is None:
        raise StudyError("--command needs the script's knobs; add --tuning FILE")
    if not script.is_file():
        raise StudyError(f"--command {script}: there is no such file")
    command = Command(run=("bash", str(script.absolute())))
    booleans = _spelled_booleans(tuning)
    if booleans is not None:
        command = replace(command, booleans=booleans)
    return replace(
        study,
        seed_policy=FIRST,
        command=located(command, script.parent),
        launch=replace(study.launch, recipe="command"),
        measure=replace(study.measure, timeout_s=TIMEOUT_S),
    )


def _spelled_booleans(path: Path) -> tuple[str, str] | None:
    """True and false as a tuning file spells them; None where it lacks one.

    A script compares texts, and YAML knows many spellings. Raises `StudyError` for more than one.
    """
    words = set(_boolean_words(yaml.compose(read_text(path), yaml.SafeLoader)))
    true = sorted(word for word in words if word.lower() in _TRUE_WORDS)
    false = sorted(words - {*true})
    if len(true) > 1 or len(false) > 1:
        raise StudyError(
            f"{path}: spells booleans as {', '.join([*true, *false])}; a script needs one spelling"
        )
    return (true[0], false[0]) if true and false else None


def _boolean_words(node: yaml.Node | None) -> Iterator[str]:
    """Booleans as they are written, anywhere below a node."""
    match node:
        case yaml.ScalarNode(tag=tag, value=word) if tag == _BOOLEAN:
            yield word
        case yaml.SequenceNode(value=children):
            for child in children:
                yield from _boolean_words(child)
        case yaml.MappingNode(value=pairs):
            for _, child in pairs:
                yield from _boolean_words(child)
