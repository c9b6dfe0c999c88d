"""Instants as records hold them."""

from datetime import UTC, datetime


def now() -> str:
    """UTC instant in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
