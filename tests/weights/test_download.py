"""Downloads from a server that misbehaves: the file comes whole, or one reason comes and nothing else changes."""

import errno
import hashlib
import multiprocessing
import os
import random
import socket
import threading
import time

import pytest
from file_server import file_server

from soft_vit.weights import Entry, WeightsError, partial_file
from soft_vit.weights import download as download_module
from soft_vit.weights.download import download, recorded_digest

BODY = random.Random(0).randbytes(300_000)
DIGEST = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(partial_file, "BLOCK", 1 << 12)


def entry(url: str, **kwargs) -> Entry:
    return Entry("soft_tiny", "test", "weights.pth", (f"{url}/weights.pth",), **kwargs)


def right(path) -> None:
    """The check of a file without a recorded digest."""
    if path.read_bytes() != BODY:
        raise ValueError("these are other bytes.")


def fetch(server, folder, **kwargs):
    return download(entry(server.url, **kwargs), folder, right, progress=False)


def visible(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize("known", [{"sha256": DIGEST, "size": len(BODY)}, {}], ids=["digest", "no digest"])
class TestWhole:
    def test_plain(self, known, tmp_path):
        with file_server(body=BODY) as server:
            path = fetch(server, tmp_path / "new", **known)
            assert fetch(server, tmp_path / "new", **known) == path
        assert path.read_bytes() == BODY
        assert len(server.requests) == 1
        assert recorded_digest(path) == (None if known else DIGEST)
        assert visible(path.parent) == ["weights.pth", *([] if known else ["weights.pth.sha256"])]
        assert not list(path.parent.glob(".part.*"))

    @pytest.mark.parametrize("cut", random.Random(1).sample(range(1, len(BODY)), 20))
    def test_cut_off_and_resumed(self, known, cut, tmp_path):
        with file_server(body=BODY, cuts=[cut]) as server:
            path = fetch(server, tmp_path, **known)
        assert path.read_bytes() == BODY
        (_, first), (_, second) = server.requests
        assert first is None
        assert 0 < int(second.removeprefix("bytes=").rstrip("-")) <= cut

    def test_resumed_by_the_next_call(self, known, tmp_path):
        with file_server(body=BODY, cuts=[200_000], status=[200, 503, 503, 503]) as server:
            with pytest.raises(WeightsError, match="answers 503"):
                fetch(server, tmp_path, **known)
            assert visible(tmp_path) == []
            path = fetch(server, tmp_path, **known)
        assert path.read_bytes() == BODY
        assert server.requests[-1][1] == "bytes=200000-"

    @pytest.mark.parametrize(
        "behaviour",
        [
            dict(cuts=[100_000, 150_000, 150_001, 299_999]),
            dict(cuts=[100_000], ranges=False),
            dict(cuts=[100_000], shift=1),
            dict(cuts=[100_000], etag=None),
            dict(cuts=[100_000], etag='W/"weak"'),
            dict(status=[503, 429]),
            dict(redirect="{url}/elsewhere"),
            dict(confirm=True),
            dict(confirm=True, cuts=[100_000]),
        ],
        ids=str,
    )
    def test_odd_answers(self, known, behaviour, tmp_path):
        with file_server(body=BODY) as server:
            for name, value in behaviour.items():
                setattr(server, name, value.format(url=server.url) if isinstance(value, str) else value)
            assert fetch(server, tmp_path, **known).read_bytes() == BODY

    def test_another_file_on_the_next_day(self, known, tmp_path):
        """What was kept of the first file is not put before the rest of the second."""
        with file_server(body=BODY[::-1], cuts=[100_000], status=[200, 404]) as server:
            with pytest.raises(WeightsError, match="404"):
                fetch(server, tmp_path, **({} if not known else {"sha256": DIGEST}))
            server.body, server.etag = BODY, '"2"'
            assert fetch(server, tmp_path, **known).read_bytes() == BODY

    def test_another_file_without_a_sign_of_it(self, known, tmp_path):
        with file_server(body=BODY[::-1], cuts=[100_000], status=[200, 404], etag=None) as server:
            with pytest.raises(WeightsError, match="404"):
                fetch(server, tmp_path, **known)
            server.body = BODY
            assert fetch(server, tmp_path, **known).read_bytes() == BODY

    def test_a_complete_part(self, known, tmp_path):
        """A process that was killed before the file got its name."""
        with file_server(body=BODY, cuts=[100_000], status=[200, 404]) as server:
            with pytest.raises(WeightsError):
                fetch(server, tmp_path, **known)
            (tmp_path / ".part.weights.pth").write_bytes(BODY)
            assert fetch(server, tmp_path, **known).read_bytes() == BODY


WRONG = {
    "not found": (dict(status=[404] * 9), "127.0.0.1 answers 404"),
    "never well": (dict(status=[503] * 9), "127.0.0.1 answers 503"),
    "page": (dict(body=b"<html><title>Sign in\n please</title>", content_type="text/html"), "'Sign in please'"),
    "page without a title": (dict(body=b"<p>no", content_type="text/html"), "web page in the place of the file"),
    "page as a file": (dict(body=b"<html>"), "other bytes"),
    "wrong bytes": (dict(body=BODY[::-1]), "other bytes"),
    "too short a length": (dict(claim=-1), "other bytes"),
    "too long a length": (dict(claim=1, ranges=False), "ends after 300,000 of 300,001 bytes"),
    "redirect to another protocol": (dict(redirect="ftp://127.0.0.1/other"), "not HTTPS"),
    "redirect to plain HTTP": (dict(redirect="http://example.org/other"), "not HTTPS"),
    "page that leads to no address": (dict(body=b"<form action='http://[x'>", content_type="text/html"), "no address"),
    "redirect in a circle": (dict(redirect="//127.0.0.1:1/"), "cannot be reached"),
    "nothing": (dict(body=b""), "other bytes"),
    "no answer": (dict(mute=True), "does not answer in time"),
    "silence": (dict(stall=0), "does not answer in time"),
    "silence after a part": (dict(stall=1000), "does not answer in time"),
}


@pytest.mark.parametrize(("behaviour", "reason"), WRONG.values(), ids=WRONG.keys())
def test_what_is_not_the_file(behaviour, reason, tmp_path, monkeypatch):
    if reason == "does not answer in time":
        monkeypatch.setattr(download_module, "PATIENCE", 0.3)
    with file_server(**{"body": BODY, **behaviour}) as server, pytest.raises(WeightsError, match=reason) as refused:
        fetch(server, tmp_path)
    assert visible(tmp_path) == []
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("known", "behaviour", "reason"),
    [
        (dict(sha256="0" * 64), {}, f"sha256 is {DIGEST[:12]}"),
        (dict(size=299_999), {}, "has 300,000 bytes and the recorded one 299,999"),
        (dict(size=299_999), dict(chunked=True), "longer than 299,999 bytes"),
        (dict(size=300_001), dict(chunked=True), "has 300,000 bytes and not 300,001"),
    ],
)
def test_what_is_not_as_recorded(known, behaviour, reason, tmp_path):
    with file_server(body=BODY, **behaviour) as server, pytest.raises(WeightsError, match=reason):
        fetch(server, tmp_path, **known)
    assert visible(tmp_path) == []


