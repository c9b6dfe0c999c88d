"""Hashes names of operators and kernels in traces; what communicates stays to be recognised."""

import hashlib
import re
import secrets

from evaluator.readers.kernels import collective_kind, communicates
from evaluator.traces.collectives import CollectiveKind

_KEPT = re.compile(
    r"ProfilerStep#\d+|PyTorch Profiler.*|fwdbwd|ac2g|Iteration Start.*|Record Window End"
    r"|(?:gloo|nccl|c10d|c10d_functional|_c10d_functional):.*|record_param_comms|\[memory\]"
    r"|(?:cuda|cu|hip)[A-Z]\w*|Mem(?:cpy|set)\b.*|Context Sync|Stream Wait.*"
    r"|execute_(?:\d+_)?context_\d+\(.*\)_generation_\d+\(.*\)|step\[\w+(?: .*)?\]"
)
_ATEN = "aten::"
KEPT_FIELDS = frozenset(
    {
        *("Collective name", "dtype", "Process Group Name", "Process Group Description"),
        *("Process Group Ranks", "Input type", "Input Dims", "Concrete Inputs", "labels", "cntr"),
        *("hlo_category", "run_id", "Src Rank", "Dst Rank", "backend"),
    }
)
"""What an event's arguments tell in texts without naming code."""


class HashedNames:
    """Names hashed under a key that nobody keeps: the same within an export, never beyond it."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self.count = 0

    def name(self, name: str) -> str:
        """The name of an event, hashed unless its kind is told by it."""
        if _KEPT.fullmatch(name) or communicates(name):
            return name
        if collective_kind(name) is not CollectiveKind.OTHER:
            return name
        return f"{_ATEN}{self._hash(name)}" if name.startswith(_ATEN) else self._hash(name)

    def arguments(self, value: object) -> object:
        """The arguments of an event, with texts hashed that may name code."""
        if not isinstance(value, dict):
            return self._hidden(value)
        return {
            field: told if field in KEPT_FIELDS else self._hidden(told)
            for field, told in value.items()
        }

    def _hidden(self, value: object) -> object:
        match value:
            case str():
                return self._hash(value) if value else value
            case list():
                return [self._hidden(each) for each in value]
            case dict():
                return {field: self._hidden(each) for field, each in value.items()}
            case _:
                return value

    def _hash(self, text: str) -> str:
        self.count += 1
        content = text.encode("utf-8", "surrogatepass")
        return f"op_{hashlib.blake2b(content, key=self._key, digest_size=6).hexdigest()}"
