"""Downloads: the file comes whole, or one reason comes and nothing else changes."""

import errno
import hashlib
import multiprocessing
import socket
import ssl
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from file_server import file_server

from soft_vit.weights import Entry, WeightsError
from soft_vit.weights import fetch as fetch_module
from soft_vit.weights.fetch import download, download_folder, lookup_folders, recorded_digest

BODY = bytes(range(256)) * 400
DIGEST = hashlib.sha256(BODY).hexdigest()


def entry(*sources: str, **kwargs) -> Entry:
    return Entry("soft_tiny", "test", "weights.pth", sources, **kwargs)


def right(path) -> None:
    """The check of a file without a recorded digest."""
    if path.read_bytes() != BODY:
        raise ValueError("these are other bytes.")


def fetch(server, folder, **kwargs):
    return download(entry(f"{server.url}/weights.pth", **kwargs), folder, right, progress=False)


def left(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


@pytest.mark.parametrize("known", [{"sha256": DIGEST, "size": len(BODY)}, {}], ids=["digest", "no digest"])
def test_whole(known, tmp_path):
    folder = tmp_path / "new"
    with file_server(body=BODY, redirect="/elsewhere") as server:
        path = fetch(server, folder, **known)
        assert fetch(server, folder, **known) == path
    assert path.read_bytes() == BODY
    assert server.requests == ["/weights.pth", "/elsewhere"]
    assert recorded_digest(path) == (None if known else DIGEST)
    assert left(folder) == ["weights.pth", *([] if known else ["weights.pth.sha256"])]


@pytest.mark.parametrize(
    ("behaviour", "known", "reason"),
    [
        (dict(status=[404]), {}, "gives no file: HTTP Error 404"),
        (dict(status=[503]), {}, "gives no file: HTTP Error 503"),
        (dict(body=b"<html>"), {}, "other bytes"),
        (dict(body=BODY[::-1]), {}, "other bytes"),
        (dict(cut=1000), {}, "other bytes"),
        (dict(redirect="ftp://127.0.0.1/x"), {}, "gives no file"),
        (dict(mute=True), {}, "gives no file: timed out"),
        (dict(stall=1000), {}, "gives no file: .*timed out"),
        ({}, dict(sha256="0" * 64), f"sha256 is {DIGEST[:12]}"),
        ({}, dict(size=3), "has 102,400 bytes and not 3"),
    ],
    ids=str,
)
def test_what_is_not_the_file(behaviour, known, reason, tmp_path, monkeypatch):
    if "timed out" in reason:
        monkeypatch.setattr(fetch_module, "IDLE_TIMEOUT", 0.2)
    with file_server(**{"body": BODY, **behaviour}) as server, pytest.raises(WeightsError, match=reason) as refused:
        fetch(server, tmp_path, **known)
    assert left(tmp_path) == []
    assert len(str(refused.value).splitlines()) == 1


def test_the_second_source_stands_in(tmp_path):
    with file_server(status=[404]) as broken, file_server(body=BODY) as server:
        both = entry(f"{broken.url}/a", f"{server.url}/b")
        assert download(both, tmp_path, right, progress=False).read_bytes() == BODY


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), "gives no file: Temporary failure"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "gives no file: Network is unreachable"),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), "gives no file: certificate verify failed"),
        (OSError("Tunnel connection failed: 403 Forbidden"), "gives no file: Tunnel connection failed"),
    ],
    ids=["unknown name", "no network", "a proxy's certificate", "a proxy's refusal"],
)
def test_offline(error, reason, tmp_path, monkeypatch):
    def look_up(host, *args, **kwargs):
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(WeightsError, match=rf"weights\.example\.org {reason}"):
        download(entry("https://weights.example.org/x"), tmp_path, right, progress=False)


def test_a_closed_port(tmp_path):
    with pytest.raises(WeightsError, match="gives no file: Connection refused"):
        download(entry("http://127.0.0.1:1/x"), tmp_path, right, progress=False)


