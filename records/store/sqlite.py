"""sqlite_utils, without the pandas and numpy that it loads only to accept their types.

Those two take longer to load than a store takes to make.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

OPTIONAL = ("numpy", "pandas")


@contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    """Hide modules that are not loaded yet; one that is stays."""
    hidden: dict[str, ModuleType | None] = {name: None for name in names if name not in sys.modules}
    sys.modules.update(hidden)  # type: ignore[arg-type]  # None is how Python marks a module absent
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


with _without(OPTIONAL):
    from sqlite_utils import Database as Database
    from sqlite_utils import Migrations as Migrations
