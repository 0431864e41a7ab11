# SPDX-License-Identifier: Apache-2.0
"""Runs a service: the ASGI application, and the uvicorn server around it."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import cast

import uvicorn
from starlette.types import Receive, Scope, Send

from jitgen.errors import JitgenError, ResourceError, SettingError
from jitgen.server.accept import Acceptor, bound
from jitgen.server.certificates import certificate_files
from jitgen.server.connection_slots import Slot
from jitgen.server.descriptors import raise_limit
from jitgen.server.endpoint import HttpApp
from jitgen.server.http_limits import BoundedHttpProtocol, end_late
from jitgen.server.service import Service
from jitgen.server.settings import Listen, ServiceSettings
from jitgen.support.documents import BadDocument

_BACKLOG = 2048
_KEEP_ALIVE_S = 75
_NOT_STARTED = 3  # uvicorn's exit code
_LATE_TICKS = 20  # tenths of a second between two checks of time limits


class App:
    """
    A service as an ASGI application; `Service.start` and `Service.close` are its lifespan.

    Attributes:
        service: The service.
        failure: Why it did not start; None if it did.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.failure: JitgenError | None = None
        self._http_app = HttpApp(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan of the service."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self._http_app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.service.start()
        except JitgenError as error:
            self.failure = error
            await self.service.close()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, self.service.reload)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.service.close()
        await send({"type": "lifespan.shutdown.complete"})


class Server(uvicorn.Server):
    """A uvicorn server that logs when it listens, and closes the job queue on shutdown."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self.port = 0

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down at SIGTERM and SIGINT; the exit code is 0, since the end was requested."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the service, listen, and log the address."""
        del sockets  # it opens its own
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(_NOT_STARTED)
        config = self.config
        try:
            listeners = await bound(config.host, config.port, _BACKLOG)
        except OSError as error:
            await self.lifespan.shutdown()
            raise _no_listener(config, error) from error
        acceptor = Acceptor(listeners, self._protocol, config.ssl, self._service.connections)
        self.servers = [cast("asyncio.base_events.Server", acceptor)]  # as far as uvicorn asks
        self.started = True
        self.port = listeners[0].getsockname()[1]
        self._service.log.event("listening", host=config.host, port=self.port)

    def _protocol(self, slot: Slot) -> BoundedHttpProtocol:
        protocol = BoundedHttpProtocol(self.config, self.server_state, self.lifespan.state)
        protocol.slot = slot
        return protocol

    async def on_tick(self, counter: int) -> bool:
        """Enforce the time limits of connections now and then; returns whether to end."""
        if counter % _LATE_TICKS == 0:
            end_late(self.server_state.connections)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running compiles end, within the grace period, then shut down."""
        await self._service.queue.close(self._service.settings.limits.grace_s)
        await super().shutdown(sockets)


def server_of(settings: ServiceSettings, service: Service) -> tuple[Server, App]:
    """Return a server that runs `service`, and its application."""
    listen, limits = settings.listen, settings.limits
    app = App(service)
    config = uvicorn.Config(
        app,
        host=listen.host,
        port=listen.port,
        loop="uvloop",
        http=BoundedHttpProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=round(limits.grace_s) or 1,
        ssl_cert_reqs=ssl.CERT_REQUIRED if listen.client_ca else ssl.CERT_NONE,
    )
    return Server(config, service), app


def run(settings: ServiceSettings) -> None:
    """
    Serve until SIGTERM or SIGINT; SIGHUP reads tokens, the trust document and the key again.

    Raises:
        SettingError: The certificate cannot be used.
        ResourceError: It cannot listen at the address in the settings.
        JitgenError: It cannot start.
    """
    raise_limit(settings.limits.connections)
    service = Service(settings)
    server, app = server_of(settings, service)
    try:
        _load(server.config, settings.listen)
    except (OSError, BadDocument) as error:
        raise SettingError(
            f"listen: the certificate, its key or client_ca cannot be used: {error}"
        ) from error
    try:
        server.run()
    except SystemExit:  # uvicorn's; it logs why, in a log that is off
        if app.failure is None:
            raise
    if app.failure is not None:
        raise app.failure


def _load(config: uvicorn.Config, listen: Listen) -> None:
    """Load uvicorn's configuration with the checked files of TLS."""
    with certificate_files(listen) as files:
        config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs = files
        config.load()


def _no_listener(config: uvicorn.Config, refusal: OSError) -> ResourceError:
    if refusal.errno == errno.EADDRINUSE:
        why = "something listens there already; end it, or name another listen.port"
    else:
        why = f"{refusal.strerror or refusal}; see listen.host and listen.port"
    return ResourceError(f"cannot listen at {config.host}:{config.port}: {why}")
