"""A local HTTP server of one file, which breaks off, lies, stalls or changes its mind as a test asks."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from urllib.parse import parse_qs, urlsplit


@dataclass
class FileServer:
    """What the server does; `requests` holds the path and the Range header of each request.

    cuts: positions in the file, one for each answer, at which the connection is closed. claim: added to the true length
    in the headers. stall: position at which an answer falls silent. mute: no answer at all. status: in the place of a
    file. etag: None for none. ranges: False to ignore Range. shift: added to the start of a range that is asked for.
    redirect: where every request for another path than it is sent. confirm: like Google Drive, ask by a page before
    the file is served.
    """

    body: bytes = b""
    cuts: list[int] = field(default_factory=list)
    claim: int = 0
    stall: int | None = None
    mute: bool = False
    status: list[int] = field(default_factory=list)
    etag: str | None = '"1"'
    ranges: bool = True
    shift: int = 0
    delay: float = 0.0
    chunked: bool = False
    content_type: str = "application/octet-stream"
    redirect: str | None = None
    confirm: bool = False
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    closing: Event = field(default_factory=Event)
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers.get("Range")
        self.requests.append((request.path, asked))
        if self.mute:
            self.closing.wait(10)
            return
        if self.status:
            status = self.status.pop(0)
            if status != 200:
                request.send_error(status)
                return
        if self.redirect and request.path != urlsplit(self.redirect).path:
            request.send_response(302)
            request.send_header("Location", self.redirect)
            request.end_headers()
            return
        if self.confirm and parse_qs(urlsplit(request.path).query).get("uuid") != ["7-8"]:
            self._ask(request)
            return
        fresh = request.headers.get("If-Range") in (None, self.etag)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges and fresh else 0
        if start and start >= len(self.body):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(self.body)}")
            request.end_headers()
            return
        self._serve(request, start)

    def _ask(self, request: BaseHTTPRequestHandler) -> None:
        fields = {"id": "abc", "export": "download", "confirm": "t", "uuid": "7-8"}
        inputs = "".join(f'<input type="hidden" name="{name}" value="{value}">' for name, value in fields.items())
        page = f'<html><form id="download-form" action="{self.url}/download" method="get">{inputs}</form></html>'
        request.send_response(200)
        request.send_header("Content-Type", "text/html; charset=utf-8")
        request.send_header("Content-Length", str(len(page)))
        request.end_headers()
        request.wfile.write(page.encode())

    def _serve(self, request: BaseHTTPRequestHandler, start: int) -> None:
        first = start + self.shift if start else 0
        request.send_response(206 if start else 200)
        request.send_header("Content-Type", self.content_type)
        if self.etag:
            request.send_header("ETag", self.etag)
        if start:
            request.send_header("Content-Range", f"bytes {first}-{len(self.body) - 1}/{len(self.body) + self.claim}")
        if not self.chunked:
            request.send_header("Content-Length", str(len(self.body) - first + self.claim))
        request.end_headers()
        if self.delay:
            time.sleep(self.delay)
        end = len(self.body)
        if self.cuts:
            end = min(self.cuts.pop(0), end)
        if self.stall is not None:
            request.wfile.write(self.body[first : self.stall])
            request.wfile.flush()
            self.closing.wait(10)
            return
        request.wfile.write(self.body[first:end])


@contextlib.contextmanager
def file_server(**options) -> Iterator[FileServer]:
    """A running `FileServer` on a free port of this machine."""
    files = FileServer(**options)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(ConnectionError):
                files.answer(self)

        def log_message(self, *args) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    files.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield files
    finally:
        files.closing.set()
        server.shutdown()
        server.server_close()
