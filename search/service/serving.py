"""Runs the service until it is told to stop."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import typer
import uvicorn

from records.errors import EnvironmentFault, StoreBusy, StoreError, StudyError
from search.service.app import app_of
from search.service.config import Listen, read_config
from search.service.roles import ROLES, KnownToken, digest_of, new_token
from search.service.runs.keeper import Keeper
from search.service.state import Service
from search.settings import store_root

GRACE_S = 3
IDLE_S = 30
MOST_CONNECTIONS = 2000
WAITING_CONNECTIONS = 512


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
    token = None if config.token else new_token()
    tokens = config.token or (
        KnownToken(name="local", role="admin", sha256=digest_of(token or "")),
    )
    with _alone(root), _listening(listen) as at:
        listen = replace(listen, port=at.getsockname()[1])
        service = Service(
            config=replace(config, listen=listen),
            folder=Path() if config_file is None else config_file.parent,
            store=root,
            tokens=tokens,
            keeper=Keeper(root),
            cookie_name=f"cclsearch_token_{listen.port}",
        )
        typer.echo(f"cclsearch serves {root}")
        typer.echo(f"open: {_link(listen, token)}")
        server = uvicorn.Server(
            uvicorn.Config(
                app_of(service),
                log_level="warning",
                access_log=False,  # links hold tokens
                server_header=False,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=GRACE_S,
                limit_concurrency=MOST_CONNECTIONS,
            )
        )
        server.run(sockets=[at])


def _link(listen: Listen, token: str | None) -> str:
    host = f"[{listen.address}]" if ":" in listen.address else listen.address
    return f"http://{host}:{listen.port}/" + ("" if token is None else f"?token={token}")


@contextmanager
def _listening(listen: Listen) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in listen.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as at:
        at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            at.bind((listen.address, listen.port))
        except OSError as error:
            raise EnvironmentFault(
                f"cannot listen at {listen.address} port {listen.port}: {error.strerror}; "
                "give another with --port"
            ) from error
        at.listen(WAITING_CONNECTIONS)
        yield at


@contextmanager
def _alone(root: Path) -> Iterator[None]:
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
