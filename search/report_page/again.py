"""How to do it again: commands, digests, versions."""

import shlex
from collections.abc import Iterator

from records.launched import Launched
from records.trial import Artifact, Measured
from search.report_page.blocks import Block, Cell, Facts, Row, Section, Table
from search.report_page.seen import Seen
from search.words.machine import machine_line
from search.words.trial import one_line

FILES_SHOWN = 40
COMMAND_CHARS = 2000


def again(seen: Seen) -> Section:
    """Commands that look further, launch the best again or hand the study on."""
    commands = Table(
        about="Commands",
        headings=("to", "type"),
        rows=tuple(
            Row(cells=(Cell(text=what), Cell(text=command + seen.store_flag, is_code=True)))
            for what, command in _commands(seen)
        ),
    )
    blocks: list[Block] = [commands]
    if facts := (*_facts(seen), *_machines(seen)):
        blocks.append(Facts(lines=facts))
    best = seen.best
    if best is not None and best.outcome.artifacts:
        blocks.append(_files(best.outcome.artifacts))
    return Section(
        name="reproduce",
        heading="How to reproduce it",
        lead="For whoever has these records: everything in this report is made of them.",
        blocks=tuple(blocks),
    )


def _commands(seen: Seen) -> Iterator[tuple[str, str]]:
    study_id, best, origin = seen.study_id, seen.best, seen.study.origin
    is_ours = origin is None or origin.kind == "bundle"
    yield "see all trials", f"cclsearch show {study_id}"
    if best is not None:
        yield "take the best configuration", f"cclsearch best {study_id} --format args"
        yield "see the best trial in full", f"cclsearch trial show {study_id} {best.ordinal}"
    if is_ours:
        yield "go through the search again, exactly", f"cclsearch replay {study_id}"
    if is_ours and best is not None:
        script = f"cclsearch trial script {study_id} {best.ordinal} -o again.sh"
        yield "start the job of the best by hand", script
        yield "see whether it holds here", f"cclsearch replay {study_id} --mode measure"
    if is_ours and not seen.is_finished and seen.status != "running":
        yield "go on with the search", f"cclsearch resume {study_id}"
    bundle = f"{study_id}.cclsearch"
    yield "hand it on", f"cclsearch export {study_id} --format bundle -o {bundle}"


def _launch(launched: Launched) -> Iterator[tuple[str, str]]:
    yield "started as", one_line(shlex.join(launched.argv), COMMAND_CHARS)
    added = " ".join(f"{name}={shlex.quote(v)}" for name, v in launched.environment.items())
    if added:
        yield "with", one_line(added, COMMAND_CHARS)


def _machines(seen: Seen) -> Iterator[tuple[str, str]]:
    for digest, machine in seen.machines.items():
        lost = f"its description {digest} is no longer among the records"
        yield "launched on", lost if machine is None else machine_line(machine)


def _facts(seen: Seen) -> Iterator[tuple[str, str]]:
    best = seen.best
    if best is not None:
        yield "policy of the best", best.policy.digest
        if best.config is not None:
            yield "configuration of the best", best.config.digest
        if isinstance(best.outcome, Measured):
            measurement = best.outcome.measurement
            if measurement.torch_version is not None:
                yield "torch", f"{measurement.torch_version} on {measurement.device}"
        if best.outcome.launched is not None:
            yield from _launch(best.outcome.launched)
    origin = seen.study.origin
    if origin is not None:
        for name, digest in origin.digests.items():
            yield f"read from {name}", digest
    command = seen.study.command
    if command is not None:
        for name, digest in command.file_digests.items():
            yield f"script {name}", digest


def _files(artifacts: tuple[Artifact, ...]) -> Table:
    rows = tuple(
        Row(
            cells=(
                Cell(text=each.name),
                Cell(text=str(each.size_bytes), value=each.size_bytes),
                Cell(text=each.digest, is_code=True),
            )
        )
        for each in artifacts[:FILES_SHOWN]
    )
    left_out = len(artifacts) - len(rows)
    more = f", {left_out} more are on record" if left_out else ""
    return Table(
        about=f"Files that the best trial left{more}",
        headings=("file", "bytes", "SHA-256"),
        rows=rows,
        numeric=frozenset({1}),
    )
