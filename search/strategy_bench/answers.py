"""Answers of a model in benchmarks: kept in a file, so that each request is paid for once.

A file has one answered request on each line. A search with the same strategy and random seed on
the same landscape gets the answers in it without a network, a key or the SDK; what is not in it is
asked for and added.
"""

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from records.codec import from_json, to_json
from records.errors import CodecError, StudyError
from records.files import read_text
from records.study import Llm
from search import settings
from search.llm.client import LlmClient, Transport
from search.llm.messages import Answer
from search.llm.transcripts import Body, Diverged, RecordedTurn, TranscriptTransport

if TYPE_CHECKING:
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming


MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model that searches ask, and the file of its answers, if they are kept."""

    llm: Llm = field(default_factory=Llm)
    answers: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """The search that asks."""

    landscape: str
    strategy: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One request of a search, and the answer to each attempt."""

    asker: Asker
    request: Mapping[str, object]
    answers: tuple[Answer, ...]


def client_of(model: Model, asker: Asker) -> LlmClient:
    """Return a client with the kept answers; without a key it has no others.

    Raises `StudyError` without a key where no answer of this search is kept, and for a file that
    cannot be written, before anything is paid for.
    """
    path, is_live = model.answers, settings.has_key()
    try:
        kept = [each for each in _read(path) if each.asker == asker] if path is not None else []
        if path is not None and is_live:
            path.open("a", encoding="utf-8").close()
    except OSError as error:
        words = error.strerror or error
        raise StudyError(f"{path}: answers cannot be kept there: {words}") from error
    if is_live or not kept:
        provider = settings.llm_settings(model.llm)
    else:
        provider = settings.settings_of(model.llm, settings.Secret(token_hex(32), ""), None)
    return LlmClient(provider, KeptAnswers(asker, kept, path, provider if is_live else None))


def _read(path: Path) -> Iterator[Kept]:
    """Yield what is kept; raises `StudyError` for a line that is nothing of the kind."""
    if not path.exists():
        return
    # Not `splitlines`: an answer may hold what it takes for the end of a line.
    for number, line in enumerate(read_text(path, MOST_BYTES).split("\n")[:-1], start=1):
        try:
            yield from_json(Kept, line)
        except CodecError as error:
            raise StudyError(f"{path}: line {number} is no answer of a model: {error}") from error


class KeptAnswers:
    """A transport with answers of before; others come from the provider, and are kept."""

    def __init__(
        self,
        asker: Asker,
        kept: Sequence[Kept],
        path: Path | None,
        live: settings.LlmSettings | None,
    ) -> None:
        self._asker, self._path, self._live = asker, path, live
        turns = (RecordedTurn(body=each.request, answers=each.answers) for each in kept)
        self._kept = TranscriptTransport(turns)
        self._opened: Transport | None = None

    def send(self, body: "MessageCreateParamsNonStreaming") -> tuple[Answer, ...]:
        """Return the answer to every attempt; raises `StudyError` where there is none."""
        request: Body = from_json(dict[str, object], to_json(body))
        try:
            return self._kept.send(request)
        except Diverged as error:
            if self._live is None:
                raise StudyError(f"{self._path}: {error}; export a key to ask for it") from error
        answers = self._provider.send(body)
        if answers[-1].status != HTTPStatus.OK:
            kept = "run it again to go on" if self._path else "--transcripts FILE keeps the others"
            raise StudyError(f"the model gave no answer: {answers[-1].text[:200]}; {kept}")
        if self._path is not None:
            line = to_json(Kept(asker=self._asker, request=request, answers=answers))
            with self._path.open("a", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # other searches add to it too
                file.write(f"{self._live.api_key.scrub(line)}\n")
        return answers

    def count_tokens(self, body: "MessageCreateParamsNonStreaming") -> int | None:
        """Return None: no budget of a benchmark is in tokens."""

    def close(self) -> None:
        """Close the connection, if one was made."""
        if self._opened is not None:
            self._opened.close()

    @property
    def _provider(self) -> Transport:
        if self._opened is None:
            # Imported here: the SDK takes seconds to load.
            from search.llm.transport import AnthropicTransport

            assert self._live is not None
            self._opened = AnthropicTransport(self._live)
        return self._opened
