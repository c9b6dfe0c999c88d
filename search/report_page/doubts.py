"""What is wrong with the record, as far as it shows it itself."""

from search.auditing.audit import CHECKS
from search.known_words import ordinals_words
from search.report_page.blocks import Cell, Row, Section, Table
from search.report_page.seen import Seen


def doubts(seen: Seen) -> Section | None:
    """Every fault of the history, or what was looked for; None while there is no trial."""
    if not len(seen.history):
        return None
    checks = ", ".join(_spelled(name) for name in CHECKS)
    if not seen.faults:
        lead = f"Nothing was found; looked for were: {checks}."
        return Section(name="doubts", heading="What speaks against it", lead=lead)
    rows = tuple(
        Row(
            cells=(
                Cell(text=_spelled(fault.name)),
                Cell(text=fault.words),
                Cell(text=ordinals_words(fault.ordinals)),
            )
        )
        for fault in seen.faults
    )
    table = Table(
        about="Faults that the record itself shows, the gravest first",
        headings=("fault", "what the record shows", "trials"),
        rows=rows,
    )
    lead = "Read the result with these in mind, or launch again what matters."
    return Section(name="doubts", heading="What speaks against it", lead=lead, blocks=(table,))


def _spelled(name: str) -> str:
    return name.replace("_", " ")
