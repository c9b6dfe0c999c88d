"""The searching side of agents: listens for them, and passes on what they say.

One thread reads from all of them, so that thousands cost no thread each.
"""

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from secrets import token_hex
from typing import TypeAlias

import msgspec

from evaluator.launchers.cluster.agent import interface_addresses
from evaluator.launchers.cluster.channel import Channel, ChannelLost, Message

_LOG = logging.getLogger(__name__)

PING_EVERY_S = 5.0
LOOK_EVERY_S = 1.0
SILENCE_LIMIT_S = 60.0
BACKLOG = 4096
MOST_STRANGERS = 256
LOST = "lost"


class NodeFacts(msgspec.Struct, frozen=True):
    """What an agent says of its node; `address` is where the other nodes reach it."""

    name: str
    node: str
    address: str
    version: str
    python: str
    core_count: int
    memory_bytes: int | None
    gpus: tuple[str, ...]


Inbox: TypeAlias = "SimpleQueue[tuple[NodeAgent, Message, bytes]]"


class NodeAgent:
    """One agent that is connected, or was; its messages go to the inbox of who waits for it."""

    def __init__(self, channel: Channel, facts: NodeFacts) -> None:
        self.facts = facts
        self.channel = channel
        self.inbox: Inbox = SimpleQueue()
        self.lost: str | None = None
        """Why it is not there any more."""
        self.heard_s = time.monotonic()
        self.node = facts.node
        """The name of its node, as the scheduler knows it."""

    def fileno(self) -> int:
        """Return what becomes readable when it says something."""
        return self.channel.fileno()

    def send(self, request: str, **message: object) -> None:
        """Ask for something; what is asked of a lost agent is lost too."""
        with suppress(ChannelLost):
            self.channel.send({"do": request, **message})

    def ask(self, request: str, answer: str, limit_s: float, **message: object) -> Message | None:
        """Ask for something and wait for the answer; None where none comes. No launch may run."""
        self.send(request, **message)
        deadline_s = time.monotonic() + limit_s
        while (left_s := deadline_s - time.monotonic()) > 0 and self.lost is None:
            with suppress(TimeoutError):
                _, said, _ = next_message(self.inbox, min(left_s, LOOK_EVERY_S))
                if said["said"] == answer:
                    return said
        return None


def next_message(inbox: Inbox, wait_s: float) -> tuple[NodeAgent, Message, bytes]:
    """Return the next message; raises `TimeoutError` when none comes."""
    try:
        return inbox.get(timeout=wait_s)
    except Empty:
        raise TimeoutError from None


class Agents:
    """Listens for agents that have the secret and belong to the request that is expected.

    `changed` is notified when one joins or is lost. A port that is taken is replaced by another.
    Pass `expected` to take over a job: its agents may connect as soon as the port is open.
    """

    def __init__(self, port: int = 0, secret: str | None = None, expected: str = "") -> None:
        self.changed = threading.Condition()
        self.secret = secret or token_hex(32)
        self._listener = _listener(port)
        self.port: int = self._listener.getsockname()[1]
        self._expected = expected
        self._joined: list[NodeAgent] = []
        self._newcomers: SimpleQueue[NodeAgent] = SimpleQueue()
        self._meeting = threading.BoundedSemaphore(MOST_STRANGERS)
        self._reader, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._reader, selectors.EVENT_READ, self._welcome)
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="agents", daemon=True)
        self._thread.start()

    @property
    def joined(self) -> Sequence[NodeAgent]:
        """The agents of the expected request that are connected."""
        with self.changed:
            return tuple(self._joined)

    def expect(self, name: str) -> None:
        """Let go of all agents that are not of the request with this name."""
        with self.changed:
            self._expected = name
            for agent in self._joined:
                if agent.facts.name != name:
                    agent.send("leave")
            self._joined = [agent for agent in self._joined if agent.facts.name == name]

    def close(self) -> None:
        """Let all agents go, and listen no longer."""
        self.expect("")
        self._is_closed = True
        self._waker.send(b"w")
        self._thread.join()
        for key in [*self._selector.get_map().values()]:
            if isinstance(key.fileobj, NodeAgent):
                key.fileobj.channel.close()
        self._selector.close()
        for end in (self._listener, self._reader, self._waker):
            end.close()

    def _serve(self) -> None:
        next_ping_s = 0.0
        while not self._is_closed:
            for key, _ in self._selector.select(LOOK_EVERY_S):
                act: Callable[[], None] = key.data
                act()
            now_s = time.monotonic()
            if now_s >= next_ping_s:
                next_ping_s = now_s + PING_EVERY_S
                self._look(now_s)

    def _look(self, now_s: float) -> None:
        """Show each agent that we live, and give up on those that do not."""
        for agent in self.joined:
            if now_s - agent.heard_s > SILENCE_LIMIT_S:
                self._lose(agent, f"silent for {now_s - agent.heard_s:.0f} s")
            else:
                agent.send("ping")

    def _accept(self) -> None:
        with suppress(OSError):  # it has left again
            connected, _ = self._listener.accept()
            if not self._meeting.acquire(blocking=False):
                connected.close()  # it comes again
                return
            # Who does not have the secret may take its time: nobody else waits for it.
            threading.Thread(target=self._meet, args=(connected,), daemon=True).start()

    def _meet(self, connected: socket.socket) -> None:
        try:
            channel = Channel(connected, self.secret, answers=False)
            hello, _ = channel.receive()
            self._newcomers.put(NodeAgent(channel, msgspec.convert(hello, NodeFacts)))
            self._waker.send(b"w")
        except (ChannelLost, msgspec.ValidationError, OSError) as error:
            _LOG.info("no agent: %s", error)
        finally:
            self._meeting.release()

    def _welcome(self) -> None:
        self._reader.recv(1)
        while not self._newcomers.empty():
            agent = self._newcomers.get()
            if agent.facts.name != self._expected:
                agent.send("leave")
                agent.channel.close()
                continue
            self._selector.register(agent, selectors.EVENT_READ, partial(self._hear, agent))
            with self.changed:
                self._joined.append(agent)
                self.changed.notify_all()

    def _hear(self, agent: NodeAgent) -> None:
        try:
            message, data = agent.channel.receive()
        except ChannelLost as error:
            self._lose(agent, str(error))
            return
        agent.heard_s = time.monotonic()
        match message:
            case {"said": "beat"} if "id" not in message:
                pass
            case {"said": str()}:
                agent.inbox.put((agent, message, data))

    def _lose(self, agent: NodeAgent, words: str) -> None:
        with suppress(KeyError):
            self._selector.unregister(agent)
        agent.channel.close()
        with self.changed:
            agent.lost = words
            if agent in self._joined:
                self._joined.remove(agent)
            self.changed.notify_all()
        agent.inbox.put((agent, {"said": LOST}, b""))


def _listener(port: int) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, backlog=BACKLOG, dualstack_ipv6=dual)
    except OSError:
        if port == 0:
            raise
        return _listener(0)


def own_addresses(search_host: str | None) -> tuple[str, ...]:
    """Return where nodes may reach this machine, the likeliest first."""
    if search_host is not None:
        return (search_host.strip("[]"),)
    found = [address for _, address in interface_addresses()]
    outside = [address for address in found if not ip_address(address).is_loopback]
    return (*outside, socket.gethostname(), "127.0.0.1")
