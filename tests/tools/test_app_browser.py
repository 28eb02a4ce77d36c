"""tools/app.py in Chromium: a click changes the pictures of an uploaded image, and no data leave the machine or remain.

With `--basetemp FOLDER`, FOLDER/test_from_an_image_to_where_a_0/app.png is the picture of docs/app.md.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from soft_vit.data import ShapeImages
from soft_vit.data.demo.shapes import COLORS

pytestmark = [pytest.mark.slow, pytest.mark.browser]

ROOT = Path(__file__).parents[2]
PICTURE, MAP = "#picture .square img", "#side{} .maps img"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return the address of the page, and the folder of temporary files of its process, which is empty at the end."""
    pytest.importorskip("gradio")
    folder = tmp_path_factory.mktemp("temporary")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    command = [sys.executable, "tools/app.py", "--port", str(port)]
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT), "GRADIO_SHARE": "True"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert f"http://127.0.0.1:{port}/" in process.stdout.readline()
        yield f"http://127.0.0.1:{port}/", folder
        process.terminate()
    assert not list(folder.iterdir())


@pytest.fixture
def tab(chromium, served):
    """Return the loaded page. At the end, it has only requested local addresses, and has reported no errors."""
    tab = chromium.new_page(viewport={"width": 1280, "height": 800})
    asked, errors = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(served[0])
    tab.wait_for_selector("#side0 .shares table", timeout=120_000)
    tab.wait_for_selector("#side1 .shares table", timeout=120_000)
    yield tab
    tab.close()
    assert not errors
    assert not [url for url in asked if not url.startswith((served[0], "data:", "blob:"))]


def source(tab, selector: str) -> str:
    return tab.locator(selector).first.get_attribute("src")


def wait_for_change(tab, selector: str, before: str) -> None:
    has_changed = "([selector, before]) => document.querySelector(selector)?.src !== before"
    tab.wait_for_function(has_changed, arg=[selector, before], timeout=60_000)


def give(tab, path: Path) -> None:
    tab.locator("#picture input[type=file]").set_input_files(path)


def test_from_an_image_to_where_a_token_looks(tab, served, tmp_path):
    sample = ShapeImages(3, split="test", scene="tiles")[2]
    Image.fromarray(sample.image).save(tmp_path / "tiles.png")
    before = source(tab, PICTURE), source(tab, MAP.format(0))
    give(tab, tmp_path / "tiles.png")
    wait_for_change(tab, PICTURE, before[0])
    wait_for_change(tab, MAP.format(0), before[1])
    assert tab.locator("#side0 .summary th").first.inner_text() == tuple(COLORS)[sample.label]

    # Click on the tile in question, then on a map.
    maps = [source(tab, MAP.format(side)) for side in (0, 1)]
    side = tab.locator(PICTURE).bounding_box()["width"]
    x, y = (float(sample.box[axis] + sample.box[axis + 2]) / 2 / 64 * side for axis in (0, 1))
    tab.locator(PICTURE).click(position={"x": x, "y": y})
    for number, image in enumerate(maps):
        wait_for_change(tab, MAP.format(number), image)
    tab.wait_for_timeout(500)
    tab.screenshot(path=tmp_path / "app.png")
    shown = source(tab, MAP.format(1))
    tab.locator(MAP.format(0)).first.click(position={"x": 5, "y": 5})
    wait_for_change(tab, MAP.format(1), shown)

    # Choose another model for the second side, and other layers.
    title = "soft_plus_pico.tiles"
    tab.locator("#side1 input").first.click()
    tab.locator("#side1 input").first.fill(title)
    tab.get_by_role("option", name=title, exact=True).click()
    tab.wait_for_selector("#side1 .maps h3:has-text('soft_plus')", timeout=60_000)
    assert "generated tiles" in tab.locator("#side1 .summary").first.inner_text()
    tab.get_by_label("first", exact=True).check()
    tab.wait_for_selector("#side0 .maps h3:has-text('Stage 3, layer 1')", timeout=60_000)
    assert not [path for path in served[1].rglob("*") if path.is_file()]


def test_another_file_ends_in_a_sentence(tab, served, tmp_path):
    (tmp_path / "text.png").write_text("hello")
    before = source(tab, PICTURE)
    give(tab, tmp_path / "text.png")
    tab.wait_for_selector("#said [role=alert]:has-text('not an image of a known format')", timeout=60_000)
    # What was shown belongs to another image.
    assert source(tab, PICTURE) != before
    tab.wait_for_function("!document.querySelector('#side0 .maps img') && !document.querySelector('#side1 .bars')")
    assert not [path for path in served[1].rglob("*") if path.is_file()]


def test_only_this_machine_is_served(served):
    port = int(served[0].rsplit(":", 1)[1].strip("/"))
    socket.create_connection(("127.0.0.1", port), timeout=2).close()
    # On Linux, 127.0.0.2 is this machine too, and a server for all addresses would answer.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=2)
