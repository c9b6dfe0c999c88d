"""What a process runs that reads trace files for another: one request a line, one reply a line."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from evaluator.rank.confinement import die_with
from evaluator.readers.cache import cache_path, read_and_keep
from evaluator.readers.columns import write_columns
from evaluator.readers.files import ReadLimits
from evaluator.readers.formats import read_file
from evaluator.traces.errors import TraceError


class Request(msgspec.Struct):
    """Read a file, leave its cache if that is wanted and worth it, else write `columns`."""

    path: bytes
    limits: ReadLimits
    use_cache: bool
    columns: bytes


class Reply(msgspec.Struct):
    """Where the columns of the file are, or why there are none."""

    columns: bytes | None = None
    refusal: str = ""


def answer(request: Request) -> Reply:
    """Do what is requested."""
    path, columns = Path(os.fsdecode(request.path)), Path(os.fsdecode(request.columns))
    try:
        if request.use_cache:
            traces, kept = read_and_keep(path, request.limits, None)
            if kept:
                return Reply(columns=os.fsencode(cache_path(path)))
        else:
            traces = read_file(path, request.limits, None)
        with columns.open("wb") as file:
            write_columns(file, traces)
    except TraceError as error:
        return Reply(refusal=_printable(str(error).removeprefix(f"{path}: ")))
    except OSError as error:
        return Reply(refusal=_printable(f"cannot be handed over: {error}"))
    return Reply(columns=request.columns)


def _printable(text: str) -> str:
    """File names need not be text."""
    return text.encode(errors="replace").decode()


def main() -> None:
    """Answer until nobody asks; die with the process that asks, and before it if memory ends."""
    die_with(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who pressed Ctrl-C means the process that asks
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    for line in sys.stdin.buffer:
        reply = answer(msgspec.json.decode(line, type=Request))
        sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
