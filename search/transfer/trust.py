"""Whether the user of this machine allowed an imported study to launch commands."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TypeAlias

from policies.contract import seed_names
from records.errors import StudyError, shown
from records.store.store import Store
from records.study import Cluster, Origin, Study
from search.views.console import plain_line

RECORDS = "study.jsonl"
"""What the digest in the origin of an imported bundle is of."""
SHOWN_CHARS = 2000

Line: TypeAlias = tuple[str, str]


def foreign(study: Study, made_by: str, digest: str) -> Study:
    """The study as a bundle may bring it: marked, without a host for the model, or a Python.

    One that another tool conducted keeps its own origin: nothing here launches it.
    """
    host, python, study = study.llm.base_url, study.launch.python, plain_study(study)
    if study.origin is not None:
        return study
    left_out = (
        (f"base_url {shown(host)}", "where your key is sent", host),
        (f"python {shown(python)}", "what is started here", python),
    )
    origin = Origin(
        kind="bundle",
        source=f"cclsearch {made_by}",
        digests={RECORDS: digest},
        notes=tuple(
            f"{what} is left out: a bundle cannot decide {why}"
            for what, why, given in left_out
            if given is not None
        ),
    )
    return replace(study, origin=origin)


def plain_study(study: Study) -> Study:
    """The study without what tells an imported one from the one that it was made of."""
    origin = None if study.is_from_bundle else study.origin
    llm, launch = replace(study.llm, base_url=None), replace(study.launch, python=None)
    return replace(study, llm=llm, launch=launch, origin=origin)


def require_trust(study: Study, store: Store, *, trusted: bool = False) -> None:
    """Raise `StudyError`, which says what would run, for an imported study without trust.

    One that is `trusted` now may be launched here from now on.
    """
    if study.is_from_bundle and trusted:
        store.trust(_digest(study))
    if study.is_from_bundle and not store.is_trusted(_digest(study)):
        would = "; ".join(f"{label}: {words}" for label, words in launch_lines(study))
        raise StudyError(
            "this study was imported, and what it launches can do all that you can. "
            f"{would}. Nothing was started; if you trust where it comes from, add --trust"
        )


def launch_lines(study: Study) -> Iterator[Line]:
    """What an imported study would do here if it were launched, and the files that it names."""
    if not study.is_from_bundle:
        return
    command = study.command
    if command is None:
        yield "would run", f"recipe {shown(study.launch.recipe)} of cclsearch, no command"
    else:
        yield "would run", _cut(shlex.join(command.run))
        if command.environment:
            given = (f"{name}={shlex.quote(value)}" for name, value in command.environment.items())
            yield "with", _cut(" ".join(given))
        if command.inherit:
            yield "given of your environment", _cut(" ".join(command.inherit))
    if not study.is_local:
        stated = asdict(study.cluster or Cluster())
        given = (f"{name}={shown(value)}" for name, value in stated.items() if value)
        yield "asks for nodes", _cut(f"{study.launch.launcher}: {', '.join(given)}")
    if study.strategy in {"hybrid", "llm"}:
        yield "may ask", f"model {shown(study.llm.model)}, where ANTHROPIC_BASE_URL says"
    if files := _files(study):
        yield "names files", _cut(" ".join(map(shlex.quote, files)))


def _files(study: Study) -> list[str]:
    works = (study.workload, *(context.workload for context in study.contexts))
    digests = () if study.command is None else study.command.file_digests
    seed = () if study.seed_policy in seed_names() else (study.seed_policy,)
    return sorted({*seed, *(work.text_file for work in works if work.text_file), *digests})


def _digest(study: Study) -> str:
    return "" if study.origin is None else study.origin.digests.get(RECORDS, "")


def _cut(text: str) -> str:
    text = plain_line(text)
    if len(text) <= SHOWN_CHARS:
        return text
    return f"{text[:SHOWN_CHARS]}... ({len(text)} characters; all of it with show --json)"
