"""A scripted Messages API on a loopback socket, and a study with a past of any length.

The server speaks HTTP to the real SDK, answers from a script or a function of the request, and
keeps what it was sent. It knows nothing of prompts or policies.
"""

import json
import math
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any, Self, TypeAlias

from policies.space import Space
from records.llm_exchange import LlmExchange
from records.study import (
    Budget,
    Constraint,
    Dimension,
    Environment,
    Link,
    Measure,
    Objective,
    Range,
    SearchSpace,
    Study,
)
from records.trial import (
    Breakdown,
    CollectiveTime,
    Config,
    Diagnosis,
    Failed,
    FailureKind,
    History,
    Measured,
    Measurement,
    MetricValue,
    Outcome,
    Policy,
    Prediction,
    Purpose,
    RaceResult,
    Repeat,
    Score,
    Stage,
    Trial,
)
from records.workload import Workload
from search.llm.client import Allowance, LlmClient
from search.llm.messages import Prompt
from search.llm.tools import Draft, Problem
from search.loop.learned import LearnedConstraint
from search.loop.ports import Evaluator
from search.settings import LlmSettings, Secret
from search.strategies.base import Choice, untried
from tests.support import records
from tests.support.evaluator import Takes

CHARS_PER_TOKEN = 4
MOST_PIECES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """One HTTP answer; `dropped` closes the connection instead, `delay_s` waits before either.

    A `page` is sent in the place of the body. Half of a `truncated` body is announced as all of it.
    After half of an `interrupted` one the connection ends, and after half of a `stalled` one
    nothing more comes.
    """

    status: int = 200
    body: Mapping[str, object] = field(default_factory=dict)
    page: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    dropped: bool = False
    truncated: bool = False
    interrupted: bool = False
    stalled: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """What the server was sent; header names in lower case."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, object]
    """Without `stream`, which is kept for itself."""
    stream: bool = False

    @property
    def key(self) -> str | None:
        """The key it came with, in either header that clients use."""
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        return self.headers.get("x-api-key") or bearer or None


Script: TypeAlias = Iterable[ScriptedReply] | Callable[[Mapping[str, object]], ScriptedReply]


def message(
    *content: Mapping[str, object], stop_reason: str = "end_turn", **more: object
) -> ScriptedReply:
    """A message of the model with these content blocks."""
    body = {"content": list(content), "stop_reason": stop_reason, **more}
    return ScriptedReply(body=body)


def tool_use(tool_input: object, *, name: str = "submit_policy") -> ScriptedReply:
    """A message that calls a tool with any input, well formed or not."""
    block = {"type": "tool_use", "id": "toolu_scripted", "name": name, "input": tool_input}
    return message(block, stop_reason="tool_use")


def tool_uses(*inputs: object, name: str = "submit_policy") -> ScriptedReply:
    """A message that calls the same tool several times, which it was asked not to."""
    blocks = [
        {"type": "tool_use", "id": f"toolu_scripted_{place}", "name": name, "input": each}
        for place, each in enumerate(inputs)
    ]
    return message(*blocks, stop_reason="tool_use")


def submission(
    code: str, *, rationale: str = "because", expected_speedup: object = 1.1, **more: object
) -> ScriptedReply:
    given = {"rationale": rationale, "expected_speedup": expected_speedup, "code": code}
    return tool_use({**given, **more})


def text(words: str, *, stop_reason: str = "end_turn") -> ScriptedReply:
    return message({"type": "text", "text": words}, stop_reason=stop_reason)


def refusal(category: str = "frontier_llm") -> ScriptedReply:
    details = {"type": "refusal", "category": category, "explanation": None}
    return message(stop_reason="refusal", stop_details=details)


def fault(
    status: int,
    words: str = "scripted fault",
    *,
    retry_after_s: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> ScriptedReply:
    """An HTTP error in the API's own shape."""
    wait = {} if retry_after_s is None else {"retry-after": f"{retry_after_s:g}"}
    body = {"type": "error", "error": {"type": "scripted_error", "message": words}}
    return ScriptedReply(status=status, body=body, headers={**wait, **(headers or {})})


def tool_refused() -> ScriptedReply:
    return fault(400, "this model does not support tools")


