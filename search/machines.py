"""The machine that a launch on record was made on."""

from records.errors import StoreError
from records.launched import Launched
from records.machine import Machine
from records.store import Store


def machine_of(launched: Launched | None, records: Store) -> Machine | None:
    """Its description; None where none is on record, or it is no longer there as it was."""
    if launched is None or launched.machine is None:
        return None
    try:
        return records.machine(launched.machine)
    except StoreError:
        return None
