"""What torchrun says at its end."""

from pathlib import Path

NO_TRACEBACK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"


def torchrun_summary(
    *, rank: int = 1, status: int = 1, other_status: int = -9, traceback: str = NO_TRACEBACK
) -> str:
    """Of two ranks, of which this one failed first."""
    template = Path(__file__).with_name("torchrun.txt").read_text(encoding="utf-8")
    return template.format(
        rank=rank, status=status, other=1 - rank, other_status=other_status, traceback=traceback
    )
