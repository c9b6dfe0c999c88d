"""Recorded searches in files of JSON lines: many studies in one file."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from records.study import Origin, Study
from search.transfer.importing import (
    MAX_LINE_CHARS,
    Aim,
    BadRows,
    Imported,
    RecordedMachine,
    Row,
    SearchRow,
    SimulatedRow,
    author_of,
    content_digest,
    direction_of,
    grouped_rows,
    imported_study,
    lines_of,
    positive,
    published_of,
    rank_count,
    rules_of,
    study_of,
    workload_of,
)

CHECKPOINTING: Final = "activation_checkpointing"
FIXED_BATCH: Final = re.compile(r"fixed (\d+)")
SIMULATED: Final = "wall_time_cycles"
SIMULATOR: Final = RecordedMachine(accelerator="simulated", cluster="simulated")
CYCLES: Final = Aim(name="wall_time_cycles", direction="minimize", formula="wall_time_cycles")


def is_history(path: Path) -> bool:
    """Whether a file begins like a recorded search in JSON lines."""
    try:
        with path.open("rb") as file:
            first = json.loads(file.readline(MAX_LINE_CHARS))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(first, dict) or not {"config", "status", "workload"} <= first.keys():
        return False
    return "search_id" in first or "card" in first


def read(path: Path, bad: BadRows) -> Iterator[Imported]:
    """Every search of a file."""
    first = json.loads(lines_of(path)[0][1])
    digests = {path.name: content_digest(path)}
    histories = _simulations if SIMULATED in first else _searches
    for study, rows in histories(path, digests, bad):
        yield imported_study(study, rows)


def _searches(
    path: Path, digests: Mapping[str, str], bad: BadRows
) -> Iterator[tuple[Study, list[Row]]]:
    found = grouped_rows(path, SearchRow, lambda line: (_name(line), line.objective), _row, bad)
    names = [name for name, _ in found]
    for (name, aim), lines in found.items():
        if not lines:
            continue
        several = aim is not None and names.count(name) > 1
        first, rows = lines[0][1], [row for row, _ in lines]
        batch = FIXED_BATCH.search(first.workload.actual_global_batch_rule or "")
        dead = all(not line.activation_checkpointing_effective for _, line in lines)
        notes = _notes(first, fixed_batch=batch is not None)
        study = study_of(
            name=f"{name} {aim.formula}" if several and aim is not None else name,
            aim=aim,
            workload=workload_of(first.workload, first.workload.model or name),
            environment=first.hardware.environment(max(row.ranks or 1 for row in rows)),
            origin=Origin(
                kind="jsonl",
                source=path.name,
                digests=digests,
                framework=first.framework,
                dead_knobs=(CHECKPOINTING,) if dead else (),
                direction=direction_of(aim),
                notes=(*notes, *bad.taken()),
            ),
            rules=rules_of(fixed_batch=batch is not None),
        )
        yield study, rows


def _simulations(
    path: Path, digests: Mapping[str, str], bad: BadRows
) -> Iterator[tuple[Study, list[Row]]]:
    """Each workload of a search by itself: a policy decided for all of them."""
    found = grouped_rows(
        path, SimulatedRow, lambda line: (line.search_id, line.workload.name), _simulated, bad
    )
    for (search, name), lines in found.items():
        if not lines:
            continue
        rows = [row for row, _ in lines]
        study = study_of(
            name=f"{search} {name}",
            aim=CYCLES,
            workload=workload_of(lines[0][1].workload, name),
            environment=SIMULATOR.environment(max(row.ranks or 1 for row in rows)),
            origin=Origin(
                kind="jsonl",
                source=path.name,
                digests=digests,
                framework="astra-sim",
                direction="minimize",
                notes=(
                    "Scores are cycles of a simulated run.",
                    "The search judged a policy by the mean over the workloads that did not fail, "
                    "so a policy could gain by failing on the slowest.",
                    *bad.taken(),
                ),
            ),
        )
        yield study, rows


def _name(line: SearchRow) -> str:
    return line.search_id or Path(line.card).stem or "search"


def _notes(first: SearchRow, *, fixed_batch: bool) -> tuple[str, ...]:
    if fixed_batch:
        return ()
    rule = first.workload.actual_global_batch_rule or "not recorded"
    return (f"The global batch of a step was {rule}, whatever the card says.",)


def _row(ordinal: int, text: str, line: SearchRow) -> Row:
    guess = line.inferred_cause if line.inferred_cause != line.error_class else None
    return Row(
        text=text,
        config=line.config,
        succeeded=line.status == "success",
        score=line.score,
        least_score=0,
        step_s=positive(line.step_seconds),
        ranks=line.gpus_used if line.gpus_used is not None else rank_count(line.config),
        tokens=line.tokens_per_step,
        published=published_of(line.metrics),
        error=line.error_excerpt or "",
        error_class=line.error_class or "",
        guess="; ".join(filter(None, (guess, line.inferred_why))) if guess else "",
        from_cache=line.served_from_cache,
        author=author_of(ordinal),
    )


def _simulated(ordinal: int, text: str, line: SimulatedRow) -> Row:
    parts = {"gpu_time_cycles": line.gpu_time_cycles, "comm_time_cycles": line.comm_time_cycles}
    return Row(
        text=text,
        config=line.config,
        succeeded=line.status == "success",
        score=line.wall_time_cycles,
        least_score=0,
        ranks=rank_count(line.config),
        tokens=(line.workload.batch_size or 0) * line.workload.seq_len,
        published=published_of(parts),
        error_class=line.error_class or "",
        author=author_of(ordinal),
    )
