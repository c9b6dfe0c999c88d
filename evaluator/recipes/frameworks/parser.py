"""The framework's own parser, asked in the job's Python whether it takes a list of arguments.

`in_job/parse_NAME.py` runs there: it needs the framework and nothing of ours.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from evaluator.recipes.frameworks.flags import folder_of
from records.errors import StudyError, shown
from records.study import Value

PARSER_TIMEOUT_S = 300.0
"""Importing a framework takes 6 to 60 s."""


class Parsed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the parser made of one list of arguments: its error, or the value of each flag."""

    error: str | None = None
    values: dict[str, Value | None] = {}


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Versions of the framework and of what it stands on, and a result for each list."""

    versions: dict[str, str]
    parsed: tuple[Parsed, ...] = ()
    workload: dict[str, int | float | str | None] = {}
    """Sizes of the model and of the work of a step, of the first list, named as in [workload]."""
    fixed: dict[str, str] = {}
    """Knobs that cannot be changed with what is installed, each with the reason."""
    flags: dict[str, object] | None = None


def ask_parser(
    framework: str,
    python: Path,
    lines: Sequence[Sequence[str]],
    *,
    folder: Path,
    environment: Mapping[str, str],
    world_size: int,
    program: Sequence[str] = (),
    launcher: Sequence[str] = (),
    with_flags: bool = False,
    timeout_s: float = PARSER_TIMEOUT_S,
) -> Answer:
    """Return what the parser of this Python says of each list; nothing is launched.

    Raises `StudyError` when the framework is not installed there, or gives no answer.
    """
    script = folder_of(framework) / "in_job" / f"parse_{framework}.py"
    request = {
        "lines": [list(line) for line in lines],
        "world_size": world_size,
        "program": list(program),
        "launcher": list(launcher),
        "with_flags": with_flags,
    }
    try:
        ended = subprocess.run(
            [str(python), str(script)],
            input=json.dumps(request).encode(),
            cwd=folder,
            env=dict(environment),
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StudyError(
            f"the parser of {framework} gave no answer in {timeout_s:.0f} s ({python})"
        ) from error
    except OSError as error:
        raise StudyError(f"{python} cannot be started: {error.strerror}") from error
    printed = ended.stdout.decode("utf-8", "replace").strip().splitlines()
    said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
    missing = next((line for line in said if line.startswith("ModuleNotFoundError")), None)
    if missing is not None:
        raise StudyError(
            f"{framework} cannot be imported by {python}: {missing.partition(': ')[2]}; install it "
            "there, or start the launch line with the Python that has it"
        )
    try:
        return msgspec.json.decode(printed[-1] if printed else "", type=Answer)
    except msgspec.MsgspecError as error:
        last = shown(said[-1]) if said else "nothing"
        raise StudyError(
            f"the parser of {framework} ended with status {ended.returncode} and said {last} "
            f"({python})"
        ) from error
