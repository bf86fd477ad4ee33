"""The HTTP side: routes, bodies, answers, and the faults that are switched on."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from perdure.testing.kaggle.answers import (
    Answer,
    Empty,
    File,
    Json,
    Redirect,
    Stream,
    Text,
    encode,
    part_of,
)
from perdure.testing.kaggle.errors import ApiError
from perdure.testing.kaggle.switches import Fault, SwitchBoard

Call = Callable[[dict[str, Any]], Answer]
_BLOCK = 1 << 20
_BODY_MOST = 10_000_000


class Routes:
    """What can be asked for; filled by the emulator.

    Attributes:
        calls: API calls by ``Service/Method``.
        open_calls: Those that need no credentials.
        check: Raises ``ApiError`` for bad credentials.
        log: Answers the log's address.
        file: Answers the address of a file: kind, path, query.
        upload: Takes a part of a file: token, headers, body, and gives the answer.
        attach: Answers the address inside a session at which kagglehub attaches data.
        note: Called with each call and its status.
        trouble: Called with the trace of an error of the emulator itself.
        board: The switches.
    """

    calls: dict[str, Call]
    open_calls: frozenset[str]
    check: Callable[[str], None]
    log: Callable[[str, str, str], Answer]
    file: Callable[[str, str, dict[str, str]], Answer]
    upload: Callable[[str, dict[str, str], Iterator[bytes]], Answer]
    attach: Callable[[str, dict[str, Any]], Answer]
    note: Callable[[str, int], None]
    trouble: Callable[[str], None]
    board: SwitchBoard


class Server(ThreadingHTTPServer):
    """Listens on this machine only.

    Args:
        port: Where; 0 for any that is free.
        routes: What can be asked for.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, port: int, routes: Routes) -> None:
        self.routes = routes
        super().__init__(("127.0.0.1", port), _Handler)

    def serve(self) -> None:
        """Answer in a thread, until ``close``."""
        threading.Thread(target=self.serve_forever, args=(0.05,), name="emulator", daemon=True).start()

    def close(self) -> None:
        """No more answers."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no trouble of the emulator."""


