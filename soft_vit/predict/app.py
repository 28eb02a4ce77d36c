"""A web page on which a person gives an image, clicks on it, and sees where each attention of two models looks.

Images travel within the messages between page and process, so none of them becomes a file.
"""

import base64
import random
import threading
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import gradio as gr
from PIL import Image

from soft_vit.data import ShapeImages
from soft_vit.predict import TimmPredictor, app_html
from soft_vit.predict.app_look import DEPTHS, MOST_BYTES, Choice, Look, load_choice, look, open_picture

Place = tuple[float, float]

# What can be seen without a download: an attention that has learned to look far, and one that has not.
DEFAULTS = ("soft_plus_pico.tiles", "soft_pico.shapes")
CENTRE = (0.5, 0.5)
PARTS = ("summary", "maps", "shares", "spectra")
# A model is prepared for watching while it runs.
ONE_AT_A_TIME = threading.Lock()

PICTURE = """
<div class='square'>
  <img src='${value.src}' alt='The image; click on a place in it'>
  <span class='mark' style='left: ${100 * value.x}%; top: ${100 * value.y}%'></span>
</div>
<button type='button' class='file'>Choose an image</button> <span class='note'>or drop one above</span>
<input type='file' accept='image/*' hidden>
"""

# A click on a picture, of which there are many, is a place on all of them.
CLICKS = """
element.addEventListener('click', event => {
  if (event.target.tagName !== 'IMG') return;
  const box = event.target.getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
  document.querySelectorAll('.mark').forEach(mark => {
    mark.style.left = `${100 * x}%`;
    mark.style.top = `${100 * y}%`;
  });
  trigger('select', {x, y});
});
"""

FILES = """
const send = file => {
  if (!file) return;
  if (file.size > props.most) return trigger('upload', {size: file.size});
  const reader = new FileReader();
  reader.onload = () => trigger('upload', {size: file.size, data: reader.result.split(',')[1] || ''});
  reader.readAsDataURL(file);
};
element.addEventListener('click', event => {
  if (event.target.tagName === 'BUTTON') element.querySelector('input').click();
});
element.addEventListener('change', event => {
  send(event.target.files[0]);
  event.target.value = '';
});
element.addEventListener('dragover', event => event.preventDefault());
element.addEventListener('drop', event => {
  event.preventDefault();
  send(event.dataTransfer.files[0]);
});
"""

STYLE = """
.gradio-container h1 { font-size: 1.4rem; font-weight: 600; }
.note, .alert, section table { font-size: 0.85rem; line-height: 1.35; }
.note, figcaption small { color: inherit; opacity: 0.75; }
.alert { border-left: 4px solid var(--attention); padding: 0.1rem 0.6rem; }
.gradio-container { --attention: #d97706; --local: #64748b; }
.square { position: relative; aspect-ratio: 1; margin-bottom: 0.5rem; }
.square img { width: 100%; height: 100%; cursor: crosshair; border-radius: 6px; }
.mark { position: absolute; width: 18px; height: 18px; margin: -9px; border: 2px solid lime; border-radius: 50%;
  box-shadow: 0 0 0 1px #000; pointer-events: none; }
.file { padding: 0.3rem 0.8rem; border-radius: 6px; background: var(--button-secondary-background-fill);
  color: var(--button-secondary-text-color); }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(82px, 1fr)); gap: 8px; }
.panels figure { margin: 0; min-width: 0; }
.panels img, .panels svg { display: block; width: 100%; border-radius: 4px; }
.panels img { cursor: crosshair; }
.panels svg { background: var(--background-fill-secondary); }
.panels svg * { fill: none; stroke: currentColor; stroke-width: 1; }
.panels svg polyline { stroke-width: 2; }
.panels svg .equal { stroke-dasharray: 2 3; opacity: 0.6; }
figcaption { font-size: 0.8rem; line-height: 1.3; }
figcaption small { display: block; white-space: nowrap; }
section h3 { margin: 0.8rem 0 0.2rem; font-size: 1rem; font-weight: 600; }
section table { width: 100%; }
section th { text-align: left; font-weight: 400; padding-right: 0.6rem; white-space: nowrap; }
section td { white-space: nowrap; text-align: right; }
section td.bars { width: 99%; min-width: 4rem; padding-right: 0.6rem; }
.bars i { display: block; height: 6px; min-width: 1px; margin: 1px 0; background: var(--attention); }
.bars i + i { background: var(--local); }
h3 b { color: var(--attention); }
h3 b + b { color: var(--local); }
@media (min-width: 1000px) { #picture { position: sticky; top: 12px; align-self: flex-start; } }
"""


@lru_cache(maxsize=4)
def _predictor(choice: Choice) -> TimmPredictor:
    return load_choice(choice)


@lru_cache(maxsize=6)
def _cached_look(choice: Choice, size: tuple[int, int], pixels: bytes, depth: str) -> Look:
    return look(_predictor(choice), Image.frombytes("RGB", size, pixels), depth)


