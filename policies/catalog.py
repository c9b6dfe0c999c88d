"""The policies that come with cclsearch, each a real file under `policies/seeds`."""

import difflib
from importlib.resources import files
from pathlib import Path

from records.errors import StudyError
from records.trial import Policy


def seed_names() -> tuple[str, ...]:
    """Names of the built-in seeds."""
    entries = (files("policies") / "seeds").iterdir()
    return tuple(sorted(e.name.removesuffix(".py") for e in entries if e.name.endswith(".py")))


def seed_policy(name_or_path: str) -> Policy:
    """A built-in seed by name, or a policy file by path; raises `StudyError` when neither is."""
    if name_or_path in seed_names():
        source = (files("policies") / "seeds" / f"{name_or_path}.py").read_text(encoding="utf-8")
        return Policy(source=source, author="seed", rationale=f"built-in seed {name_or_path}")
    try:
        source = Path(name_or_path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        close = difflib.get_close_matches(name_or_path, seed_names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"seeds are {', '.join(seed_names())}"
        raise StudyError(
            f"seed policy {name_or_path!r} is no built-in seed and no readable file; {hint}"
        ) from error
    return Policy(source=source, author="seed", rationale=f"from {Path(name_or_path).name}")
