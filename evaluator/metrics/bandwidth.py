"""How fast collectives and transfers move bytes once all of their ranks are there.

S is as in nccl-tests the whole buffer, of an all-gather the gathered one; t is the least duration
over the ranks of the group, so that waiting for a late rank is not taken for transfer. Bus
bandwidth is S f / t with the factors f of nccl-tests for n ranks: 2 (n - 1) / n for an all-reduce,
(n - 1) / n for an all-gather, reduce-scatter or all-to-all, 1 for a transfer. A metric is the sum
of S f over the sum of t, over the collectives that were traced on all ranks of their group: the
rate at which a job of messages of several sizes moves its bytes. A median would lie between the
bandwidths of small and of large messages, where none was ever measured.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.analysis.bandwidth import Bandwidths
from evaluator.analysis.matching import Matches
from evaluator.metrics.base import Absent, Evidence, Formula, Source
from evaluator.traces.collectives import TRANSFERS, CollectiveKind

_TRACES: Final[frozenset[Source]] = frozenset({"kineto", "xla", "nsys"})
_BYTES_PER_GB: Final = 1e9
_DIFFERS: Final = (
    "Theirs takes one rank's own durations, which include waiting for the others, divides by 2^30 "
    "bytes while saying GB, and on TPUs takes memory traffic for the payload."
)


@dataclass(frozen=True, slots=True)
class _Rate:
    """The bus bandwidth of all bytes of the kinds called by one word."""

    word: str
    kinds: tuple[CollectiveKind, ...]

    def __call__(self, evidence: Evidence) -> float | Absent:
        """GB/s."""
        table, matches = evidence.bandwidths, evidence.matches
        if table is None or matches is None:
            return Absent("nothing was profiled")
        chosen = np.isin(table.kind, self.kinds)
        if not chosen.any():
            return Absent(self._why_none(matches))
        whole = chosen & ~table.partial
        if whole.any():
            return _gb_per_s(table, whole)
        least = _gb_per_s(table, chosen)
        return Absent(
            f"no {self.word} is in the traces of all ranks of its group; as others may have come "
            f"later, those with a trace only tell that it is at least {least:.4g} GB/s"
        )

    def _why_none(self, matches: Matches) -> str:
        calls = matches.calls.doing(*self.kinds)
        if not calls.any():
            return f"no {self.word} ran"
        if not matches.doing(*self.kinds).any():
            words = matches.unmatched_words(*self.kinds)
            return f"no {self.word} could be matched over the ranks ({words})"
        if not matches.calls.bytes[calls].any():
            return f"the traces do not tell how large any {self.word} was"
        return f"the traces do not tell how many ranks take part in any {self.word}, or how long"


def _gb_per_s(table: Bandwidths, chosen: NDArray[np.bool_]) -> float:
    """Bytes over the bus by the time that they took."""
    seconds = table.time_ns[chosen] / 1e9
    return float((table.bus_bytes_per_s[chosen] * seconds).sum() / seconds.sum()) / _BYTES_PER_GB


def _bandwidth(name: str, word: str, factor: str, differs: str, *kinds: CollectiveKind) -> Formula:
    return Formula(
        name=name,
        label=f"{word.capitalize()} bandwidth",
        unit="GB/s",
        better="higher",
        sources=_TRACES,
        description=(
            f"Sum of S {factor} over sum of t, over every {word} that all ranks of its group show: "
            "S bytes of the whole buffer, t its least duration over the ranks, factor as in "
            "nccl-tests."
        ),
        formula=_Rate(word, kinds),
        version=2,
        differs=differs,
    )


bw_allreduce = _bandwidth(
    "bw_allreduce", "all-reduce", "2 (n - 1) / n", _DIFFERS, CollectiveKind.ALL_REDUCE
)

bw_allgather = _bandwidth(
    "bw_allgather",
    "all-gather",
    "(n - 1) / n",
    f"{_DIFFERS} Its S is the part of one rank, which is n times too small.",
    CollectiveKind.ALL_GATHER,
)

bw_reducescatter = _bandwidth(
    "bw_reducescatter",
    "reduce-scatter",
    "(n - 1) / n",
    _DIFFERS,
    CollectiveKind.REDUCE_SCATTER,
)

bw_alltoall = _bandwidth(
    "bw_alltoall",
    "all-to-all",
    "(n - 1) / n",
    f"{_DIFFERS} It knows NCCL's send-receive kernels only.",
    CollectiveKind.ALL_TO_ALL,
)

bw_peertopeer = _bandwidth(
    "bw_peertopeer",
    "transfer",
    "1",
    "Theirs is the mean of the NVLink or PCIe utilisation samples that are not zero, for three "
    "models by name: how busy a link is while it is used, not how fast a transfer is.",
    *TRANSFERS,
)
