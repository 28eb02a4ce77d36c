"""Addresses, and the page by which Google Drive asks before it serves a large file."""

import time

import pytest

from soft_vit.weights import Entry
from soft_vit.weights.transport import confirmation, download_url, is_safe, page_link, page_reason, within

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


def test_what_a_page_says():
    said = page_reason("<TITLE>Google Drive -\n  Quota exceeded</TITLE>", "https://drive.google.com/uc")
    assert said == "drive.google.com serves a web page, 'Google Drive - Quota exceeded', in the place of the file"


def test_within():
    assert within(1.0, lambda: 3) == 3
    with pytest.raises(TimeoutError):
        within(0.01, lambda: time.sleep(0.2))
    with pytest.raises(ZeroDivisionError):
        within(1.0, lambda: 1 / 0)
