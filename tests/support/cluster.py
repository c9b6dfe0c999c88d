"""A scheduler that does what a test says, and agents of two kinds: in a thread, and real ones."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from threading import Thread

from evaluator.launchers.cluster.allocation import agent_zip
from evaluator.launchers.cluster.channel import Channel, ChannelLost, Meeting
from evaluator.launchers.cluster.scheduler import AgentRequest, Gone, JobState, Running


class FakeScheduler:
    """Remembers what it was asked; `start` may start agents; `states` are what jobs are in."""

    def __init__(
        self, start: Callable[[AgentRequest], object] = print, *, carries_files: bool = False
    ) -> None:
        self.carries_files = carries_files
        self.states: dict[str, JobState] = {}
        self.first_state: JobState = Running()
        self.requests: list[AgentRequest] = []
        self.cancelled: list[str] = []
        self._start = start

    def missing(self) -> str | None:
        return None

    def facts(self) -> Mapping[str, str]:
        return {"version": "1"}

    def submit(self, request: AgentRequest) -> str:
        self.requests.append(request)
        self.states[request.name] = self.first_state
        self._start(request)
        return request.name

    def find(self, name: str) -> str | None:
        return name if name in self.states else None

    def state(self, job: str) -> JobState:
        return self.states.get(job, Gone("ended", "no such job"))

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)
        self.states.pop(job, None)


class FakeAgent(Thread):
    """Speaks as an agent does, and says of its node what a test wants; it launches nothing."""

    def __init__(
        self,
        request: AgentRequest,
        node: str,
        *,
        version: str | None = None,
        ahead_s: float = 0.0,
        shares: bool = True,
        gpus: Sequence[str] = (),
    ) -> None:
        super().__init__(daemon=True)
        self.meeting = Meeting.of(Path(request.command[-1]).read_text(encoding="utf-8"))
        self.left = False
        self._ahead_s, self._shares = ahead_s, shares
        self._channel = Channel.to("127.0.0.1", self.meeting.port, self.meeting.secret, 10)
        self._channel.send(
            {
                "said": "hello",
                "name": self.meeting.name,
                "node": node,
                "address": "127.0.0.1",
                "version": version or sha256(agent_zip()).hexdigest(),
                "python": "3.12.1",
                "core_count": 8,
                "memory_bytes": 1 << 34,
                "gpus": [*gpus],
            }
        )
        self.start()

    def run(self) -> None:
        while True:
            try:
                message, _ = self._channel.receive()
            except ChannelLost:
                self._channel.close()
                return
            match message:
                case {"do": "clock"}:
                    self._channel.send({"said": "clock", "now_s": time.time() + self._ahead_s})
                case {"do": "prove", "path": str(path)}:
                    if self._shares:
                        Path(f"{path}-{self.name}").touch()
                    self._channel.send({"said": "proof", "is_shared": True})
                case {"do": "leave"}:
                    self.left = True
                    self.vanish()

    def vanish(self) -> None:
        """End as a node does that loses its power."""
        with socket.socket(fileno=os.dup(self._channel.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)


def start_agents(request: AgentRequest, folder: Path) -> Sequence[subprocess.Popen[bytes]]:
    """Start real agents that nothing holds, as those of a scheduler; files are put in `folder`."""
    for name, content in request.files.items():
        (folder / name).write_bytes(content)
    return [
        subprocess.Popen(
            request.command,
            env={"PATH": "/usr/bin:/bin", "CCLSEARCH_NODE": f"n{number}"},
            cwd=folder,
            start_new_session=True,
        )
        for number in range(request.node_count)
    ]
