"""Which landscapes words on a command line mean: files, generated ones, recorded ones."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from records.errors import StudyError
from search import reading
from search.search_bench.generated import PREFIX as GENERATED
from search.search_bench.generated import generated
from search.search_bench.landscape import Landscape, read_landscape
from search.search_bench.recorded import recorded
from search.search_bench.stored import stored

RECORDED: Final = "ccl:"
STORED: Final = "study:"


def landscapes_of(
    asked: Sequence[str],
    store: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[Landscape, ...]:
    """The landscapes of these words; raises `StudyError` for one that there is not, or is twice.

    `generated:NAME` is drawn, `study:ID` is a study of the store, `ccl:FOLDER` reads recorded
    searches, anything else is a file. `tell` is told what is left out.
    """
    found = [each for words in asked for each in _landscapes(words, store, tell)]
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise StudyError(f"landscape {name!r} is asked for twice; name it once")
    return tuple(found)


def _landscapes(
    words: str, store: Path | None, tell: Callable[[str], None]
) -> tuple[Landscape, ...]:
    if words.startswith(STORED):
        with reading.recorded(store) as records:
            found = stored(records.find(words.removeprefix(STORED)), records)
        if found.words is not None:
            tell(found.words)
        return (found.landscape,)
    if words.startswith(GENERATED):
        return (generated(words),)
    if words.startswith(RECORDED):
        return recorded(Path(words.removeprefix(RECORDED)))
    return (read_landscape(Path(words)),)