def _look(choice: Choice, picture: Image.Image, depth: str) -> Look:
    with ONE_AT_A_TIME:
        return _cached_look(choice, picture.size, picture.tobytes(), depth)


def answer(choice: Choice, picture: Image.Image, place: Place, depth: str) -> tuple[str, str, str]:
    """Summary, maps and shares of a choice; a summary that tells the mistake, for weights that cannot be used."""
    try:
        found = _look(choice, picture, depth)
    except (ValueError, OSError) as error:
        return app_html.message(str(error), alert=True), "", ""
    summary = app_html.describe(choice, found.image_size, found.notes) + app_html.prediction_html(found.prediction)
    return summary, app_html.maps_html(found, picture, place), app_html.shares_html(found)


def spectra(choice: Choice, picture: Image.Image, depth: str) -> str:
    try:
        return app_html.spectra_html(_look(choice, picture, depth))
    except (ValueError, OSError):
        # The summary says why.
        return ""


def generated(scene: str) -> tuple[Image.Image, Place, str]:
    """One of the demo's test images, the place of what is meant in it, and its name."""
    samples = ShapeImages(1000, split="test", scene=scene)
    sample = samples[random.randrange(len(samples))]
    x0, y0, x1, y1 = (float(side) / samples.size for side in sample.box)
    told = {
        "shape": "Generated; the class is {}.",
        "tiles": "Generated; the cue (right half white) means the tile with its left colour, whose right half is {}.",
    }
    place = (x0 + x1) / 2, (y0 + y1) / 2
    return Image.fromarray(sample.image), place, told[scene].format(samples.classes[sample.label])


def build_page(choices: dict[str, Choice]) -> gr.Blocks:
    """The page, for models by their titles."""

    def show(picture: Image.Image, place: Place, said: str = "") -> Sequence[Any]:
        return {"src": app_html.data_url(picture), "x": place[0], "y": place[1]}, picture, place, app_html.message(said)

    def take(event: gr.EventData) -> Sequence[Any]:
        try:
            picture = open_picture(base64.b64decode(event._data.get("data", "")), event._data["size"])
        except ValueError as error:
            return gr.skip(), gr.skip(), gr.skip(), app_html.message(str(error), alert=True)
        return show(picture, CENTRE)

    def draw(scene: str) -> Sequence[Any]:
        return show(*generated(scene))

    def clicked(event: gr.EventData) -> Place:
        x, y = (min(max(float(event._data[axis]), 0.0), 1.0) for axis in "xy")
        return x, y

    def answer_for(title: str, *rest: Any) -> tuple[str, str, str]:
        return answer(choices[title], *rest)

    def maps_for(title: str, *rest: Any) -> str:
        return answer_for(title, *rest)[1]

    def spectra_for(title: str, picture: Image.Image, place: Place, depth: str) -> str:
        return spectra(choices[title], picture, depth)

    # Without Gradio's styles for text, which frame tables.
    html = partial(gr.HTML, apply_default_css=False)
    value, first, at, sentence = draw("tiles")
    with gr.Blocks(title="soft_vit: where a token looks", analytics_enabled=False, fill_width=True) as blocks:
        picture, place = gr.State(first), gr.State(at)
        html("<h1>Where a token looks</h1>")
        with gr.Row():
            with gr.Column(scale=2, min_width=260, elem_id="picture"):
                given = html(value, html_template=PICTURE, js_on_load=CLICKS + FILES, most=MOST_BYTES)
                said = html(sentence, elem_id="said")
                with gr.Row():
                    buttons = {kind: gr.Button(f"Draw {kind}", size="sm", min_width=80) for kind in ("tiles", "shape")}
                depth = gr.Radio(list(DEPTHS), value="last", label="Layer of each stage")
            sides = []
            own = [title for title, choice in choices.items() if choice.checkpoint]
            for number, title in enumerate([*own, *DEFAULTS][:2]):
                with gr.Column(scale=3, min_width=320, elem_id=f"side{number}"):
                    model = gr.Dropdown(list(choices), value=title, label="Model" if number == 0 else "Beside it")
                    parts = [html(elem_classes=name, js_on_load=CLICKS, min_height=20) for name in PARTS]
                    sides.append((model, parts))

        outputs = [given, picture, place, said]
        changes = [given.upload(take, None, outputs)]
        changes += [button.click(partial(draw, kind), None, outputs) for kind, button in buttons.items()]
        clicks = [
            part.select(clicked, None, place, show_progress="hidden") for part in [given, *(s[1][1] for s in sides)]
        ]
        for model, parts in sides:
            inputs = [model, picture, place, depth]
            for click in clicks:
                click.then(maps_for, inputs, parts[1], show_progress="hidden")
            for start in [*(change.then for change in changes), model.input, depth.input, blocks.load]:
                start(answer_for, inputs, parts[:3]).then(spectra_for, inputs, parts[3])
    return blocks


def theme() -> gr.Theme:
    """Fonts of the machine itself: none is downloaded."""
    return gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
