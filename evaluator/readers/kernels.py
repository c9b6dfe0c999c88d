"""Tells device kernels that move data between ranks from those that compute, by their names."""

import re

# Libraries first, then the collectives custom kernels are named after. Never a bare send, recv,
# broadcast or p2p: ordinary elementwise and copy kernels carry those words.
_COMMUNICATION = re.compile(
    r"nccl|rccl|oneccl|msccl|nvshmem|deep_ep|multimem|quickreduce|cross_device_reduce|sendrecv"
    r"|all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|all[_-]?to[_-]?all",
    re.IGNORECASE,
)


def communicates(kernel_name: str) -> bool:
    """Whether a kernel of this name is a collective or a transfer between ranks."""
    return _COMMUNICATION.search(kernel_name) is not None
