"""Records the flags of a framework's parser: record_flags.py NAME PYTHON [--check].

Writes `evaluator/recipes/frameworks/schemas/NAME-VERSION.json` from the parser in that Python.
With --check, nothing is written and a recording that the parser disagrees with is an error.
"""

import argparse
import os
import sys
from pathlib import Path

import msgspec

from evaluator.recipes.catalog import framework_recipe
from evaluator.recipes.frameworks.flags import Flag, write_flags
from evaluator.recipes.frameworks.parser import ask_parser

SCHEMAS = Path(__file__).parents[2] / "evaluator/recipes/frameworks/schemas"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("python", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    path, text = recording(given.name, given.python)
    if not given.check:
        path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {text.count(chr(10)) - 2} flags")
        return 0
    same = path.exists() and path.read_text(encoding="utf-8") == text
    print(f"{path.name} {'is what' if same else 'is not what'} the parser of {given.name} has")
    return 0 if same else 1


def recording(name: str, python: Path) -> tuple[Path, str]:
    """The file of a recording and its text, as the parser in a Python has the flags."""
    environment = dict(os.environ)  # noqa: TID251 - a benchmark is started by hand
    answer = ask_parser(
        name,
        python,
        [],
        folder=Path.cwd(),
        environment=environment,
        world_size=8,
        with_flags=True,
    )
    version = answer.versions[framework_recipe(name).table.packages[0]]
    flags = msgspec.convert(answer.flags or {}, dict[str, Flag])
    style = "dashes" if all(flag.startswith("-") for flag in flags) else "pairs"
    return SCHEMAS / f"{name}-{version}.json", write_flags(name, version, flags, style)


if __name__ == "__main__":
    sys.exit(main())
