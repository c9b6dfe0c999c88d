"""A Python program that loads the raw samples behind the rows of a table, to look into them.

Whatever a result file says is in it as a literal of plain ASCII, so that no name becomes code.
"""

from typing import Final

from evaluator.timing.nvbench.compare import ComparedFiles, Row, Section
from evaluator.timing.nvbench.samples import SampleFile
from search.interval_tables import STATUS_WORDS, View, row_facts

_HEAD: Final = '''\
# BULK-BEGIN
"""Raw samples of compared benchmark states: `load(ROWS[0])` reads those of the first row."""

import numpy as np

'''
_LOADER: Final = '''

def read(path, count):
    """The samples of a file, float32; None where a row has no such file."""
    if path is None:
        return None
    samples = np.fromfile(path, dtype="<f4")
    if len(samples) != count:
        raise ValueError(f"{path!r} holds {len(samples)} samples, not {count}")
    return samples


def load(row):
    """Times in seconds and clock rates in hertz of both sides of a row."""
    return {
        name: read(row[f"{name}_file"], row[f"{name}_count"])
        for name in ("reference_times", "reference_clocks", "candidate_times", "candidate_clocks")
    }
# BULK-END
'''


def bulk_script(found: ComparedFiles, view: View) -> str:
    """The program for the rows that `view` shows, in their order."""
    rows = [
        (section, place, row)
        for section in found.sections
        for place, row in enumerate(view.rows(section))
    ]
    entries = "".join(_entry(index, *each) for index, each in enumerate(rows))
    return f"{_HEAD}ROWS = [\n{entries}]\n{_LOADER}"


def _entry(index: int, section: Section, table_index: int, row: Row) -> str:
    pair = row.pair
    facts: dict[str, object] = {
        "row_index": index,
        "table_row_index": table_index,
        "status": STATUS_WORDS[row.judgement.verdict],
        **row_facts(section, row),
        **_file("reference_times", pair.reference.times),
        **_file("reference_clocks", pair.reference.clocks),
        **_file("candidate_times", pair.candidate.times),
        **_file("candidate_clocks", pair.candidate.clocks),
    }
    items = "".join(f"        {name!a}: {value!a},\n" for name, value in facts.items())
    return f"    {{\n{items}    }},\n"


def _file(name: str, file: SampleFile | None) -> dict[str, object]:
    path = None if file is None else file.path
    return {
        f"{name}_file": None if path is None else str(path),
        f"{name}_count": None if file is None else file.count,
    }
