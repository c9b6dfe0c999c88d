"""Ways to damage a trace that leave it good JSON: other events, times, values and headers."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

Event = dict[str, Any]
Document = Any
TIMES = ("ts", "dur")
PLAIN: tuple[Any, ...] = (
    *(0, 1, -1, 7, 1_000, 10**6, 10**9, 2**31, 2**53 + 1, 10**15, 2**62, 2**63, 10**30, -(10**9)),
    *(0.0005, 0.5, 1e-320, 1e15, 1e300, -0.001, "", "12", "-3.5", "abc", None, True, [], {}, [1]),
)
HEADERS: dict[str, tuple[Any, ...]] = {
    "baseTimeNanoseconds": (0, -1, 10**18, 2**62, 2**63, "5", None),
    "deviceProperties": ([], {}, None, [{}], [{"id": 0, "numSms": 0}], [{"numSms": -4}], [7]),
    "distributedInfo": (
        *({}, None, [], {"rank": 0}, {"rank": -1}, {"rank": 10**12, "world_size": 10**13}),
        *({"rank": 3, "world_size": 2}, {"rank": "0"}, {"backend": "gloo", "rank": 0}),
        *({"rank": 0, "world_size": 4, "pg_config": [{"pg_name": "0", "ranks": "[0, 1"}]},),
        *({"rank": 0, "pg_config": {"0": [0, 1]}}, {"rank": 0, "world_size": 0}),
    ),
    "displayTimeUnit": ("ns", "s", 3, None),
    "traceEvents": ([], {}, None, [None], [[]], [{}], [[{}]]),
}
CATEGORIES = (
    *("kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "cpu_op", "Operator", "Runtime"),
    *("cuda_runtime", "user_annotation", "gpu_user_annotation", "python_function", "", "Trace"),
)


def altered(content: bytes, random: Random) -> bytes:
    """A trace with one to three changes of its events or header; the same where it is no JSON."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return content
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        return content
    for _ in range(random.choice((1, 1, 2, 3))):
        if isinstance(document, dict) and random.random() < 0.1:
            change_header(document, random)
        elif events:
            random.choice(CHANGES)(events, random)
    return json.dumps(document).encode("utf-8", "surrogatepass")


def change_header(document: Document, random: Random) -> None:
    """A field of the header is another, or missing."""
    name = random.choice(tuple(HEADERS))
    if random.random() < 0.3:
        document.pop(name, None)
    else:
        document[name] = random.choice(HEADERS[name])


def change_values(events: list[Event], random: Random) -> None:
    """Some values are plain other ones."""
    for _ in range(random.choice((1, 1, 3, 20))):
        holder = _holder(random.choice(events), random)
        if holder:
            holder[random.choice(tuple(holder))] = random.choice(PLAIN)


def swap_values(events: list[Event], random: Random) -> None:
    """Some events have a value of another one's."""
    for _ in range(random.choice((1, 5, 50))):
        to, of = _holder(random.choice(events), random), random.choice(events)
        key = random.choice(tuple(to)) if to else ""
        inner = of.get("args")
        value = of.get(key, inner.get(key) if isinstance(inner, dict) else None)
        if value is not None:
            to[key] = value


def scale_values(events: list[Event], random: Random) -> None:
    """All numbers of a key are multiplied, shifted or equal."""
    keys = ("ts", "dur", "correlation", "bytes", "stream", "In msg nelems", "External id", "pid")
    key, factor = random.choice(keys), random.choice((0, -1, 0.001, 0.5, 3, 1_000, 10**6, 10**12))
    shift = random.choice((0, 0, 1, 0.25, -(10**6), 10**9, 10**15))
    for event in events:
        for holder in (event, event.get("args")):
            value = holder.get(key) if isinstance(holder, dict) else None
            if isinstance(value, int | float) and isinstance(holder, dict):
                holder[key] = value * factor + shift


def shift_times(events: list[Event], random: Random) -> None:
    """Some spans start elsewhere, last longer, or less than nothing."""
    for event in random.sample(events, min(len(events), random.choice((1, 10, 100)))):
        key = random.choice(TIMES)
        value = event.get(key)
        if isinstance(value, int | float):
            event[key] = value + random.choice((0.0004, -0.5, -200, 10**4, 10**7, -(10**8), 10**13))


def drop_events(events: list[Event], random: Random) -> None:
    """A run of events, every other one, or those of one category are missing."""
    category = random.choice(events).get("cat")
    first = random.randrange(len(events))
    events[:] = random.choice(
        (
            events[:first] + events[first + random.choice((1, 30, 10_000)) :],
            events[::2],
            [event for event in events if event.get("cat") != category],
            [event for event in events if event.get("ph") != "M"],
            [event for event in events if event.get("cat") == category],
        )
    )


def reorder_events(events: list[Event], random: Random) -> None:
    """Events stand in another order."""
    if random.random() < 0.5:
        events.reverse()
    else:
        random.shuffle(events)


def repeat_events(events: list[Event], random: Random) -> None:
    """Events are there again, as they are or a little later."""
    later = random.choice((0, 0, 0.001, 50, 10**6))
    again = [dict(event) for event in random.sample(events, min(len(events), 200))]
    for event in again:
        if isinstance(event.get("ts"), int | float):
            event["ts"] += later
    events += again


def change_categories(events: list[Event], random: Random) -> None:
    """Events are of another category."""
    for event in random.sample(events, min(len(events), random.choice((1, 10, 1_000)))):
        event["cat"] = random.choice(CATEGORIES)


def _holder(event: Event, random: Random) -> Event:
    inner = event.get("args")
    return inner if isinstance(inner, dict) and inner and random.random() < 0.6 else event


CHANGES: tuple[Callable[[list[Event], Random], None], ...] = (
    *(change_values, change_values, swap_values, swap_values, scale_values, scale_values),
    *(shift_times, shift_times, drop_events, reorder_events, repeat_events, change_categories),
)
