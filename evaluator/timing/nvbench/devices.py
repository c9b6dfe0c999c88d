"""Which devices of two result files are compared with each other, and whether they may differ."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from evaluator.timing.nvbench.document import Device, Document
from evaluator.timing.nvbench.errors import NvbenchError
from records.errors import StudyError, shown

_NUMBER: Final = re.compile(r"\s*[0-9]{1,9}\s*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChoice:
    """Ids of both sides, paired by position, None for all; one may be there several times."""

    reference: tuple[int, ...] | None = None
    candidate: tuple[int, ...] | None = None
    ignore_difference: bool = False

    @classmethod
    def of(
        cls, reference: str = "all", candidate: str = "all", *, ignore_difference: bool = False
    ) -> Self:
        """The choice that `all` or numbers with commas between them mean for each side."""
        return cls(
            reference=_ids("--reference-devices", reference),
            candidate=_ids("--candidate-devices", candidate),
            ignore_difference=ignore_difference,
        )

    def warnings(self, reference: Document, candidate: Document) -> tuple[str, ...]:
        """How the devices of two files differ, if they may.

        Raises NvbenchError where they may not: unless they were chosen, or it is to be ignored.
        """
        left = _chosen(reference, self.reference)
        right = _chosen(candidate, self.candidate)
        if len(left) != len(right):
            raise NvbenchError(
                f"{reference.path} and {candidate.path}: {len(left)} devices on one side and "
                f"{len(right)} on the other; choose as many with --reference-devices and "
                f"--candidate-devices"
            )
        different = _different(left, right)
        if not different:
            return ()
        told = f"{reference.path} and {candidate.path}: devices differ in {different}"
        if self.ignore_difference or (self.reference, self.candidate) != (None, None):
            return (told,)
        raise NvbenchError(
            f"{told}; compare them all the same with --ignore-devices, or choose some with "
            f"--reference-devices and --candidate-devices"
        )


def device(document: Document, number: int) -> Device:
    """The device of this id. Raises NvbenchError where the file does not have it."""
    for each in document.devices:
        if each.id == number:
            return each
    known = ", ".join(str(each.id) for each in document.devices) or "none"
    raise NvbenchError(f"{document.path}: there is no device {number}; choose of {known}")


def _ids(option: str, text: str) -> tuple[int, ...] | None:
    if text.strip().lower() == "all":
        return None
    items = text.split(",")
    if not all(_NUMBER.fullmatch(each) for each in items):
        raise StudyError(f"{option} {shown(text)}: give `all`, or numbers such as 0 or 0,2")
    return tuple(int(each) for each in items)


def _chosen(document: Document, ids: tuple[int, ...] | None) -> Sequence[Device]:
    return document.devices if ids is None else [device(document, number) for number in ids]


def _different(left: Sequence[Device], right: Sequence[Device]) -> str:
    """Names of the properties in which paired devices differ."""
    names = {
        key: None
        for one, other in zip(left, right, strict=True)
        for key in sorted({*one.properties, *other.properties})
        if one.properties.get(key) != other.properties.get(key)
    }
    return ", ".join(names)
