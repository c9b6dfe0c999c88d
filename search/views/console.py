"""Safe output to a terminal: no text from elsewhere can control it.

`Terminal` separates the text that it renders from its own control codes; `neutral_streams` replaces
the standard streams while a command runs.
"""

import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

_STEERING = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|\r(?!\n)"
)


def plain(text: str) -> str:
    r"""The text with `\u001b` and the like for control characters and marks of direction.

    Line ends and tabs stay. In JSON the result means the same.
    """
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def plain_line(text: str) -> str:
    """The same on one line, so that a name cannot forge a line of ours."""
    return plain(text).replace("\n", "\\u000a").replace("\r", "\\u000d")


class Terminal(Console):
    """A console that prints texts unchanged: without markup, emoji codes or foreign controls."""

    def __init__(
        self, *, stderr: bool = False, width: int | None = None, highlight: bool = True
    ) -> None:
        super().__init__(stderr=stderr, width=width, highlight=highlight, markup=False, emoji=False)

    @property
    def file(self) -> IO[str]:
        """The stream to write to, behind a live display and a neutral stream."""
        file = self._file or (sys.stderr if self.stderr else sys.stdout)
        while (behind := getattr(file, "rich_proxied_file", None)) is not None:
            file = behind
        return file

    @file.setter
    def file(self, file: IO[str]) -> None:
        self._file = file

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render, with `plain` for every text that is not a control code of the renderer."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))


def on_terminal() -> bool:
    """Whether standard output is a terminal with cursor control."""
    return sys.stdout.isatty() and not Terminal().is_dumb_terminal


def echo_styled(line: str | Text) -> None:
    """Print a line, in its style on a terminal."""
    if isinstance(line, Text) and sys.stdout.isatty():
        Terminal(highlight=False).print(line)
    else:
        typer.echo(line.plain if isinstance(line, Text) else line)


class _Neutral(io.TextIOWrapper):
    """A standard stream on which everything is `plain`; shares the buffer of another."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        stream.flush()
        # A stream that can write ASCII only would be replaced when something is echoed to it.
        encoding = "utf-8" if stream.encoding.lower() in {"ascii", "ansi_x3.4-1968"} else None
        super().__init__(
            stream.buffer,
            encoding=encoding or stream.encoding,
            errors="replace",
            newline="\n",
            line_buffering=stream.line_buffering,
            write_through=True,
        )
        self.rich_proxied_file = stream
        """Where `Terminal` writes, which is neutral before it renders."""

    def write(self, text: str, /) -> int:
        return super().write(plain(text))


@contextmanager
def neutral_streams() -> Iterator[None]:
    """Neutralise all output until the context is left."""
    before = sys.stdout, sys.stderr
    neutral = [_Neutral(each) if isinstance(each, io.TextIOWrapper) else each for each in before]
    sys.stdout, sys.stderr = neutral
    try:
        yield
    finally:
        for stream in neutral:
            if isinstance(stream, _Neutral):
                _detach(stream)
        sys.stdout, sys.stderr = before


def _detach(stream: _Neutral) -> None:
    """Detach the buffer, which would be closed together with the stream."""
    try:
        stream.detach()
    except BrokenPipeError:  # the reader has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        stream.detach()


@contextmanager
def progress_bar(
    doing: str = "reading", *, shown: bool = True
) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how much is done; the caller gives how many of how many."""
    # Imported here: few commands read that long.
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Terminal(stderr=True)
    with Progress(
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=on_terminal(),
        disable=not shown or not console.is_terminal or console.is_dumb_terminal,
    ) as progress:
        task = progress.add_task(doing, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
