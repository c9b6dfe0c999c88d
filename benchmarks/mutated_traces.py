"""Small traces of every format, and every way we know to damage one; equal seeds give equal files.

Text is hurt as text (bytes, chunks, encodings) and as JSON (numbers, strings, keys, nesting,
repeated events), databases as pages and as tables, and any of them as a packed stream.
"""

import gzip
import json
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from generated_events import Style
from generated_job import Shape
from generated_traces import generate
from mutated_events import altered

TINY = Shape(ranks=1, world=2, steps=2, layers=1, operators=2)
WHOLE_TEXT_BYTES, KEPT_EVENTS = 120_000, 150
BOMB_BYTES = 600_000_000
NUMBER = re.compile(rb"(?<=[:\[, ])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?=[,\s}\]])")
STRING = re.compile(rb'"[^"\\]*"(?!\s*:)')
KEY = re.compile(rb'"[^"\\]*"\s*:')
MEMBER = re.compile(rb'"[^"\\]*"\s*:\s*(?:"[^"\\]*"|-?[\d.eE+-]+|null|true|false)\s*,?')
EVENT = re.compile(rb"\{[^{}]*(?:\{[^{}]*\}[^{}]*)?\}")
NUMBERS = (
    *(b"0", b"-0.0", b"-1", b"-5000", b"1e308", b"-1e308", b"1e999", b"1e-320", b"NaN"),
    *(
        b"Infinity",
        b"-Infinity",
        b"9007199254740993",
        b"9223372036854775807",
        b"-9223372036854775808",
    ),
    *(b"9223372036854775808", b"18446744073709551616", b"4611686018427387904", b"2251799813685248"),
    *(b"1" * 400, b"0." + b"3" * 400, b'"12"', b'"abc"', b"null", b"true", b"[]", b"{}", b"[1]"),
    *(b'"1e999"', b'"-7"', b'"0x10"', b"00012", b"1.", b".5", b"+3", b"1e5", b"123456789.9999999"),
)
STRINGS = (
    *(
        b'""',
        b'"\\u0000"',
        b'"\\ud800"',
        b'"\xff\xfe"',
        b'"\x01\x02"',
        b'"' + b"A" * 200_000 + b'"',
    ),
    *(b'"ProfilerStep#-1"', b'"ProfilerStep#99999999999999999999"', b'"ProfilerStep#"', b'"X"'),
    *(
        b'"kernel"',
        b'"nccl:all_reduce"',
        b'"gloo:all_reduce"',
        b'"_allgather_base"',
        b'"B"',
        b'"M"',
    ),
    *(b'"[0, 1, 2"', b'"[-5, 7]"', b'"[0, 1, ..., 1000000000]"', b'"[[525312]]"', b'"Float"', b"7"),
    *(b'"gpu_memcpy"', b'"gpu_user_annotation"', b'"cuda_runtime"', b"null", b"[]", b'"\\"'),
    *(
        b'"execute_99999999999999_context_9(sq1sk1)_generation_8"',
        b'"step[DECODE bs=-1]"',
        b'"\xe2\x80\xa8"',
    ),
    *(b'"(f32[99999999999,99999999999]) all-reduce(%x)"', b'"replica_groups={{0,1},{2}}"', b'"e"'),
)
KEYS = (
    b'"ts":',
    b'"dur":',
    b'"pid":',
    b'"args":',
    b'"name":',
    b'"traceEvents":',
    b'"rank":',
    b'"":',
)
VALUES = ("NULL", "-1", "9223372036854775807", "-9223372036854775808", "'text'", "x'00ff'", "1e300")
HOSTILE_VIEWS = (
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start, x AS end, "
    "x AS id, x AS value, x AS text, x AS deviceId, x AS streamId, x AS globalPid, "
    "x AS correlationId, x AS demangledName, x AS shortName, x AS bytes, x AS name, "
    "x AS globalTid, x AS eventType, x AS copyKind FROM n",
    "SELECT zeroblob(900000000) AS start, zeroblob(900000000) AS value, 1 AS id, 2 AS end",
    "SELECT 1",
)


def seeds(corpus: Path) -> Mapping[str, bytes]:
    """Small whole files by name, unpacked: generated ones, and the corpus if it is there."""
    found = dict(_generated())
    for path in sorted(corpus.glob("kineto/**/*.json.gz")):
        if path.name.startswith("et_"):
            continue
        found[f"kineto/{path.parent.name}/{path.name}".replace("kineto/kineto", "kineto")] = (
            _shortened(gzip.decompress(path.read_bytes()))
        )
    for path in sorted(corpus.glob("xla/*.json.gz")):
        found[f"xla/{path.name}"] = _shortened(gzip.decompress(path.read_bytes()))
    for path in sorted(corpus.glob("nsys/*.sqlite.gz")):
        found[f"nsys/{path.name}"] = _few_rows(gzip.decompress(path.read_bytes()))
    return found


