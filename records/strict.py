"""How values that people write are read: nothing unknown, no number that is none."""

from pydantic import ConfigDict

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