def prompt_too_long() -> ScriptedReply:
    return fault(400, "prompt is too long: 250000 tokens > 200000 maximum")


def cut(reply: ScriptedReply) -> ScriptedReply:
    """The same message, ended by the limit of output tokens."""
    return replace(reply, body={**reply.body, "stop_reason": "max_tokens"})


def dropped_connection() -> ScriptedReply:
    return ScriptedReply(dropped=True)


def truncated(reply: ScriptedReply) -> ScriptedReply:
    return replace(reply, truncated=True)


def interrupted(reply: ScriptedReply) -> ScriptedReply:
    return replace(reply, interrupted=True)


def stalled(reply: ScriptedReply) -> ScriptedReply:
    return replace(reply, stalled=True)


def slow(reply: ScriptedReply, delay_s: float) -> ScriptedReply:
    return replace(reply, delay_s=delay_s)


def event_lines(message: Mapping[str, object], piece_chars: int = 40) -> Iterator[str]:
    """A message as the lines of an event stream, its texts in pieces."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    usage = message.get("usage")
    start = {**message, "content": [], "stop_reason": None}
    yield _event("message_start", message=start)
    yield _event("ping")
    for index, block in enumerate(blocks):
        empty, deltas = _pieces(block, piece_chars)
        yield _event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    ends = ("stop_reason", "stop_sequence", "stop_details")
    delta = {name: message[name] for name in ends if name in message}
    yield _event("message_delta", delta=delta, usage=usage)
    yield _event("message_stop")


def _event(kind: str, **fields: object) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def _pieces(
    block: Mapping[str, object], chars: int
) -> tuple[Mapping[str, object], list[Mapping[str, object]]]:
    """A block as it starts, and what is added to it."""
    if block.get("type") == "tool_use":
        text = json.dumps(block.get("input"))
        pieces = _cut(text, chars)
        return {**block, "input": {}}, [
            {"type": "input_json_delta", "partial_json": piece} for piece in pieces
        ]
    names = {"text": "text_delta", "thinking": "thinking_delta", "signature": "signature_delta"}
    found = [(name, kind) for name, kind in names.items() if isinstance(block.get(name), str)]
    return {**block, **{name: "" for name, _ in found}}, [
        {"type": kind, name: piece}
        for name, kind in found
        for piece in _cut(str(block[name]), chars)
    ]


def _cut(text: str, chars: int) -> list[str]:
    chars = max(chars, len(text) // MOST_PIECES)
    return [text[start : start + chars] for start in range(0, len(text), chars)]


@contextmanager
def deaf_port(number: int = 0) -> Iterator[int]:
    """A port of loopback that refuses connections; a server may listen at it, no test is lent it.

    0 is any free one.
    """
    with socket.socket() as at:
        at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        at.bind(("127.0.0.1", number))
        yield at.getsockname()[1]


class ScriptedMessagesServer:
    """Serves `POST /v1/messages` while its context is open; past its script it answers 400.

    A message is sent in one piece where no stream is asked for, or where it never `streams`. It
    answers how many tokens a request has if it `counts` them, and with 404 if not.
    What a script raises is raised again when the context closes.
    """

    def __init__(self, script: Script, *, streams: bool = True, counts: bool = False) -> None:
        self.requests: list[RecordedRequest] = []
        self.counted: list[RecordedRequest] = []
        self._streams, self._counts = streams, counts
        self._reply_to = script if callable(script) else _in_order(script)
        self._lock = Lock()
        self._closing = Event()
        self._cached: set[str] = set()
        self._http = _HttpServer(("127.0.0.1", 0), _handler(self))
        # A short poll, because shutdown waits for one.
        self._thread = Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
        if self._http.fault is not None and error is None:
            raise self._http.fault

    def answer(self, request: RecordedRequest) -> ScriptedReply:
        """Record a request and give its reply, completed to a message when it is one."""
        if request.path.partition("?")[0] == "/v1/messages/count_tokens":
            self.counted.append(request)
            return self._count(request)
        with self._lock:
            self.requests.append(request)
            reply = _checked(request) or self._reply_to(request.body)
            if reply.status == 200 and not reply.dropped:
                reply = replace(reply, body=self._completed(reply.body, request.body))
        self._closing.wait(reply.delay_s)
        return reply

    def wait_for_close(self) -> None:
        """Wait until the context is left."""
        self._closing.wait()

    def _count(self, request: RecordedRequest) -> ScriptedReply:
        if not self._counts:
            return fault(404, "tokens are not counted here")
        return ScriptedReply(
            body={"input_tokens": len(json.dumps(request.body)) // CHARS_PER_TOKEN}
        )

    def content(self, request: RecordedRequest, reply: ScriptedReply) -> tuple[str, str]:
        """The kind and the text of what is sent as a reply."""
        if reply.page is not None:
            is_stream = reply.page.startswith("event:")
            return "text/event-stream" if is_stream else "text/html", reply.page
        is_message = reply.status == 200 and isinstance(reply.body.get("content"), list)
        if is_message and request.stream and self._streams:
            return "text/event-stream", "".join(event_lines(reply.body))
        return "application/json", json.dumps(reply.body)

    def _completed(
        self, reply: Mapping[str, object], request: Mapping[str, object]
    ) -> dict[str, object]:
        return {
            "id": f"msg_scripted_{len(self.requests)}",
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "stop_sequence": None,
            "usage": self._usage(reply, request),
            **reply,
        }

    def _usage(
        self, reply: Mapping[str, object], request: Mapping[str, object]
    ) -> dict[str, object]:
        """Token counts as the API would bill them: the marked prefix is written once, then read."""
        prefix = json.dumps([request.get("tools"), request.get("system")])
        marked = "cache_control" in prefix
        prefix_tokens = len(prefix) // CHARS_PER_TOKEN if marked else 0
        seen = prefix in self._cached
        self._cached.add(prefix)
        return {
            "input_tokens": len(json.dumps(request["messages"])) // CHARS_PER_TOKEN,
            "output_tokens": max(1, len(json.dumps(reply.get("content"))) // CHARS_PER_TOKEN),
            "cache_creation_input_tokens": 0 if seen else prefix_tokens,
            "cache_read_input_tokens": prefix_tokens if seen else 0,
            "service_tier": "standard",
        }


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    fault: BaseException | None = None

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the base's signature
        """Keep what a script raised; a client that hangs up early is part of what is tested."""
        error = sys.exception()
        if not isinstance(error, ConnectionError):
            self.fault = error


def _in_order(replies: Iterable[ScriptedReply]) -> Callable[[Mapping[str, object]], ScriptedReply]:
    left = iter(replies)
    return lambda _: next(left, fault(400, "the script has no reply left"))


def _checked(request: RecordedRequest) -> ScriptedReply | None:
    if request.path.partition("?")[0] != "/v1/messages":
        return fault(404, f"no such path: {request.path}")
    if request.key is None:
        return fault(401, "no key")
    missing = {"model", "max_tokens", "messages"} - request.body.keys()
    return fault(400, f"missing fields: {sorted(missing)}") if missing else None


def _handler(server: ScriptedMessagesServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length))
            request = RecordedRequest(
                path=self.path,
                headers={name.lower(): value for name, value in self.headers.items()},
                stream=body.pop("stream", False),
                body=body,
            )
            reply = server.answer(request)
            if not reply.dropped:
                self._send(reply, *server.content(request, reply))
            if reply.stalled:
                server.wait_for_close()
            if reply.dropped or reply.interrupted or reply.stalled:
                # Without it the client would wait for its own timeout.
                with suppress(OSError):  # a client that has gone
                    self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: what came in is in `requests`."""

        def _send(self, reply: ScriptedReply, kind: str, content: str) -> None:
            body = content.encode()
            half = body[: len(body) // 2]
            if reply.truncated:
                body = half
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(half if reply.interrupted or reply.stalled else body)

    return Handler


ONCE = Measure(
    infrastructure_retries=0,
    self_test_rounds=0,
    race_rounds=0,
    confirm_rounds=0,
    profiled_steps=0,
    together="never",
)
"""Every trial is launched once, and nothing is launched again."""
CONFIRMED = replace(ONCE, confirm_top=2, confirm_rounds=4, max_confirm_rounds=4)
"""Only the best and the seed are launched again, four times."""


class CutShort:
    """An evaluator that passes so many launches on, then is interrupted."""

    def __init__(self, evaluator: Evaluator, launches: int) -> None:
        self._evaluator = evaluator
        self._left = launches

    def evaluate(self, study: Study, config: Config, workdir: Path) -> Outcome:
        """End a launch as the evaluator does, as long as any is left."""
        if self._left == 0:
            raise KeyboardInterrupt
        self._left -= 1
        return self._evaluator.evaluate(study, config, workdir)


def seconds(*step_times_s: float, noise: float = 0.0) -> dict[int, Takes]:
    """A table in which configuration n takes the n-th of these times."""
    return {n: Takes(step_time_s=s, noise=noise) for n, s in enumerate(step_times_s)}


def relaunch(
    ordinal: int,
    outcome: Outcome | float,
    number: int = 0,
    *,
    series: int = 2,
    purpose: Purpose = Purpose.CONFIRM,
    position: int = 0,
) -> Repeat:
    """A launch of a trial again, which took so long or ended like this."""
    return Repeat(
        series=series,
        round=number,
        ordinal=ordinal,
        outcome=records.measured(outcome) if isinstance(outcome, float | int) else outcome,
        purpose=purpose,
        position=position,
    )


LLM_KEY = "sk-test-0123456789"
CODE = "def generate_config(workload, environment):\n    return {'dp': 4}\n"
PROMPT = Prompt(system="You choose.", task="The study.", turn="Trial 3, at length.")


def client_of(settings: LlmSettings, *notice: Callable[[str], None]) -> LlmClient:
    """A client that talks to a provider through its SDK."""
    # Imported here: the SDK takes seconds to load, which everybody who collects tests would pay.
    from search.llm.transport import AnthropicTransport

    return LlmClient(settings, AnthropicTransport(settings, *notice))


@contextmanager
def connected(
    script: Script,
    *,
    key: Secret | None = None,
    path: str = "",
    notice: Callable[[str], None] = lambda _: None,
    server: Mapping[str, bool] | None = None,
    **fields: Any,
) -> Iterator[tuple[ScriptedMessagesServer, LlmClient]]:
    """A scripted server and a client that talks to it once, with other settings in `fields`."""
    with ScriptedMessagesServer(script, **(server or {})) as opened:
        settings = LlmSettings(
            api_key=key or Secret(LLM_KEY),
            base_url=opened.url + path,
            **{"attempts": 1, "retry_wait_s": 0.001, **fields},
        )
        with closing(client_of(settings, notice)) as client:
            yield opened, client


@dataclass(frozen=True)
class Asked:
    """What came of one turn, and the requests that it took."""

    found: Draft | Problem
    exchange: LlmExchange
    requests: list[RecordedRequest]

    @property
    def bodies(self) -> list[Mapping[str, object]]:
        """The bodies of the requests."""
        return [request.body for request in self.requests]


def ask(
    script: Script,
    check: Callable[[Draft], Draft | Problem] = lambda draft: draft,
    *,
    prompt: Prompt = PROMPT,
    shorter: Callable[[], Prompt] | None = None,
    allowance: Allowance | None = None,
    **fields: Any,
) -> Asked:
    """Ask a scripted model once, over a real socket and through the real SDK."""
    with connected(script, **fields) as (server, client):
        found, exchange = client.ask(prompt, check, shorter=shorter, allowance=allowance)
    return Asked(found, exchange, server.requests)


STUDY = Study(
    name="llama-8b-on-16",
    workload=Workload(
        name="llama-8b",
        family="llama",
        global_batch=32,
        sequence_length=1024,
        layer_count=32,
        hidden_size=4096,
        head_count=32,
        kv_head_count=8,
    ),
    environment=Environment(
        name="two-nodes",
        device="cuda",
        accelerator="a100-80gb",
        world_size=16,
        ranks_per_node=8,
        memory_bytes=80 * 2**30,
        scale_up=Link(bandwidth_bytes_per_s=3.0e11),
        scale_out=Link(bandwidth_bytes_per_s=2.5e10, latency_s=5e-6),
        software={"torch": "2.13.0"},
    ),
    space=SearchSpace(
        dimensions=(
            Dimension(name="tp", choices=(1, 2, 4, 8), description="tensor parallel ranks"),
            Dimension(name="dp", choices=(1, 2, 4, 8, 16), description="data parallel ranks"),
            Dimension(name="pp", choices=(1, 2, 4), description="pipeline stages"),
            Dimension(name="micro_batch", choices=(1, 2, 4, 8)),
            Dimension(name="recompute", choices=(False, True)),
            Dimension(name="bucket_mib", range=Range(low=25, high=400, scale="doubling")),
            Dimension(name="schedule", choices=("1f1b", "interleaved"), when="pp > 1"),
        ),
        constraints=(
            Constraint(
                name="uses every rank", expression="tp * dp * pp == world_size", reason="16 ranks"
            ),
        ),
    ),
    objective=Objective(expression="step_time"),
    seed_policy="balanced",
    budget=Budget(trials=400, patience=400),
)
SPACE = Space(STUDY.space, STUDY.workload, STUDY.environment)
LEARNED = (
    LearnedConstraint(
        constraint=Constraint(
            name="memory of large micro batches",
            expression="micro_batch <= 4 or recompute",
            reason="8 without recomputation ran out of memory",
        ),
        kind=FailureKind.OUT_OF_MEMORY,
        ordinals=(2, 11, 15, 23),
    ),
)
_STRIDE = 31
"""Prime to the number of feasible configurations, so that all come once."""


def past(count: int) -> History:
    """So many trials of different configurations, with every ill that can befall a search.

    The first was launched four times more, and other processes take ever more of the cores. The
    bucket size changes next to nothing; large micro batches need recomputation to fit. Every
    eleventh policy raises, and now and then a node is lost.
    """
    trials = tuple(_trial(ordinal) for ordinal in range(count))
    again = _self_test(trials[0]) if trials else ()
    steps_s = (r.outcome.metric("step_time") for r in again if isinstance(r.outcome, Measured))
    values = tuple(step_s for step_s in steps_s if step_s is not None)
    history = History(trials, repeats=again, again={0: values} if values else {})
    best, worst = (history.ranked[0], history.ranked[-1]) if history.ranked else (None, None)
    if best is None or worst is None or best is worst:
        return history
    slow = worst.ordinal > best.ordinal
    ratio, low, high = (1.25, 1.2, 1.3) if slow else (0.8, 0.77, 0.83)
    race = RaceResult(
        challenger=max(best.ordinal, worst.ordinal),
        incumbent=min(best.ordinal, worst.ordinal),
        verdict="slow" if slow else "fast",
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
    )
    return replace(history, races=(race,))


def candidates(history: History, count: int = 3) -> tuple[Choice, ...]:
    """Untried configurations with a reason."""
    found = untried(SPACE, history)[:count]
    expected = [f"expected {1.1 - place / 50:.2f}x (0.90 to 1.30)" for place in range(count)]
    return tuple(
        Choice(config=config, why=f"from the best so far, change it; {words}", expected=words)
        for config, words in zip(found, expected, strict=False)
    )


def _self_test(first: Trial) -> tuple[Repeat, ...]:
    """Launches of the first trial again, which differ by a few percent."""
    step_s = first.outcome.metric("step_time") if isinstance(first.outcome, Measured) else None
    return tuple(
        relaunch(
            0,
            measured((step_s or 1.0) * factor, others_share=0.1),
            number,
            series=1,
            purpose=Purpose.SELF_TEST,
        )
        for number, factor in enumerate((1.01, 0.99, 1.03, 0.98))
    )


def trial(ordinal: int, config: Config | None, outcome: Outcome) -> Trial:
    """A trial of the model, scored by its step time."""
    source = "def generate_config(workload):\n    return {}\n"
    if config is not None:
        source = (
            f"def generate_config(workload, environment):\n    return {dict(config.values)!r}\n"
        )
    step_s = outcome.metric("step_time") if isinstance(outcome, Measured) else None
    return Trial(
        ordinal=ordinal,
        policy=Policy(
            source=source,
            author="llm",
            rationale=f"Idea {ordinal}.",
            prediction=Prediction(speedup=1.1, over=0) if ordinal else None,
        ),
        config=config,
        outcome=outcome,
        score=None if step_s is None else Score(cost=step_s, value=step_s, unit="s"),
        started_at="2026-01-01T00:00:00Z",
        ended_at="2026-01-01T00:01:00Z",
    )


def measured(
    step_s: float, *, memory_gib: float = 40.0, others_share: float | None = None
) -> Measured:
    """An outcome whose traces were read; others took this share of the cores, where it is told."""
    conditions = None if others_share is None else records.conditions(others_cpu_share=others_share)
    return Measured(
        measurement=Measurement(
            step_times_s=((step_s,),),
            warmup_times_s=(),
            losses=(),
            tokens_per_step=32768,
            peak_memory_bytes=(int(memory_gib * 2**30),),
            wall_s=30.0,
            device="a100-80gb",
            torch_version="2.13.0",
            conditions=conditions,
        ),
        metrics=(
            MetricValue(name="step_time", value=step_s, unit="s", better="lower", version=1),
            MetricValue(name="mfu", value=0.4, unit="", better="higher", version=1),
        ),
        breakdown=Breakdown(
            compute_s=0.6 * step_s,
            exposed_communication_s=0.3 * step_s,
            hidden_communication_s=0.1 * step_s,
            other_s=0.02 * step_s,
            idle_s=0.08 * step_s,
        ),
        diagnosis=diagnosis(step_s, memory_gib=memory_gib),
    )


def diagnosis(step_s: float, *, memory_gib: float = 40.0) -> Diagnosis:
    """What traces of such a step would say."""
    return Diagnosis(
        compute_s=0.6 * step_s,
        exposed_communication_s=0.3 * step_s,
        hidden_communication_s=0.1 * step_s,
        copy_s=0.02 * step_s,
        idle_s=0.08 * step_s,
        host_wait_s=0.05 * step_s,
        collectives=(
            CollectiveTime(
                kind="all_reduce",
                group_size=4,
                ranks=(0, 4, 8, 12),
                group_count=4,
                crosses_nodes=True,
                call_count=12,
                bytes=3e9,
                exposed_s=0.25 * step_s,
                hidden_s=0.1 * step_s,
            ),
        ),
        slowest_rank=3,
        slowest_over_mean=1.04,
        straggler=3,
        straggler_share=0.02,
        peak_memory_bytes=int(memory_gib * 2**30),
        memory_bytes=80 * 2**30,
    )


def failed(kind: FailureKind, message: str, *, stage: Stage = Stage.LAUNCH) -> Failed:
    return Failed(stage=stage, kind=kind, message=message)


def out_of_memory() -> Failed:
    return failed(FailureKind.OUT_OF_MEMORY, "out of memory: tried to get 2 GiB")


def _trial(ordinal: int) -> Trial:
    config = SPACE.feasible[ordinal * _STRIDE % len(SPACE.feasible)]
    if ordinal % 11 == 6:
        words = "generate_config() takes 1 positional argument but 2 were given"
        return trial(ordinal, None, failed(FailureKind.POLICY_ERROR, words, stage=Stage.DECIDE))
    if ordinal % 97 == 8:
        return trial(ordinal, config, failed(FailureKind.INFRASTRUCTURE, "node-7 was lost"))
    if config["micro_batch"] == 8 and not config["recompute"]:
        return trial(ordinal, config, out_of_memory())
    share = min(0.05 + ordinal / 40, 0.5)
    outcome = measured(_step_s(ordinal, config), memory_gib=_gib(config), others_share=share)
    return trial(ordinal, config, outcome)


def _step_s(ordinal: int, config: Config) -> float:
    """Slower with more tensor parallelism, more stages, recomputation and tiny micro batches."""
    parallel = 0.15 * math.log2(int(config["tp"])) + 0.1 * math.log2(int(config["pp"]))
    own = 0.2 * bool(config["recompute"]) + 0.3 / int(config["micro_batch"])
    return (1.0 + parallel + own) * (1 + ordinal % 5 / 500)


def _gib(config: Config) -> float:
    share = 0.5 if config["recompute"] else 1.0
    return 20 + 8 * share * int(config["micro_batch"])
