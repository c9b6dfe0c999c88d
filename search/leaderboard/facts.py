"""A leaderboard for programs; what does not exist is null."""

from collections.abc import Collection, Mapping
from dataclasses import asdict

from search.leaderboard.ranking import Group, Leaderboard, Ranked
from search.leaderboard.words import RULE, legend


def leaderboard_facts(board: Leaderboard) -> dict[str, object]:
    """All groups with their submissions, the columns, and what marks mean."""
    return {"groups": [group_facts(group, board) for group in board.groups], **legend_facts(board)}


def legend_facts(board: Leaderboard) -> dict[str, object]:
    """What it takes to read a group: the columns, the rule, and what marks mean."""
    return {
        "columns": [asdict(column) for column in board.columns],
        "rule": RULE,
        "marks": legend(board),
        "notes": board.notes,
    }


def group_facts(group: Group, board: Leaderboard) -> dict[str, object]:
    """Submissions that did the same work, best first."""
    names = {column.name for column in board.columns}
    return {
        "work": {**asdict(group.work), "title": group.work.title},
        "ranked_by": None if group.by is None else group.by.name,
        "submissions": [_ranked_facts(each, names) for each in group.ranked],
    }


def _ranked_facts(each: Ranked, names: Collection[str]) -> Mapping[str, object]:
    submission = each.submission
    return {
        "rank": each.rank,
        "name": submission.name,
        "source": submission.source,
        "machine": submission.machine,
        "devices": submission.rank_count,
        "software": submission.software,
        "settings": submission.settings,
        "launches": submission.launch_count,
        "ties": list(submission.ties),
        "marks": [asdict(mark) for mark in submission.marks],
        "metrics": {
            name: asdict(reading) for name, reading in submission.readings.items() if name in names
        },
    }