class TestLibraries:
    """What the libraries that need the network are asked for."""

    def test_google_drive(self, tmp_path, monkeypatch):
        def save(*, id, output, quiet, use_cookies):
            with open(output, "wb") as file:
                file.write(BODY if id == "abcdefghij" else b"")

        monkeypatch.setitem(sys.modules, "gdown", SimpleNamespace(download=save))
        assert download(entry("gdrive:abcdefghij"), tmp_path, right).read_bytes() == BODY

    def test_google_drive_says_why(self, tmp_path, monkeypatch):
        """Behind a heading, in wrapped lines, before what a user with a browser may do."""

        def refuse(**kwargs):
            raise RuntimeError(
                "Failed to retrieve file url:\n\n\tToo many users have viewed this file\n\trecently. Please try again "
                "later.\n\nYou may still be able to access the file from the browser:\n\n\thttps://drive.google.com/x"
            )

        monkeypatch.setitem(sys.modules, "gdown", SimpleNamespace(download=refuse))
        reason = r"^drive\.google\.com gives no file: Too many users have viewed this file recently$"
        with pytest.raises(WeightsError, match=reason):
            download(entry("gdrive:abcdefghij"), tmp_path, right)

    def test_google_drive_without_gdown(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "gdown", None)
        with pytest.raises(WeightsError, match="gdown is not installed; pip install gdown"):
            download(entry("gdrive:abcdefghij"), tmp_path, right)

    def test_hugging_face(self, tmp_path, monkeypatch):
        def save(repo_id, filename, *, local_dir):
            (local_dir / filename).write_bytes(BODY if repo_id == "owner/name" else b"")

        monkeypatch.setattr("huggingface_hub.hf_hub_download", save)
        assert download(entry("hf-hub:owner/name"), tmp_path, right).read_bytes() == BODY

    def test_a_source_that_is_none(self, tmp_path):
        with pytest.raises(WeightsError, match="is not HTTPS"):
            download(entry("file:///etc/passwd"), tmp_path, right)


def test_full_disk(tmp_path, monkeypatch):
    def save(source, path, progress):
        path.write_bytes(BODY[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch_module, "_fetch_address", save)
    with pytest.raises(WeightsError, match=rf"{tmp_path} cannot be written: No space left"):
        download(entry("https://example.org/x"), tmp_path, right)
    assert left(tmp_path) == []


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(WeightsError, match="cannot be written"):
        download(entry("https://example.org/x"), tmp_path / "file", right)


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / ".weights.pth.part-x").mkdir()
    (tmp_path / ".weights.pth.part-x" / "weights.pth").write_bytes(b"half")
    with file_server(body=BODY) as server:
        fetch(server, tmp_path, sha256=DIGEST)
    assert left(tmp_path) == ["weights.pth"]


@pytest.mark.parametrize("status", [[], [404] * 3], ids=["found", "not found"])
def test_processes_at_once(status, tmp_path):
    """One downloads, the others wait for its file, or fail with it."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def work(barrier) -> None:
        barrier.wait(10)
        try:
            results.put(fetch(server, tmp_path).name)
        except WeightsError as error:
            results.put(str(error))

    with file_server(body=BODY, delay=0.5, status=status) as server:
        if status:
            # The others begin to wait before it fails.
            server.answer = lambda request, answer=server.answer: (time.sleep(0.5), answer(request))
        barrier = context.Barrier(3)
        others = [context.Process(target=work, args=(barrier,)) for _ in range(3)]
        for process in others:
            process.start()
        for process in others:
            process.join(20)
    said = sorted(results.get() for _ in others)
    assert len(server.requests) == 1
    assert ("404" in said[0] and said[1] == said[2] != said[0]) if status else said == ["weights.pth"] * 3


@pytest.mark.parametrize("text", ["", "no digest", "0" * 63])
def test_a_record_without_a_digest_is_refused(text, tmp_path):
    (tmp_path / "a.pth.sha256").write_text(text)
    with pytest.raises(WeightsError, match=r"a\.pth\.sha256"):
        recorded_digest(tmp_path / "a.pth")


@pytest.mark.parametrize("text", [f"{DIGEST}  a.pth\n", f"{DIGEST.upper()} *a.pth\r\n", DIGEST])
def test_recorded_digest(text, tmp_path):
    assert recorded_digest(tmp_path / "a.pth") is None
    (tmp_path / "a.pth.sha256").write_text(text)
    assert recorded_digest(tmp_path / "a.pth") == DIGEST


@pytest.mark.parametrize("function", [download_folder, lookup_folders])
@pytest.mark.parametrize("named", ["{}/typo", "{}/file", "~nobody-of-that-name/x", "{}/typo\nmore"])
def test_a_named_folder_that_is_none(function, named, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", named.format(tmp_path))
    with pytest.raises(WeightsError, match="SOFT_VIT_CHECKPOINTS") as refused:
        function()
    assert len(str(refused.value).splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_named_folder_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", "~")
    assert download_folder() == lookup_folders()[0] == tmp_path


def test_without_a_name_downloads_go_into_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", "")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert download_folder() == lookup_folders()[-1] == tmp_path / "hub" / "checkpoints"
    assert download_folder("elsewhere") == Path("elsewhere")
