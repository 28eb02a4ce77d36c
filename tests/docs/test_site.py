"""The site in a browser: pages open without errors, tables sort and filter, pages fit the width of a phone.

Needs the extra `docs`, playwright, and a Chromium: the system's, or playwright's own.
"""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from documents import ROOT

from docs.generate.demo import Demo, FashionDemo, TilesDemo

pytestmark = [pytest.mark.slow, pytest.mark.browser]

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(folder)], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def address(site) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def page(chromium):
    page = chromium.new_page()
    # Busy machines need long.
    page.set_default_timeout(300_000)
    yield page
    page.close()


def test_pages_open_without_errors_and_without_the_network(site, address, page):
    errors, elsewhere, wide = [], [], []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(address) else elsewhere.append(request.url))
    page.set_viewport_size(PHONE)
    for path in sorted(site.rglob("index.html")):
        name = path.parent.relative_to(site).as_posix()
        page.emulate_media(color_scheme="light")
        assert page.goto(f"{address}/{name}/").ok, name
        page.emulate_media(color_scheme="dark")
        # Pages follow the colour scheme of the system.
        page.wait_for_function("document.body.dataset.mdColorScheme === 'slate'")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(name)
    assert (errors, elsewhere, wide) == ([], [], [])


# Waits for the model's result for what is shown.
READY = """() => {
    const demo = document.querySelector(".demo")?.demo;
    return demo?.result && demo.result.input === demo.question.input;
}"""
RESULT = """() => {
    const {input, outputs} = document.querySelector(".demo").demo.result;
    return [[...input], Object.fromEntries(Object.entries(outputs).map(([name, data]) => [name, [...data]]))];
}"""


def open_demo(page, url: str, size: dict[str, int]) -> None:
    if not shutil.which("npm"):
        pytest.skip("the demo's runtime comes from npm")
    page.set_viewport_size(size)
    page.goto(url)
    page.locator(".demo").scroll_into_view_if_needed()
    page.wait_for_function(READY)


@torch.no_grad()
def check_outputs(page, model: Demo) -> None:
    """The outputs in the page are those of the model in float64, on the input in the page."""
    data, outputs = page.evaluate(RESULT)
    expected = model(torch.tensor(data, dtype=torch.float64).reshape(1, *model.input_size))
    for name, tensor in zip(model.outputs, expected, strict=True):
        given = torch.tensor(outputs[name], dtype=torch.float64).reshape(tensor.shape)
        # Weights of attention are below 1.
        assert (given - tensor).abs().max() < 1e-5 * max(1, tensor.abs().max()), name


@pytest.mark.parametrize("size", [PHONE, DESK])
def test_demo_answers_as_the_model(address, page, size):
    open_demo(page, f"{address}/", size)
    model, marks = TilesDemo().eval().double(), []
    for turn in range(12):
        page.wait_for_function(READY)
        check_outputs(page, model)
        marks.append([mark.get_attribute("data-right") for mark in page.locator(".demo-answer").all()])
        # Another colour, another tile to ask for, another place of the cue, or another board.
        page.locator((".demo-right", ".demo-left", ".demo-ask", ".demo-whole", ".demo-again")[turn % 5]).first.click()
    right, without = (column.count("true") for column in zip(*marks, strict=True))
    assert right >= 10
    assert without <= 7


@pytest.mark.parametrize("size", [PHONE, DESK])
def test_demo_names_chosen_and_drawn_items(address, page, size):
    hosts = set()
    page.on("request", lambda request: hosts.add(request.url[: len(address)]))
    open_demo(page, f"{address}/real/", size)
    model, names = FashionDemo().eval().double(), page.locator(".demo-bar span").all_inner_texts()
    assert names == list(model.model.pretrained_cfg["label_names"])
    # Bags, and a shirt that it calls a T-shirt.
    for item, answer, mark in ((8, 8, "true"), (18, 8, "true"), (6, 0, "false")):
        page.locator(".demo-item").nth(item).click()
        page.wait_for_function("document.querySelector('.demo-item[aria-pressed=true]') === document.activeElement")
        page.wait_for_function(READY)
        assert page.locator(".demo-best span").inner_text() == names[answer]
        assert page.locator(".demo-answer").get_attribute("data-right") == mark
    check_outputs(page, model)
    # Two legs.
    page.locator(".demo-again").first.click()
    box = page.locator(".demo-pad").bounding_box()
    for offset in (-0.14, -0.1, -0.06, 0.06, 0.1, 0.14):
        page.mouse.move(box["x"] + box["width"] * (0.5 + offset), box["y"] + box["height"] * 0.1)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * (0.5 + 1.4 * offset), box["y"] + box["height"] * 0.9)
        page.mouse.up()
    page.wait_for_function(READY)
    check_outputs(page, model)
    assert page.locator(".demo-best span").inner_text() == "Trouser"
    shares = page.locator(".demo-bar i").evaluate_all("bars => bars.map(bar => +bar.style.getPropertyValue('--share'))")
    assert sum(shares) == pytest.approx(1)
    assert hosts == {address}


def test_lengths_from_which_something_wins_sort_as_numbers(address, page):
    page.set_viewport_size(DESK)
    page.goto(f"{address}/kinds/")
    header = page.get_by_role("button", name="N, inference")
    header.click()
    index = header.evaluate("button => button.closest('th').cellIndex")
    cells = page.locator(f"table >> nth=0 >> tbody td:nth-child({index + 1})").all_inner_texts()
    words = {"always": 0, "never": 1e9, "": 1e10}
    lengths = [words[first] if first in words else float(first) for first in (cell.split(" ")[0] for cell in cells)]
    assert lengths == sorted(lengths)
    assert {0, 1e9} < set(lengths)


def test_zoo_sorts_and_filters(address, page):
    page.set_viewport_size(DESK)
    page.goto(f"{address}/zoo_table/")
    names = [name.strip(" ↕↑↓") for name in page.locator("table th").all_inner_texts()]

    def column(name: str) -> list[str]:
        return page.locator(f"table tbody tr:visible td:nth-child({names.index(name) + 1})").all_inner_texts()

    everything = column("weights")
    page.get_by_role("button", name="params (M)").click()
    sizes = [float(size) for size in column("params (M)")]
    assert sizes == sorted(sizes)
    page.get_by_role("button", name="top-1 %").click()
    page.get_by_role("button", name="top-1 %").click()
    top1 = [float(cell) for cell in column("top-1 %") if cell]
    assert top1 == sorted(top1, reverse=True)
    assert column("top-1 %")[len(top1) :] == [""] * (len(everything) - len(top1))
    header = page.locator("table th").first
    top = header.bounding_box()["y"]
    assert page.locator(".md-typeset__scrollwrap").evaluate("frame => (frame.scrollTop = 50) && frame.scrollTop") == 50
    assert abs(header.bounding_box()["y"] - top) < 2
    box = page.get_by_role("searchbox", name=f"Filter {len(everything)} rows")
    box.fill("softmax-free mlla")
    assert set(column("family")) == {"MILA"}
    assert set(column("softmax")) == {"softmax-free"}
    box.fill("")
    assert sorted(column("weights")) == sorted(everything)
