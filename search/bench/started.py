"""Who starts the ranks of a benchmark: this command, or a launcher that started it as one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from evaluator.rank.context import RankNumbers, read_rank_numbers
from evaluator.rank.job_file import JobError
from evaluator.workloads.collectives.adapters.adapter import AdapterName
from records.errors import EnvironmentFault
from search.settings import is_told_where_to_meet, started_as_rank_by

NO_MPI = "cannot join ranks that torchrun started; start the command with mpirun"
NO_MEETING = (
    "cannot join ranks that mpirun started without MASTER_ADDR and MASTER_PORT; set both, or start "
    "the command with torchrun"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The numbers of this rank, None where it is none.

    `closed` are libraries that such ranks cannot use, each with what to do instead.
    """

    numbers: RankNumbers | None = None
    closed: Mapping[AdapterName, str] = field(default_factory=dict)

    @property
    def speaks(self) -> bool:
        """Whether this process is the one that tells and writes down."""
        return self.numbers is None or self.numbers.rank == 0


def how_started() -> Started:
    """Read it from the environment; raises `EnvironmentFault` if a rank is told only a part."""
    launcher = started_as_rank_by()
    if launcher is None:
        return Started()
    try:
        numbers = read_rank_numbers()
    except JobError as error:
        raise EnvironmentFault(
            f"this looks like a rank of {launcher}, but {error}; start it with torchrun or mpirun, "
            "or unset the variables that name a rank"
        ) from error
    if launcher == "torchrun":
        return Started(numbers=numbers, closed={AdapterName.MPI: NO_MPI})
    needs_meeting = (AdapterName.TORCHCOMMS, AdapterName.C10D, AdapterName.C10D_TORCHCOMMS)
    closed = {} if is_told_where_to_meet() else dict.fromkeys(needs_meeting, NO_MEETING)
    return Started(numbers=numbers, closed=closed)