def test_a_length_that_was_too_long_is_put_right(tmp_path):
    """The answer to the range after the end says how long the file is."""
    with file_server(body=BODY, claim=1) as server:
        assert fetch(server, tmp_path, sha256=DIGEST).read_bytes() == BODY


def test_an_endless_file_fills_no_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(partial_file, "MAX_BYTES", 1000)
    for chunked, reason in ((True, "longer than 1,000"), (False, "more than any checkpoint")):
        with file_server(body=BODY, chunked=chunked) as server, pytest.raises(WeightsError, match=reason):
            fetch(server, tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2000


def test_the_second_source_stands_in(tmp_path):
    with file_server(status=[404]) as broken, file_server(body=BODY) as server:
        both = Entry("soft_tiny", "test", "weights.pth", (f"{broken.url}/a", f"{server.url}/b"))
        assert download(both, tmp_path, right, progress=False).read_bytes() == BODY


def closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["closed port", "unknown name", "silent name server"])
def test_offline(kind, tmp_path, monkeypatch):
    def look_up(host, *args, **kwargs):
        if kind == "silent name server":
            time.sleep(5)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(download_module, "PATIENCE", 0.3)
    url = closed_port() if kind == "closed port" else "https://weights.example.org"
    if kind != "closed port":
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
    began = time.monotonic()
    with pytest.raises(WeightsError, match=r"cannot be reached|does not answer") as refused:
        download(entry(url), tmp_path, right, progress=False)
    # No measurement: the look-up alone would take five.
    assert time.monotonic() - began < 4
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("url", ["http://example.org/weights.pth", "ftp://example.org/x", "file:///etc/passwd"])
def test_plain_transports_are_refused_by_the_index(url):
    with pytest.raises(ValueError, match="source is"):
        Entry("soft_tiny", "test", "weights.pth", (url,))


