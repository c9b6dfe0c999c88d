"""Errors that end a command; a trial that goes wrong is a value, `records.trial.Failed`.

CclsearchError
 ├─ StudyError        the question is malformed: card, study file, space, objective, option
 ├─ StoreError        the record cannot be read or written
 │   └─ StoreBusy     another process holds the study, or as WriterBusy writes to the store
 ├─ EnvironmentFault  this machine lacks what the study needs
 └─ CodecError        a stored value does not have the shape its type says
"""

SHOWN_CHARS = 100


class CclsearchError(Exception):
    """Base of all errors; the message says what, where and what to do, in one line."""


class StudyError(CclsearchError):
    """What was asked cannot be understood or cannot be run as asked."""


class StoreError(CclsearchError):
    """The store cannot be read or written."""


class StoreBusy(StoreError):
    """Another process works on the same study."""


class WriterBusy(StoreBusy):
    """Another process goes on writing to the whole store."""


class EnvironmentFault(CclsearchError):
    """The machine lacks something the study needs."""


class CodecError(CclsearchError):
    """Text does not decode to the type asked for."""


def shown(value: object) -> str:
    """A value as a message names it: on one line, cut when it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."