def _generated() -> Iterator[tuple[str, bytes]]:
    styles = (Style(), Style(era="absolute", layout="sorted"), Style(era="integer"))
    for style in styles:
        with TemporaryDirectory() as folder:
            generate(Path(folder), TINY, style)
            text = (Path(folder) / "rank0_trace.json").read_bytes()
        yield f"generated/{style.era}", text
    yield "generated/list", json.dumps(json.loads(text)["traceEvents"]).encode()


def _shortened(text: bytes) -> bytes:
    if len(text) <= WHOLE_TEXT_BYTES:
        return text
    document = json.loads(text, strict=False)
    events = document["traceEvents"] if isinstance(document, dict) else document
    told = [event for event in events if event.get("ph") == "M"][:100]
    device = [e for e in events if str(e.get("cat", "")).lower() in {"kernel", "gpu_memcpy"}]
    steps = [e for e in events if "Step" in str(e.get("name", ""))]
    few = [*told, *steps[:20], *device[:KEPT_EVENTS], *events[-KEPT_EVENTS:]]
    if isinstance(document, dict):
        return json.dumps(document | {"traceEvents": few}, indent=1).encode()
    return json.dumps(few).encode()


def _few_rows(database: bytes) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "few.sqlite"
        path.write_bytes(database)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for table in _tables(connection):
                if table != "StringIds":
                    connection.execute(f'DELETE FROM "{table}" WHERE rowid > 120')
            connection.execute("VACUUM")
        return path.read_bytes()


def _tables(connection: sqlite3.Connection) -> list[str]:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    return [name for (name,) in connection.execute(query)]


def mutant(content: bytes, random: Random) -> bytes:
    """A damaged file: one to four wounds, then perhaps packed, and perhaps damaged once more."""
    is_database = content.startswith(b"SQLite format 3")
    wounds = DATABASE_WOUNDS if is_database else TEXT_WOUNDS
    if not is_database and random.random() < 0.6:
        wounds = (altered,)
    for _ in range(random.choice((1, 1, 1, 2, 2, 4))):
        content = random.choice(wounds)(content, random)
    if random.random() < 0.2:
        content = random.choice(PACKINGS)(content, random)
    return content


def flip_bytes(content: bytes, random: Random) -> bytes:
    """Some bytes become others."""
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 8, 64))):
        if changed:
            changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def cut(content: bytes, random: Random) -> bytes:
    """A chunk is missing."""
    first, behind = _range(content, random)
    return content[:first] + content[behind:]


def truncate(content: bytes, random: Random) -> bytes:
    """The end is missing."""
    return content[: random.randrange(len(content) + 1)]


def duplicate(content: bytes, random: Random) -> bytes:
    """A chunk is there twice, or stands elsewhere as well."""
    first, behind = _range(content, random)
    to = random.choice((behind, random.randrange(len(content) + 1)))
    return content[:to] + content[first:behind] + content[to:]


def insert(content: bytes, random: Random) -> bytes:
    """Bytes that do not belong there."""
    at = random.randrange(len(content) + 1)
    foreign = random.choice(
        (
            b"\x00",
            b"\x1b[31m",
            b"\xef\xbb\xbf",
            b"\xff\xff",
            b"},{",
            b"]}",
            b'"',
            b"\\",
            b"{}",
            b",,",
        )
    )
    return content[:at] + foreign * random.choice((1, 1, 3)) + content[at:]


def encode(content: bytes, random: Random) -> bytes:
    """Another encoding of the whole."""
    encoding = random.choice(("utf-16", "utf-32", "utf-8-sig"))
    return content.decode("latin-1").encode(encoding)


def change_numbers(content: bytes, random: Random) -> bytes:
    """Numbers become huge, negative, none, or no numbers."""
    return _replaced(content, random, NUMBER, lambda _: random.choice(NUMBERS))


def change_strings(content: bytes, random: Random) -> bytes:
    """Strings become other ones that mean something, or that must not be there."""
    return _replaced(content, random, STRING, lambda _: random.choice(STRINGS))


def change_keys(content: bytes, random: Random) -> bytes:
    """Keys become others, so that some are missing and some there twice."""
    return _replaced(content, random, KEY, lambda _: random.choice(KEYS))


def drop_members(content: bytes, random: Random) -> bytes:
    """Keys are missing with their values."""
    return _replaced(content, random, MEMBER, lambda _: b"")


def nest(content: bytes, random: Random) -> bytes:
    """A value becomes a deep nest."""
    depth = random.choice((3, 100, 1_000, 100_000, 2_000_000))
    opening, closing_ = random.choice(((b"[", b"]"), (b'{"a":', b"}")))
    deep = opening * depth + b"1" + closing_ * random.choice((depth, depth, 0))
    return _replaced(content, random, NUMBER, lambda _: deep, count=1)


def repeat_event(content: bytes, random: Random) -> bytes:
    """One event is there a thousand times."""
    times = random.choice((2, 10, 1_000))
    return _replaced(content, random, EVENT, lambda match: b",".join([match[0]] * times), count=1)