class FullDisk:
    """A file whose disk is full after some bytes."""

    def __init__(self, path, mode: str, buffering: int, opener) -> None:
        self.file, self.room = path.open(mode, buffering), 10_000

    def __enter__(self):
        return self

    def __exit__(self, *args) -> None:
        self.file.close()

    def __getattr__(self, name: str):
        return getattr(self.file, name)

    def write(self, data: bytes) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)


def test_full_disk(tmp_path, monkeypatch):
    with file_server(body=BODY) as server:
        monkeypatch.setattr(partial_file, "open", FullDisk, raising=False)
        with pytest.raises(WeightsError, match=r"cannot be written: No space left on device"):
            fetch(server, tmp_path)
        assert visible(tmp_path) == []
        monkeypatch.undo()
        assert fetch(server, tmp_path).read_bytes() == BODY
    # Not from the start: what had come is used.
    assert server.requests[-1][1] is not None


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsError, match="cannot be written"):
        download(entry("https://example.org"), tmp_path / "file", right)


def _other_process(url: str, folder, results) -> None:
    path = download(entry(url), folder, right, progress=False)
    results.put(hashlib.sha256(path.read_bytes()).hexdigest())


def test_processes_at_once(tmp_path):
    """One downloads, the others wait for its file."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with file_server(body=BODY, delay=0.3) as server:
        others = [context.Process(target=_other_process, args=(server.url, tmp_path, results)) for _ in range(3)]
        for process in others:
            process.start()
        for process in others:
            process.join(20)
        assert [process.exitcode for process in others] == [0, 0, 0]
    assert {results.get() for _ in others} == {DIGEST}
    assert len(server.requests) == 1


class TestWaiting:
    """Downloads that wait for another one; in threads, which wait for each other's locks as processes do."""

    @pytest.fixture
    def run_together(self, tmp_path, monkeypatch, caplog):
        def run(first, then, others: int = 3) -> list[str]:
            """What each download says: `first` runs once all others wait for it, `then` where one goes on after it."""
            started, go, said = threading.Event(), threading.Event(), []

            def fake(entry, target, check, progress) -> None:
                if started.is_set():
                    then(target)
                else:
                    started.set()
                    assert go.wait(10)
                    first(target)

            def work() -> None:
                try:
                    said.append(download(entry("https://example.org"), tmp_path, right).name)
                except WeightsError as error:
                    said.append(str(error))

            monkeypatch.setattr(download_module, "_download", fake)
            threads = [threading.Thread(target=work, daemon=True) for _ in range(1 + others)]
            with caplog.at_level("INFO"):
                threads[0].start()
                assert started.wait(10)
                for thread in threads[1:]:
                    thread.start()
                for _ in range(500):
                    if caplog.text.count("waiting for it") == others:
                        break
                    time.sleep(0.01)
            go.set()
            for thread in threads:
                thread.join(10)
            return said

        return run

    @staticmethod
    def fail(target) -> None:
        raise WeightsError("example.org is döwn")

    @staticmethod
    def never(target) -> None:
        raise AssertionError("tried again")

    def test_the_reason_of_the_first_is_that_of_all(self, run_together, tmp_path):
        assert run_together(self.fail, self.never) == ["example.org is döwn"] * 4
        assert visible(tmp_path) == []

    def test_a_reason_from_before_is_not_believed(self, run_together, tmp_path):
        """The one that downloads is killed: it says nothing, and the next goes on."""
        (tmp_path / ".weights.pth.failed").write_text("an old reason")
        said = run_together(lambda target: None, lambda target: target.write_bytes(BODY))
        assert said == ["weights.pth"] * 4

    def test_a_reason_that_cannot_be_written(self, run_together, tmp_path):
        (tmp_path / ".weights.pth.failed").mkdir()
        assert run_together(self.fail, self.fail) == ["example.org is döwn"] * 4


