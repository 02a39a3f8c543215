"""HTTP connections with limits that uvicorn does not have: headers, and time."""

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from phalanx.serving.application import Limits

_LARGEST_HEADER = 64 << 10
_SPARE_SECONDS = 5.0


def make_protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """The protocol class for uvicorn, which makes an instance for each connection."""
    return type("Protocol", (_Protocol,), {"limits": limits})


class _Protocol(HttpToolsProtocol):
    """Ends a connection whose request does not arrive, or whose response is not read, in time.

    The application answers a slow request with an error. The timer here ends what does not reach
    the application: headers that arrive byte by byte, and responses that nobody reads.
    """

    limits: Limits

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._parts_seen = 0
        self._in_header = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # So that the transport tells when the client has taken all of a response. The transport of
        # TLS pauses at its limit, others above it.
        transport.set_write_buffer_limits(high=int(self.scheme == "https"), low=0)
        # The headers and the body of a response are written one after the other.
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer a client that has closed its side after a complete request."""
        cycle = self.cycle
        if cycle is None or cycle.more_body or cycle.response_complete or self.scheme == "https":
            return False
        cycle.keep_alive = False
        return True

    def data_received(self, data: bytes) -> None:
        self._start_timer()
        before = self._parts_seen
        super().data_received(data)
        if self._parts_seen != before:
            self._header_bytes = 0
            return
        # Neither a header nor a part of a body has ended: these are headers or trailers.
        self._header_bytes += len(data)
        if self._header_bytes > _LARGEST_HEADER and not self.transport.is_closing():
            self.send_400_response("The headers are too long.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Ignore trailers: whatever stands before this server has not checked them as headers."""
        if self._in_header:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_header = False
        self._parts_seen += 1
        super().on_headers_complete()
        if self.parser.should_upgrade():
            # The parser takes the body of such a request for the next request.
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._parts_seen += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_header = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.transport.get_write_buffer_size():
            self._stop_timer()
        super().on_response_complete()
        if self.pipeline:
            self._start_timer()

    def resume_writing(self) -> None:
        """Stop the timer when the client has taken all of a response."""
        super().resume_writing()
        self._stop_timer()
        if self.pipeline or (self.cycle is not None and not self.cycle.response_complete):
            self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is None:
            seconds = self.limits.seconds + _SPARE_SECONDS
            self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
