"""A local HTTP server of one file, which fails, lies or falls silent as a test asks."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread


@dataclass
class FileServer:
    """What the server does; `requests` holds the path of each request.

    cut: bytes after which the connection is closed. stall: bytes after which an answer falls silent. mute: no answer at
    all. delay: seconds before the file. status: answers in place of the file, one for each request. redirect: where a
    request for another path is sent.
    """

    body: bytes = b""
    cut: int | None = None
    stall: int | None = None
    mute: bool = False
    delay: float = 0.0
    status: list[int] = field(default_factory=list)
    redirect: str | None = None
    requests: list[str] = field(default_factory=list)
    closing: Event = field(default_factory=Event)
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append(request.path)
        if self.mute:
            self.closing.wait(10)
        elif self.status:
            request.send_error(self.status.pop(0))
        elif self.redirect and request.path != self.redirect:
            request.send_response(302)
            request.send_header("Location", self.redirect)
            request.end_headers()
        else:
            request.send_response(200)
            request.send_header("Content-Length", str(len(self.body)))
            request.end_headers()
            time.sleep(self.delay)
            request.wfile.write(self.body[: self.stall if self.cut is None else self.cut])
            if self.stall is not None:
                request.wfile.flush()
                self.closing.wait(10)


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
