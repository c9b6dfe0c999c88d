"""Tells device kernels that move data between ranks from those that compute, by their names."""

import re
from functools import lru_cache

from evaluator.traces.collectives import CollectiveKind

# Libraries first, then the collectives custom kernels are named after. Never a bare send, recv,
# broadcast or p2p: ordinary elementwise and copy kernels carry those words.
_COMMUNICATION = re.compile(
    r"nccl|rccl|oneccl|msccl|nvshmem|deep_ep|multimem|quickreduce|cross_device_reduce|sendrecv"
    r"|all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|all[_-]?to[_-]?all",
    re.IGNORECASE,
)
# In this order: `reduce_scatter` and `all_reduce` before `reduce`, `sendrecv` before `send`.
_KINDS = (
    (r"all_?reduce|quick_?reduce|cross_?device_?reduce", CollectiveKind.ALL_REDUCE),
    (r"reduce_?scatter", CollectiveKind.REDUCE_SCATTER),
    (r"all_?gather", CollectiveKind.ALL_GATHER),
    (r"all_?to_?all|deep_?ep\b.{0,200}(dispatch|combine)", CollectiveKind.ALL_TO_ALL),
    (r"send_?recv", CollectiveKind.SEND_RECV),
    (r"broadcast", CollectiveKind.BROADCAST),
    (r"barrier", CollectiveKind.BARRIER),
    (r"gather", CollectiveKind.GATHER),
    (r"scatter", CollectiveKind.SCATTER),
    (r"(?<!all_)reduce(?!_?scatter)", CollectiveKind.REDUCE),
    (r"(?:nccl|(?<![a-z]))i?send(?![a-z])", CollectiveKind.SEND),
    (r"(?:nccl|(?<![a-z]))i?recv(?![a-z])", CollectiveKind.RECV),
)
_NAMELESS = "(anonymous namespace)::"
_KIND_OF = tuple((re.compile(pattern), kind) for pattern, kind in _KINDS)


def communicates(kernel_name: str) -> bool:
    """Whether a kernel of this name is a collective or a transfer between ranks."""
    return _COMMUNICATION.search(kernel_name) is not None


@lru_cache(maxsize=10_000)
def collective_kind(name: str) -> CollectiveKind:
    """What a collective of this name does: of a kernel, of torch's operators, of XLA's."""
    plain = name.replace(_NAMELESS, "").partition("(")[0].lower().replace("-", "_")
    return next((kind for form, kind in _KIND_OF if form.search(plain)), CollectiveKind.OTHER)