def test_a_download_that_did_not_wait_tries_again(tmp_path):
    with file_server(body=BODY, status=[404]) as server:
        with pytest.raises(WeightsError, match="404"):
            fetch(server, tmp_path)
        assert fetch(server, tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("kind", ["symlink", "dangling symlink", "hard link", "folder", "pipe"])
def test_a_planted_part(kind, tmp_path):
    """In a folder that others write, a partial file may lead to one that they do not."""
    folder, victim = tmp_path / "shared", tmp_path / "victim"
    folder.mkdir()
    part = folder / ".part.weights.pth"
    if kind != "dangling symlink":
        victim.write_bytes(b"theirs")
    make = {"hard link": lambda: os.link(victim, part), "folder": part.mkdir, "pipe": lambda: os.mkfifo(part)}
    make.get(kind, lambda: part.symlink_to(victim))()
    with file_server(body=BODY) as server, pytest.raises(WeightsError, match=r"\.part\.weights\.pth .*; remove it"):
        fetch(server, folder, sha256=DIGEST)
    assert victim.exists() == (kind != "dangling symlink")
    assert not victim.exists() or victim.read_bytes() == b"theirs"
    assert visible(folder) == []
    assert server.requests == []


@pytest.mark.parametrize("moment", ["before it is opened", "before it gets its name"])
def test_a_part_that_is_planted_meanwhile(moment, tmp_path, monkeypatch):
    folder, victim = tmp_path / "shared", tmp_path / "victim"
    folder.mkdir()
    victim.write_bytes(BODY)
    part = folder / ".part.weights.pth"

    def plant() -> None:
        part.unlink(missing_ok=True)
        part.symlink_to(victim)

    module, name = (partial_file, "check_size") if moment == "before it is opened" else (download_module, "_verify")
    monkeypatch.setattr(module, name, lambda *args: plant())
    with file_server(body=BODY[:10]) as server, pytest.raises(WeightsError, match="link"):
        fetch(server, folder)
    assert victim.read_bytes() == BODY
    assert visible(folder) == []


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (f"{DIGEST}  weights.pth\n", DIGEST),
        (f"{DIGEST.upper()} *weights.pth\r\n", DIGEST),
        (DIGEST, DIGEST),
        ("", None),
        (DIGEST[:-1], None),
        (DIGEST + "0", None),
        ("\xff" * 70, None),
    ],
)
def test_recorded_digest(content, found, tmp_path):
    (tmp_path / "weights.pth.sha256").write_bytes(content.encode("latin1"))
    if found is None:
        with pytest.raises(WeightsError, match=r"weights\.pth\.sha256 holds no SHA-256 .*; .*remove") as refused:
            recorded_digest(tmp_path / "weights.pth")
        assert len(str(refused.value).splitlines()) == 1
    else:
        assert recorded_digest(tmp_path / "weights.pth") == found


def test_a_recorded_digest_that_cannot_be_read(tmp_path):
    assert recorded_digest(tmp_path / "weights.pth") is None
    (tmp_path / "weights.pth.sha256").symlink_to(tmp_path / "gone")
    with pytest.raises(WeightsError, match=r"sha256 holds no SHA-256"):
        recorded_digest(tmp_path / "weights.pth")


def test_a_killed_process_leaves_no_lock(tmp_path):
    context = multiprocessing.get_context("fork")
    with file_server(body=BODY, stall=100_000) as server:
        victim = context.Process(target=_other_process, args=(server.url, tmp_path, context.SimpleQueue()))
        victim.start()
        for _ in range(500):
            if server.requests:
                break
            time.sleep(0.01)
        victim.kill()
        victim.join(20)
        server.stall = None
        assert fetch(server, tmp_path).read_bytes() == BODY


def test_progress_is_shown(tmp_path, capsys):
    with file_server(body=BODY) as server:
        download(entry(server.url), tmp_path, right)
    assert "weights.pth: 100%" in capsys.readouterr().err
