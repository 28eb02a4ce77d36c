"""Addresses, and the page by which Google Drive asks before it serves a large file."""

import time

import pytest

from soft_vit.weights import Entry
from soft_vit.weights.transport import confirmation, download_url, is_safe, leads_safely, page_link, page_reason, within

DRIVE = "https://drive.usercontent.google.com/download"


@pytest.mark.parametrize(
    ("source", "served", "shown"),
    [
        ("gdrive:abcdefghijk", "https://drive.google.com/uc?export=download&id=abcdefghijk", "file/d/abcdefghijk/view"),
        ("hf-hub:owner/name", "https://huggingface.co/owner/name/resolve/main/w.pth", "owner/name/resolve/main/w.pth"),
        ("https://example.org/w.pth", "https://example.org/w.pth", "https://example.org/w.pth"),
    ],
)
def test_addresses(source, served, shown):
    assert download_url(source, "w.pth") == served
    assert page_link(Entry("soft_tiny", "a", "w.pth", (source,))).endswith(shown)


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://example.org/x", True),
        ("http://127.0.0.1:80/x", True),
        ("http://localhost/x", True),
        ("http://[::1]:80/x", True),
        ("http://example.org/x", False),
        ("http://127.0.0.1@example.org/x", False),
        ("http://localhost.example.org/x", False),
        ("ftp://localhost/x", False),
        ("file:///etc/passwd", False),
        ("/etc/passwd", False),
    ],
)
def test_safe_addresses(url, safe):
    assert is_safe(url) == safe


@pytest.mark.parametrize(
    ("url", "target", "safe"),
    [
        ("https://example.org/x", "https://cdn.example.net/x", True),
        ("https://example.org/x", "http://example.org/x", False),
        ("https://example.org/x", "http://localhost/x", False),
        ("https://example.org/x", "https://127.0.0.1/x", False),
        ("https://localhost.example.org/x", "http://[::1]/x", False),
        ("http://127.0.0.1:80/x", "http://localhost:90/x", True),
        ("http://127.0.0.1:80/x", "https://example.org/x", True),
        ("http://127.0.0.1:80/x", "http://example.org/x", False),
    ],
)
def test_redirects(url, target, safe):
    assert leads_safely(url, target) == safe


def page(action: str, fields: str = '<input type="hidden" name="id" value="A&amp;B"><input name="confirm" value="t">'):
    return f"<html><form action='/search'><input name=q></form><form action='{action}'>{fields}</form></html>"


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (page(DRIVE), f"{DRIVE}?id=A%26B&confirm=t"),
        (page("/download?old=1"), "https://drive.google.com/download?id=A%26B&confirm=t"),
        (page("https://example.org/download"), None),
        (page("https://evil-google.com/download"), None),
        (page("http://drive.google.com/download"), None),
        (page(DRIVE, "<input name=id value=1>"), None),
        ("<html>quota exceeded", None),
        ("", None),
    ],
)
def test_confirmation(text, target):
    assert confirmation(text, "https://drive.google.com/uc?id=1") == target


@pytest.mark.parametrize(
    ("url", "action", "followed"),
    [
        ("https://example.org/x", DRIVE, False),
        ("https://evil-google.com/x", DRIVE, False),
        ("https://example.org/x", "/download", True),
        ("https://drive.usercontent.google.com/x", DRIVE, True),
        ("http://127.0.0.1:80/x", DRIVE, True),
        ("http://127.0.0.1:80/x", "http://127.0.0.1:80/download", True),
        ("https://drive.google.com/x", "http://127.0.0.1/download", False),
    ],
)
def test_whose_confirmation_is_followed(url, action, followed):
    assert (confirmation(page(action), url) is not None) == followed


def test_what_a_page_says():
    said = page_reason("<TITLE>Google Drive -\n  Quota exceeded</TITLE>", "https://drive.google.com/uc")
    assert said == "drive.google.com serves a web page, 'Google Drive - Quota exceeded', in the place of the file"


def test_within():
    assert within(1.0, lambda: 3) == 3
    with pytest.raises(TimeoutError):
        within(0.01, lambda: time.sleep(0.2))
    with pytest.raises(ZeroDivisionError):
        within(1.0, lambda: 1 / 0)
