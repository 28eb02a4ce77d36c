"""A web page that compares two models on an image: predictions, and attention maps of the clicked token.

Images travel in messages between page and process and are never written to a file.
"""

import base64
import random
import threading
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from soft_vit.data import ShapeImages
from soft_vit.predict import TimmPredictor, app_html
from soft_vit.predict.app_look import DEPTHS, MAX_BYTES, Choice, Look, load_choice, look, open_picture

Place = tuple[float, float]

# Their weights ship with the package. Only the first was trained on a task that needs distant tokens.
DEFAULTS = ("soft_plus_pico.tiles", "soft_pico.shapes")
CENTRE = (0.5, 0.5)
PARTS = ("summary", "maps", "shares")
# Probing changes a model while it runs.
ONE_AT_A_TIME = threading.Lock()
STYLE, SCRIPT, PICTURE = (Path(__file__).with_name(n).read_text() for n in ("app.css", "app.js", "app_picture.html"))


@lru_cache(maxsize=4)
def _predictor(choice: Choice) -> TimmPredictor:
    return load_choice(choice)


@lru_cache(maxsize=6)
def _cached_look(choice: Choice, size: tuple[int, int], pixels: bytes, depth: str) -> Look:
    return look(_predictor(choice), Image.frombytes("RGB", size, pixels), depth)


def _look(choice: Choice, picture: Image.Image, depth: str) -> Look:
    with ONE_AT_A_TIME:
        return _cached_look(choice, picture.size, picture.tobytes(), depth)


def part(name: str, choice: Choice, picture: Image.Image | None, place: Place, depth: str) -> str:
    """Return one of the PARTS for a choice, empty without a picture. The summary is the error of weights, if any."""
    if picture is None:
        return ""
    try:
        found = _look(choice, picture, depth)
    except (ValueError, OSError) as error:
        return app_html.message(str(error), alert=True) if name == "summary" else ""
    makers = {
        "summary": partial(app_html.summary_html, choice),
        "maps": partial(app_html.maps_html, picture=picture, place=place),
        "shares": app_html.shares_html,
    }
    return makers[name](look=found)


def generated(scene: str) -> tuple[Image.Image, Place, str]:
    """Return a test image of the demo, the position of its shape or tile, and a sentence with its class."""
    samples = ShapeImages(1000, split="test", scene=scene)
    sample = samples[random.randrange(len(samples))]
    x0, y0, x1, y1 = (float(side) / samples.size for side in sample.box)
    said = {
        "shape": "Generated; the class is {}.",
        "tiles": "Generated; the cue (right half white) means the tile with its left colour, whose right half is {}.",
    }
    place = (x0 + x1) / 2, (y0 + y1) / 2
    return Image.fromarray(sample.image), place, said[scene].format(samples.classes[sample.label])


def build_page(choices: dict[str, Choice]) -> gr.Blocks:
    """Return the page, for models by their titles."""

    def show(picture: Image.Image, place: Place, said: str = "") -> tuple[Any, ...]:
        value = {"src": app_html.data_url(picture), "x": place[0], "y": place[1]}
        return value, picture, place, app_html.message(said)

    def take(event: gr.EventData) -> tuple[Any, ...]:
        try:
            picture = open_picture(base64.b64decode(event._data.get("data", "")), event._data["size"])
        except ValueError as error:
            # What was shown belongs to another image.
            value, *_ = show(Image.new("RGB", (1, 1), "grey"), CENTRE)
            return value, None, CENTRE, app_html.message(str(error), alert=True)
        return show(picture, CENTRE)

    def draw(scene: str) -> tuple[Any, ...]:
        return show(*generated(scene))

    def clicked(event: gr.EventData) -> Place:
        x, y = (min(max(float(event._data[axis]), 0.0), 1.0) for axis in "xy")
        return x, y

    def part_for(name: str, title: str, *rest: Any) -> str:
        return part(name, choices[title], *rest)

    # Gradio's styles for text would frame tables.
    html = partial(gr.HTML, apply_default_css=False)
    value, first, at, sentence = draw("tiles")
    with gr.Blocks(title="soft_vit: where a token looks", analytics_enabled=False, fill_width=True) as blocks:
        picture, place = gr.State(first), gr.State(at)
        html("<h1>Where a token looks</h1><p class='note'>Click the image: the maps show where that place looks.</p>")
        with gr.Row():
            with gr.Column(scale=2, min_width=260, elem_id="picture"):
                given = html(value, html_template=PICTURE, js_on_load=SCRIPT, most=MAX_BYTES)
                said = html(sentence, elem_id="said")
                with gr.Row():
                    buttons = {kind: gr.Button(f"Draw {kind}", size="sm", min_width=80) for kind in ("tiles", "shape")}
                depth = gr.Radio(list(DEPTHS), value="last", label="Layer of each stage")
            sides = []
            own = [title for title, choice in choices.items() if not choice.pretrained]
            for number, title in enumerate([*own, *DEFAULTS][:2]):
                with gr.Column(scale=3, min_width=320, elem_id=f"side{number}"):
                    model = gr.Dropdown(list(choices), value=title, label=("Model", "Compared with")[number])
                    parts = [html(elem_classes=name, js_on_load=SCRIPT, min_height=20) for name in PARTS]
                    sides.append((model, parts))

        outputs = [given, picture, place, said]
        changes = [given.upload(take, None, outputs)]
        changes += [button.click(partial(draw, kind), None, outputs) for kind, button in buttons.items()]
        pictures = [given, *(parts[1] for _, parts in sides)]
        clicks = [part.select(clicked, None, place, show_progress="hidden") for part in pictures]
        for model, parts in sides:
            inputs = [model, picture, place, depth]
            starts = [*(change.then for change in changes), model.input, depth.input, blocks.load]
            for name, shown in zip(PARTS, parts, strict=True):
                for start in starts:
                    start(partial(part_for, name), inputs, shown)
            for click in clicks:
                click.then(partial(part_for, "maps"), inputs, parts[1], show_progress="hidden")
    return blocks


def theme() -> gr.Theme:
    """Return a theme with system fonts, so that no font is downloaded."""
    return gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
