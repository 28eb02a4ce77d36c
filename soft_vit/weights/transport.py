"""Opening a recorded source: bounded in time, without plain HTTP, through Google Drive's page for large files."""

import http.client
import http.cookiejar
import queue
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any, TypeVar

from soft_vit.version import __version__
from soft_vit.weights.errors import WeightsError
from soft_vit.weights.index import Entry

__all__ = ["TRANSPORT_ERRORS", "BrokenOff", "Session", "download_url", "is_page", "page_link", "reason_of"]

# What Python's client raises for a connection that fails, breaks off or answers nonsense.
TRANSPORT_ERRORS = (OSError, http.client.HTTPException)

DRIVE = "https://drive.google.com"
_DRIVE_HOSTS = (".google.com", ".googleusercontent.com")
_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
_PAGE_BYTES = 1 << 20

T = TypeVar("T")


class BrokenOff(ConnectionError):
    """An answer that may be better at another time; its message says where it comes from."""


def download_url(source: str, file: str) -> str:
    """The address that serves a file of a source of `Entry`."""
    scheme, _, rest = source.partition(":")
    if scheme == "gdrive":
        return f"{DRIVE}/uc?export=download&id={rest}"
    if scheme == "hf-hub":
        return f"https://huggingface.co/{rest}/resolve/main/{file}"
    return source


def page_link(entry: Entry) -> str:
    """The address under which a person gets an entry's file by a browser."""
    source = entry.sources[0]
    if source.startswith("gdrive:"):
        return f"{DRIVE}/file/d/{source.removeprefix('gdrive:')}/view"
    return download_url(source, entry.file)


def is_safe(url: str) -> bool:
    """Whether weights may come from an address: HTTPS, or this machine."""
    scheme = urllib.parse.urlsplit(url).scheme
    return scheme == "https" or (scheme == "http" and is_local(url))


def is_local(url: str) -> bool:
    return urllib.parse.urlsplit(url).hostname in _LOCAL_HOSTS


def leads_safely(url: str, target: str) -> bool:
    """Whether an answer from `url` may send on to `target`: only this machine may lead to a server on this machine."""
    return is_safe(target) and (is_local(url) or not is_local(target))


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not leads_safely(req.full_url, newurl):
            raise WeightsError(f"{host_of(req.full_url)} redirects to {newurl}, which is not HTTPS, or on this machine")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Session:
    """Connections of one download: they share cookies, and a silent one counts as broken after `stall` seconds."""

    def __init__(self, stall: float) -> None:
        self.stall = stall
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self.opener = urllib.request.build_opener(_SafeRedirects(), cookies)

    def open(self, url: str, headers: dict[str, str], seconds: float) -> http.client.HTTPResponse:
        """The response to a GET request, after redirects and after Google Drive's page for large files.

        Answers in at most `seconds`. Raises one of TRANSPORT_ERRORS for a connection or an answer that may be
        better at another time, WeightsError, with a reason and no sentence, for one that will not.
        """
        if not is_safe(url):
            raise WeightsError(f"{url} is not HTTPS")
        try:
            return within(seconds, lambda: self._open(url, headers))
        except ValueError as error:
            raise WeightsError(f"{host_of(url)} leads to what is no address: {error}") from None

    def _open(self, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        response = self._get(url, headers)
        if is_page(response.headers):
            page = response.read(_PAGE_BYTES).decode("utf-8", "replace")
            confirmed = confirmation(page, response.url)
            if confirmed is None:
                raise WeightsError(page_reason(page, response.url))
            response = self._get(confirmed, headers)
            if is_page(response.headers):
                raise WeightsError(page_reason(response.read(_PAGE_BYTES).decode("utf-8", "replace"), response.url))
        return response

    def _get(self, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        agent = {"User-Agent": f"soft_vit/{__version__}", "Accept-Encoding": "identity"}
        request = urllib.request.Request(url, headers={**agent, **headers})
        try:
            return self.opener.open(request, timeout=self.stall)
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return error
            # An overloaded server, or one that asks to wait, may serve the file a moment later.
            if error.code >= 500 or error.code in (http.HTTPStatus.REQUEST_TIMEOUT, http.HTTPStatus.TOO_MANY_REQUESTS):
                raise BrokenOff(f"{host_of(url)} answers {error.code}") from None
            raise WeightsError(f"{host_of(url)} answers {error.code} ({error.reason})") from None


def within(seconds: float, function: Callable[[], T]) -> T:
    """The result of function(), or TimeoutError after some seconds, when the call goes on by itself.

    The timeout of a socket covers neither the look-up of a name nor a chain of addresses and redirects.
    """
    results: queue.SimpleQueue = queue.SimpleQueue()

    def work() -> None:
        try:
            results.put((function(), None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        result, error = results.get(timeout=max(seconds, 0))
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return result


def is_page(headers: Any) -> bool:
    return headers.get_content_type() in ("text/html", "application/xhtml+xml")


class _Form(HTMLParser):
    """The forms of a page, in order: the address of each and its named fields."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append((values.get("action", ""), {}))
        elif tag == "input" and values.get("name") and self.forms:
            self.forms[-1][1][values["name"]] = values.get("value", "")


def confirmation(page: str, url: str) -> str | None:
    """The address behind the button of Google Drive's page for files that are too large to be scanned, or None."""
    parser = _Form()
    parser.feed(page)
    # A local page stands in for Google's in tests.
    of_drive = is_local(url) or host_of(url).endswith(_DRIVE_HOSTS)
    for action, fields in parser.forms:
        target = urllib.parse.urljoin(url, action)
        known = host_of(target) == host_of(url) or (of_drive and host_of(target).endswith(_DRIVE_HOSTS))
        if "id" in fields and "confirm" in fields and known and leads_safely(url, target):
            return f"{target.split('?')[0]}?{urllib.parse.urlencode(fields)}"
    return None


def page_reason(page: str, url: str) -> str:
    """What a page says in its title, in the place of a file."""
    title = re.search(r"<title[^>]*>([^<]{1,80})", page, re.IGNORECASE)
    said = f", {' '.join(title[1].split())!r}," if title else ""
    return f"{host_of(url)} serves a web page{said} in the place of the file"


def host_of(url: str) -> str:
    return urllib.parse.urlsplit(url).hostname or url


def reason_of(error: BaseException, url: str) -> str:
    """In a few words, why a connection failed."""
    if isinstance(error, BrokenOff):
        return str(error)
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        error = error.reason
    if isinstance(error, TimeoutError):
        return f"{host_of(url)} does not answer in time"
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{host_of(url)} cannot be reached: {' '.join(said.split())}"