class _Dropped(Exception):
    """The connection was closed on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on the terminal."""

    def do_POST(self) -> None:
        self._serve(self._post)

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_PUT(self) -> None:
        self._serve(self._put)

    def _serve(self, method: Callable[[], None]) -> None:
        self._call = "?"
        try:
            method()
        except ApiError as error:
            self._send(error.status, encode(error.document()), "application/json", error.headers)
        except (_Dropped, BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except Exception:  # noqa: BLE001  as a gateway does: it is told to the client, and noted
            text = traceback.format_exc()
            self.server.routes.trouble(text)
            self._send(500, encode(ApiError(500, text).document()), "application/json", {})

    def _post(self) -> None:
        body = b"".join(self._body())
        path = urlsplit(self.path).path
        service, _, method = path.rpartition("/")
        self._call = method
        if len(body) > _BODY_MOST:  # as the real gateway does with what is much too large (third-party)
            self._send(413, b"<html><title>413 Request Entity Too Large</title></html>", "text/html", {})
            return
        name = f"{service.rpartition('/')[2]}/{method}"
        self._answer(lambda: self._dispatch(name, body))

    def _dispatch(self, name: str, body: bytes) -> Answer:
        routes = self.server.routes
        try:
            request = json.loads(body or b"{}")
        except ValueError:
            raise ApiError(400, "The request is not JSON") from None
        if name.startswith("kaggle-jwt-handler/"):
            return routes.attach(self.headers.get("X-Kaggle-Authorization", "").removeprefix("Bearer "), request)
        if name not in routes.open_calls:
            routes.check(self.headers.get("Authorization", ""))
        if name not in routes.calls:
            raise ApiError(404, f"There is no {name}")
        return routes.calls[name](request)

    def _get(self) -> None:
        address = urlsplit(self.path)
        query = dict(parse_qsl(address.query))
        parts = unquote(address.path).strip("/").split("/")
        if parts[:5] == ["api", "v1", "kernels", "logs", "stream"] and len(parts) == 7:
            self._call = "log"
            self.server.routes.check(self.headers.get("Authorization", ""))
            self._answer(lambda: self.server.routes.log(parts[5], parts[6], query.get("versionLabel", "")))
            return
        self._call = "output" if parts[0] in ("output", "archive") else "file"
        self._answer(lambda: self.server.routes.file(parts[0], "/".join(parts[1:]), query))

    def _put(self) -> None:
        self._call = "upload"
        token = urlsplit(self.path).path.rpartition("/")[2]
        headers = {name.lower(): value for name, value in self.headers.items()}
        fault = self.server.routes.board.fault("upload", "before")
        if fault is not None:
            if fault.what in ("cut", "error"):
                self._take_part(token, headers, fault)
            self._suffer(fault)
        self._answer(lambda: self.server.routes.upload(token, headers, self._body()), faults=False)

    def _take_part(self, token: str, headers: dict[str, str], fault: Fault) -> None:
        """Keep the first bytes of an upload, and no more."""
        size = int(headers.get("content-length", "0"))
        first = self.rfile.read(min(fault.after_bytes, size))
        self.server.routes.upload(token, headers, iter([first]))
        left = size - len(first)
        while fault.what == "error" and left > 0:  # or the client would still be writing when it is answered
            left -= len(self.rfile.read(min(_BLOCK, left)) or bytes(left))

    def _answer(self, act: Callable[[], Answer], *, faults: bool = True) -> None:
        """Carry a call out, with what goes wrong before it, in it and after it."""
        board = self.server.routes.board
        time.sleep(board.now.latency_s)
        fault = board.fault(self._call, "before") if faults else None
        if fault is not None and fault.what != "cut":
            self._suffer(fault)
        answer = act()
        late = board.fault(self._call, "after")
        if late is not None:
            self._suffer(late)
        self._reply(answer, None if fault is None else fault.after_bytes)

    def _suffer(self, fault: Fault) -> None:
        """Go wrong; never returns."""
        if fault.what == "error":
            headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
            raise ApiError(fault.status, "An emulated error", headers)
        if fault.what == "stall":
            until_s = time.monotonic() + fault.stall_s
            while time.monotonic() < until_s and not self._is_gone():
                time.sleep(0.05)
        self.server.routes.note(self._call, 0)
        self._drop()

    def _drop(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        raise _Dropped

    def _is_gone(self) -> bool:
        """Whether the client has closed the connection."""
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _reply(self, answer: Answer, cut_bytes: int | None) -> None:
        if isinstance(answer, Json):
            self._send(answer.status, encode(answer.document), "application/json", {})
        elif isinstance(answer, Text):
            self._send(200, answer.text.encode(), answer.kind, {})
        elif isinstance(answer, Redirect):
            self._send(302, b"", "text/html", {"Location": answer.url})
        elif isinstance(answer, Empty):
            self._send(answer.status, b"", "text/plain", answer.headers)
        elif isinstance(answer, File):
            self._send_file(answer, cut_bytes)
        else:
            self._send_stream(answer, cut_bytes)

    def _send(self, status: int, body: bytes, kind: str, headers: dict[str, str]) -> None:
        self.server.routes.note(self._call, status)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, answer: File, cut_bytes: int | None) -> None:
        if not answer.path.is_file():
            raise ApiError(404, "No such object")
        part = part_of(answer.path, self.headers.get("Range", ""), self.headers.get("If-Range", ""))
        self.server.routes.note(self._call, part.status)
        self.send_response(part.status)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(part.stop - part.start))
        for name, value in part.headers.items():
            self.send_header(name, value)
        self.end_headers()
        left = part.stop - part.start if cut_bytes is None else min(cut_bytes, part.stop - part.start)
        with open(answer.path, "rb") as file:
            file.seek(part.start)
            while left > 0 and (block := file.read(min(_BLOCK, left))):
                self.wfile.write(block)
                left -= len(block)
        if cut_bytes is not None:
            self._drop()

    def _send_stream(self, answer: Stream, cut_bytes: int | None) -> None:
        """Events as they come; the connection ends with them."""
        self.server.routes.note(self._call, 200)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = 0
        for event in answer.events:
            if event is None:
                if self._is_gone():
                    raise _Dropped
                continue
            block = f"data: {json.dumps(event)}\n\n".encode()
            self._send_chunk(block)
            sent += len(block)
            if cut_bytes is not None and sent >= cut_bytes:
                self._drop()
        self._send_chunk(b"data: END_OF_LOG\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _send_chunk(self, block: bytes) -> None:
        self.wfile.write(f"{len(block):x}\r\n".encode() + block + b"\r\n")
        self.wfile.flush()

    def _body(self) -> Iterator[bytes]:
        """The body of a request, in blocks; also one that is sent in chunks."""
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left > 0:
            block = self.rfile.read(min(_BLOCK, left))
            if not block:
                raise _Dropped
            left -= len(block)
            yield block
