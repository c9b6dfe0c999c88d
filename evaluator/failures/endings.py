"""How each rank of a job ended, for the record, and the first line with which it told of an error.

Which of them was the cause is not asked here.
"""

from collections.abc import Iterator
from pathlib import Path

from evaluator.failures.files import elastic_findings, rank_error, rank_finding, rank_number
from evaluator.failures.killed import killed_rank
from evaluator.failures.logs import Finding, log_text, read_by_rank, read_log
from evaluator.job import JobResult, RankExit
from evaluator.rank.files import error_name
from records.launched import RankEnd

COMMAND_LOG = "job.log"
MOST_CHARS = 400


def rank_ends(result: JobResult) -> tuple[RankEnd, ...]:
    """Give how ranks ended, the command above them first where it failed.

    Of a job that went well nothing is read.
    """
    if result.reason == "finished" and all(each.status == 0 for each in result.ranks):
        return tuple(_end(each, None) for each in result.ranks)
    said = dict(_said(result.workdir))
    exits = {each.rank: each for each in result.ranks}
    killed = killed_rank(log_text(result.workdir / COMMAND_LOG))
    if killed is not None:
        exits.setdefault(killed.rank, _exit(killed.rank, killed.signal))
    for rank in sorted(rank for rank in said if rank is not None):
        exits.setdefault(rank, _exit(rank, None))
    return tuple(_end(each, said.get(rank)) for rank, each in exits.items())


def _said(folder: Path) -> Iterator[tuple[int | None, Finding]]:
    """What ranks told of errors; a rank's own file comes last, and so counts most."""
    yield from read_by_rank(log_text(folder / COMMAND_LOG)).items()
    for path in sorted(folder.glob("rank*.log")):
        found = read_log(log_text(path))
        if found is not None:
            yield rank_number(path), found
    for found in elastic_findings(folder):
        yield found.rank, found
    for path in sorted(folder.glob(error_name(0).replace("0", "*", 1))):
        error = rank_error(path)
        if error is not None:
            yield rank_number(path), rank_finding(error)


def _exit(rank: int, signal: int | None) -> RankExit:
    return RankExit(rank=rank, status=None, signal=signal, ended_ns=None)


def _end(ended: RankExit, found: Finding | None) -> RankEnd:
    said = None if found is None else f"{found}{found.where}"[:MOST_CHARS]
    return RankEnd(rank=ended.rank, status=ended.status, signal=ended.signal, first_error=said)
