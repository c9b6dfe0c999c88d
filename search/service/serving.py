"""Runs the service until it is told to stop."""

import fcntl
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import typer
import uvicorn

from records.errors import StoreBusy, StoreError, StudyError
from search.service.app import app_of
from search.service.callers.roles import ROLES, KnownToken, digest_of, local_token, new_token
from search.service.callers.sessions import Sessions, kept_key
from search.service.config import Listen, ServiceConfig, read_config
from search.service.edge.listening import allow_many_files, listening, log_plainly, server_of
from search.service.messenger import Messenger
from search.service.runs.keeper import Keeper, nobody, table_path
from search.service.runs.table import RunTable, State
from search.service.state import Service
from search.service.submission import check_offered
from search.settings import store_root


def print_new_token(asked: str) -> None:
    """Print a new token, once, and the lines that make the service accept it."""
    name, colon, role = asked.rpartition(":")
    if not colon or role not in ROLES:
        raise StudyError(f"--new-token {asked!r} is not NAME:ROLE; roles are {', '.join(ROLES)}")
    token = new_token()
    known = KnownToken(name=name, role=role, sha256=digest_of(token))
    typer.echo(f"hand out, it is shown only now: {token}", err=True)
    typer.echo(f'[[token]]\nname = "{known.name}"\nrole = "{role}"\nsha256 = "{known.sha256}"')


def serve_until_told(config_file: Path | None, port: int | None, store: Path | None) -> None:
    """Serve the records of a store; prints where, and the link with a token where none is set."""
    config = read_config(config_file)
    listen = config.listen if port is None else replace(config.listen, port=port)
    root = store_root(store).absolute()
    with alone(root), listening(listen) as at:
        listen = replace(listen, port=at.getsockname()[1])
        sessions = Sessions(key=kept_key(root / "service"))
        service = service_of(replace(config, listen=listen), config_file, root, sessions)
        allow_many_files()
        log_plainly()
        server = server_of(app_of(service), listen, service.feeds.close)
        with _hearing(server):
            typer.echo(f"cclsearch serves {root}")
            typer.echo(f"open: {_link(listen, None if config.token else sessions.local_token)}")
            server.run(sockets=[at])
        typer.echo(_last_words(root))


def service_of(
    config: ServiceConfig, config_file: Path | None, root: Path, sessions: Sessions
) -> Service:
    """The service of a store as it is configured; nothing is started yet. Raises `StudyError`."""
    folder = Path() if config_file is None else config_file.parent
    check_offered(config, folder)
    messenger = Messenger(table_path(root), config.webhook, folder) if config.webhook else None
    to_tell = nobody if messenger is None else messenger.to_tell
    return Service(
        config=config,
        folder=folder,
        store=root,
        tokens=config.token or (local_token(sessions.local_token),),
        keeper=Keeper(root, config.environment, to_tell),
        messenger=messenger,
        sessions=sessions,
    )


@contextmanager
def _hearing(server: uvicorn.Server) -> Iterator[None]:
    """End in order when we are told to, also by a terminal that closes."""

    def stop(_number: int, _frame: object) -> None:
        server.should_exit = True

    heard = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    heard = [number for number in heard if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _last_words(root: Path) -> str:
    with closing(RunTable(table_path(root))) as table:
        states = [submitted.state for submitted in table.under_way()]
    waiting = states.count(State.QUEUED)
    if not states:
        return "stopped; nothing was under way"
    return (
        f"stopped; {len(states) - waiting} running and {waiting} queued: what runs goes on, and "
        f"`cclsearch serve --store {shlex.quote(str(root))}` finds all of it again"
    )


def _link(listen: Listen, token: str | None) -> str:
    return f"{listen.url}/" + ("" if token is None else f"?token={token}")


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Be the only service of a store; the claim goes with the process, however it ends."""
    try:
        (root / "service").mkdir(parents=True, exist_ok=True)
        handle = os.open(root / "service" / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(f"cannot use {root / 'service'}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreBusy(f"another service serves {root}; stop it, or use its link") from error
    try:
        yield
    finally:
        os.close(handle)
