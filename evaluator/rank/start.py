"""Run a module of the ranks in a Python that has no cclsearch: start.py MODULE ARGUMENT...

Of all that is installed next to this file it sees only the package `evaluator`, so that its own
torch and nothing of ours is imported. Ranks need the standard library and torch alone.
"""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


def command(
    module: str,
    python: str | None,
    *,
    own: str = sys.executable,
    options: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the command that runs a module of ranks: in our Python, or in that of the job.

    In ours it is imported as usual, with the user's files of the same names kept out (`-P`, which
    Python 3.10 lacks), and so it is where we came in a zip, which is on the path of all Pythons
    there.
    """
    if python is None:
        safely = ("-P",) if sys.version_info >= (3, 11) else ()
        return (own, *options, *safely, "-m", module)
    if not Path(__file__).is_file():
        return (python, *options, "-m", module)
    return (python, *options, __file__, module)


def main() -> None:
    """Run the module as a program; its folder is not on the path of the modules that it imports."""
    folder = Path(__file__).resolve().parent
    sys.path[:] = [each for each in sys.path if each != str(folder)]
    package = ModuleType("evaluator")
    package.__path__ = [str(folder.parent)]
    sys.modules["evaluator"] = package
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
