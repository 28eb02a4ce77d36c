"""The partial file of a download: fetched in as many connections as it takes, and named only when it is whole."""

import contextlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from soft_vit.weights.errors import WeightsError
from soft_vit.weights.files import sha256_of, write_atomically
from soft_vit.weights.index import Entry
from soft_vit.weights.transport import TRANSPORT_ERRORS, BrokenOff, Session, download_url, host_of, reason_of

__all__ = ["PartialFile"]

# So many connections in a row may bring nothing.
ATTEMPTS = 3
# The limit for a file whose size is not recorded; the largest model with optimizer and averages has 1.4 GB.
MAX_BYTES = 4 << 30
BLOCK = 1 << 16


@dataclass
class Known:
    """What a server said of a file: where it came from, by what it is known again, and how long it is."""

    source: str
    validator: str | None = None
    total: int | None = None


class PartialFile:
    """What has come of an entry's file from one of its sources, beside the target that it will become."""

    def __init__(self, target: Path, entry: Entry, source: str) -> None:
        self.target, self.entry = target, entry
        self.url = download_url(source, entry.file)
        self.path = target.with_name(f".part.{target.name}")
        self.notes = self.path.with_name(self.path.name + ".json")
        self.known = self._read_notes(source)

    def _read_notes(self, source: str) -> Known:
        try:
            known = Known(**json.loads(self.notes.read_text()))
        except (OSError, ValueError, TypeError):
            return Known(source)
        return known if known.source == source else Known(source)

    def require_plain(self) -> None:
        """WeightsError for a link, by which another user of the folder would have any file of ours overwritten."""
        if os.path.lexists(self.path):
            found = self.path.lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise WeightsError(f"{self.path} is a link or no plain file; remove it")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def discard(self) -> None:
        for path in (self.path, self.notes):
            path.unlink(missing_ok=True)
        self.known = Known(self.known.source)

    def finish(self) -> None:
        """Give the file its name; record its digest beside it if the entry has none."""
        self.require_plain()
        with self._writing():
            if self.entry.sha256 is None:
                line = f"{sha256_of(self.path)}  {self.target.name}\n"
                write_atomically(self.target.with_name(self.target.name + ".sha256"), line.encode())
            os.replace(self.path, self.target)
        self.discard()

    def fetch(self, patience: float, progress: bool) -> bool:
        """Download to the end, over as many connections as bring something; returns whether any went on with a part.

        patience: seconds without anything new after which the source counts as out of reach. Raises WeightsError with
        a reason.
        """
        self.require_plain()
        session = Session(stall=patience)
        resumed, fruitless, deadline = self.size() > 0, 0, time.monotonic() + patience
        with Bar(self.entry.file, progress) as bar:
            while True:
                before = self.size()
                try:
                    if self._attempt(session, deadline - time.monotonic(), bar):
                        return resumed
                    reason = f"{host_of(self.url)} has another file than a moment ago"
                except TRANSPORT_ERRORS as error:
                    reason = reason_of(error, self.url)
                resumed = True
                if self.size() > before:
                    fruitless, deadline = 0, time.monotonic() + patience
                    continue
                fruitless += 1
                if fruitless == ATTEMPTS or time.monotonic() >= deadline:
                    raise WeightsError(reason)
                time.sleep(0.1 * fruitless)

    def _attempt(self, session: Session, seconds: float, bar: "Bar") -> bool:
        """One connection; True at the end of the file, False where the part had to be given up."""
        have = self.size()
        # Without a sign that it is still the same file, only a recorded digest tells two halves apart.
        if have and self.known.validator is None and self.entry.sha256 is None:
            have = 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        if have and self.known.validator is not None:
            headers["If-Range"] = self.known.validator
        with session.open(self.url, headers, seconds) as response:
            start, total = answered_range(response, have)
            if start is None or (start and not self._same_file(response, total)):
                done = bool(have) and have == total
                if not done:
                    self.discard()
                return done
            check_size(self.entry, total, self.url)
            self.known.validator, self.known.total = validator_of(response), total
            limit = total or self.entry.size or MAX_BYTES
            bar.place(start, total)
            with contextlib.ExitStack() as stack:
                with self._writing():
                    write_atomically(self.notes, json.dumps(asdict(self.known)).encode())
                    mode = "r+b" if start else "wb"
                    file = stack.enter_context(open(self.path, mode, buffering=0, opener=_open_no_link))
                    file.seek(start)
                    file.truncate()
                done = self._copy(response, file, start, limit, bar)
        if done < limit and (total or self.entry.size):
            raise BrokenOff(f"the file from {host_of(self.url)} ends after {done:,} of {limit:,} bytes")
        return True

    def _copy(self, response, file, done: int, limit: int, bar: "Bar") -> int:
        while block := response.read(BLOCK):
            if done + len(block) > limit:
                self.discard()
                raise WeightsError(f"what comes is longer than {limit:,} bytes")
            with self._writing():
                file.write(block)
            done += len(block)
            bar.update(len(block))
        with self._writing():
            os.fsync(file.fileno())
        return done

    def _same_file(self, response, total: int | None) -> bool:
        said = validator_of(response)
        return (self.known.total is None or total == self.known.total) and (
            said is None or self.known.validator is None or said == self.known.validator
        )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """An error of the disk ends the download; one of the connection does not."""
        try:
            yield
        except OSError as error:
            raise WeightsError(f"{self.path.parent} cannot be written: {error.strerror}") from None


def _open_no_link(path: str, flags: int) -> int:
    # Windows has no such flag, and links there need a privilege.
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


class Bar:
    """A progress bar that appears with the first answer."""

    def __init__(self, name: str, shown: bool) -> None:
        self.name, self.shown = name, shown
        self.bar: tqdm | None = None

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *args: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def place(self, done: int, total: int | None) -> None:
        if self.bar is None:
            self.bar = tqdm(desc=self.name, unit="B", unit_scale=True, unit_divisor=1024, disable=not self.shown)
        self.bar.total, self.bar.n = total, done

    def update(self, count: int) -> None:
        self.bar.update(count)


def answered_range(response, asked: int) -> tuple[int | None, int | None]:
    """Where an answer starts, None where it is of no use, and how long the whole file is, None where it is not said."""
    content_range = response.headers.get("Content-Range", "")
    if response.status == 206:
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", content_range.strip())
        if found is None or int(found[1]) != asked:
            return None, None
        return asked, None if found[3] == "*" else int(found[3])
    if response.status == 416:
        found = re.fullmatch(r"bytes \*/(\d+)", content_range.strip())
        return None, int(found[1]) if found else None
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else None


def validator_of(response) -> str | None:
    """The sign by which `If-Range` knows a file again: a strong ETag, else the time of its last change."""
    tag = response.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


def check_size(entry: Entry, total: int | None, url: str) -> None:
    """WeightsError if the announced length cannot be that of the entry's file."""
    if total is None:
        return
    if entry.size is not None and total != entry.size:
        raise WeightsError(f"the file at {host_of(url)} has {total:,} bytes and the recorded one {entry.size:,}")
    if total > MAX_BYTES:
        raise WeightsError(f"the file at {host_of(url)} has {total:,} bytes, more than any checkpoint of this package")