def one_number_everywhere(content: bytes, random: Random) -> bytes:
    """All values of one key become the same."""
    keys = [b"ts", b"dur", b"pid", b"tid", b"correlation", b"stream", b"bytes", b"External id"]
    value = random.choice(NUMBERS)
    pattern = rb'("' + random.choice(keys) + rb'"\s*:\s*)(-?[\d.eE+-]+)'
    return re.sub(pattern, lambda match: match[1] + value, content)


def damage_pages(content: bytes, random: Random) -> bytes:
    """Pages of a database are noise, empty, or another page."""
    size = 4096
    pages = [content[at : at + size] for at in range(0, len(content), size)] or [b""]
    for _ in range(random.choice((1, 1, 3))):
        page = random.randrange(len(pages))
        pages[page] = random.choice(
            (random.randbytes(size), bytes(size), random.choice(pages), pages[page][: size // 2])
        )
    return b"".join(pages)


def change_tables(content: bytes, random: Random) -> bytes:
    """Values, columns or tables of a database are missing, absurd, or a query without end."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "changed.sqlite"
        path.write_bytes(content)
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode=OFF")
                _change_table(connection, random)
        except (sqlite3.Error, UnicodeDecodeError):  # what SQLite says may be no text
            return content
        return path.read_bytes()


def _change_table(connection: sqlite3.Connection, random: Random) -> None:
    tables = _tables(connection)
    known = [name for name in tables if name.startswith(("CUPTI", "NVTX", "String", "TARGET"))]
    table = random.choice(known or tables)
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    column, value = random.choice(columns), random.choice(VALUES)
    where = random.choice(("", "WHERE rowid = 1", "WHERE rowid % 3 = 0"))
    view = random.choice(HOSTILE_VIEWS)
    statements = random.choice(
        (
            (f'UPDATE "{table}" SET "{column}" = {value} {where}',),
            (f'UPDATE "{table}" SET "{column}" = {value} {where}',),
            (f'UPDATE "{table}" SET "{column}" = -"{column}" {where}',),
            (f'DELETE FROM "{table}" {where}',),
            (f'DROP TABLE "{table}"',),
            (f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "gone"',),
            (f'DROP TABLE "{table}"', f'CREATE VIEW "{table}" AS {view}'),
        )
    )
    for statement in statements:
        connection.execute(statement)


def pack(content: bytes, random: Random) -> bytes:
    """The same as gzip, whole or in several members."""
    at = random.randrange(len(content) + 1)
    return random.choice(
        (gzip.compress(content, 1), gzip.compress(content[:at], 1) + gzip.compress(content[at:], 1))
    )


def pack_and_damage(content: bytes, random: Random) -> bytes:
    """A gzip stream that is cut, changed, followed by noise or packed twice."""
    packed = gzip.compress(content, 1)
    return random.choice(
        (
            truncate(packed, random),
            flip_bytes(packed, random),
            packed + random.randbytes(random.choice((1, 20, 5000))),
            gzip.compress(packed, 1),
            packed[:-8] + bytes(8),
            cut(packed, random),
        )
    )


def bomb(content: bytes, random: Random) -> bytes:
    """A small gzip stream that unpacks to hundreds of megabytes."""
    filler = random.choice((b" ", b"{},", b"0,", b"[", b'"a":1,'))
    head = content[: content.find(b"[") + 1] if b"[" in content else content
    packer = zlib.compressobj(1, wbits=31)
    piece = filler * (1_000_000 // len(filler))
    packed = [packer.compress(head)]
    packed += [packer.compress(piece) for _ in range(BOMB_BYTES // 1_000_000)]
    return b"".join((*packed, packer.flush()))


def _range(content: bytes, random: Random) -> tuple[int, int]:
    first = random.randrange(len(content) + 1)
    return first, min(len(content), first + random.choice((1, 10, 300, 20_000)))


def _replaced(
    content: bytes,
    random: Random,
    pattern: re.Pattern[bytes],
    value: Callable[["re.Match[bytes]"], bytes],
    count: int | None = None,
) -> bytes:
    """Some matches, evenly from anywhere, become another value."""
    spots = list(pattern.finditer(content))
    if not spots:
        return content
    count = count or random.choice((1, 1, 2, 10, 100))
    chosen = sorted(
        {random.randrange(len(spots)) for _ in range(count)},
    )
    pieces, at = list[bytes](), 0
    for index in chosen:
        pieces += [content[at : spots[index].start()], value(spots[index])]
        at = spots[index].end()
    return b"".join((*pieces, content[at:]))


Wound = Callable[[bytes, Random], bytes]
TEXT_WOUNDS: tuple[Wound, ...] = (
    *(flip_bytes, cut, truncate, duplicate, insert, insert, encode, nest, repeat_event),
    *(change_numbers, change_numbers, change_numbers, change_strings, change_strings),
    *(change_keys, drop_members, drop_members, one_number_everywhere),
)
DATABASE_WOUNDS: tuple[Wound, ...] = (
    *(flip_bytes, cut, truncate, damage_pages, damage_pages),
    *(change_tables, change_tables, change_tables, change_tables),
)
# A bomb takes seconds to make and to refuse, so there are few.
PACKINGS: tuple[Wound, ...] = (*([pack] * 12), *([pack_and_damage] * 12), bomb)
