"""Which landscapes words on a command line mean: files, generated ones, recorded ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from records.errors import StudyError
from search.search_bench.generated import PREFIX as GENERATED
from search.search_bench.generated import generated
from search.search_bench.landscape import Landscape, read_landscape
from search.search_bench.recorded import recorded

RECORDED: Final = "ccl:"


def landscapes_of(asked: Sequence[str]) -> tuple[Landscape, ...]:
    """The landscapes of these words; raises `StudyError` for one that there is not, or is twice.

    `generated:NAME` is drawn, `ccl:FOLDER` reads recorded searches, anything else is a file.
    """
    found = [each for words in asked for each in _landscapes(words)]
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise StudyError(f"landscape {name!r} is asked for twice; name it once")
    return tuple(found)


def _landscapes(words: str) -> tuple[Landscape, ...]:
    if words.startswith(GENERATED):
        return (generated(words),)
    if words.startswith(RECORDED):
        return recorded(Path(words.removeprefix(RECORDED)))
    return (read_landscape(Path(words)),)
