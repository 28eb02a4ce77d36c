"""HTML of a `Look`: prediction, maps and shares, with pictures as data URLs."""

import base64
import io
from html import escape

import numpy as np
from PIL import Image

from soft_vit.predict.app_look import Choice, LayerLook, Look
from soft_vit.probe.view import draw_weights, largest_weight
from soft_vit.weights import RECORDED_WEIGHTS

PANEL_SIDE = 168


def data_url(image: Image.Image) -> str:
    """Return a picture as a data URL of a PNG."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def message(text: str, alert: bool = False) -> str:
    return f"<p class='{'alert' if alert else 'note'}'{' role=alert' * alert}>{escape(text)}</p>" if text else ""


def summary_html(choice: Choice, look: Look) -> str:
    """Describe the weights in a sentence or two, above the prediction."""
    rows = zip(look.prediction.names, look.prediction.scores, strict=True)
    bars = _bars("Prediction", [(name, [score], _percent(score)) for name, score in rows])
    text = f"It sees {look.image_size[0]} x {look.image_size[1]} pixels."
    if choice.swapped not in (None, "softmax"):
        text = f"{choice.swapped} instead of softmax, not trained since. {text}"
        return message(text, alert=True) + bars
    if choice.checkpoint:
        text = f"Weights of {choice.checkpoint}. {text} {' '.join(look.notes)}"
    elif choice.pretrained:
        entry = RECORDED_WEIGHTS.get(choice.name)
        figures = [f"{m.name} {m.value:g} % on {m.dataset}" for m in (entry.metrics if entry else ())]
        text = f"{'; '.join(figures) or 'Released weights'}. {text}"
    else:
        return message(f"Random weights: it predicts nothing, and its maps are meaningless. {text}", alert=True)
    return message(text) + bars


def shares_html(look: Look) -> str:
    """Draw two bars per layer: the attention, and the rest of the output (local branch and biases)."""
    rows = []
    for layer in look.layers:
        found = layer.probe
        text = f"{_percent(found.share)}{' (dead)' * found.is_dead}, {_percent(found.rest)}"
        rows.append((f"{layer.stage}.{layer.layer} {found.attention}", [found.share, found.rest], text))
    return _bars(
        "Share of <b>attention</b> and <b>local branch</b>",
        rows,
        "Norm relative to the output of the layer; rows are stage.layer. The local branch is a convolution, if the "
        "attention contains one, and biases. The sum exceeds 100 % where the two cancel.",
    )


def maps_html(look: Look, picture: Image.Image, place: tuple[float, float]) -> str:
    """Draw the attention of the token at a place in each stage: the mean over heads, and each head."""
    return "".join(_stage_html(layer, picture, place) for layer in look.shown)


def _stage_html(layer: LayerLook, picture: Image.Image, place: tuple[float, float]) -> str:
    title = f"Stage {layer.stage}, layer {layer.layer}: {layer.probe.attention}"
    if layer.matrix is None:
        why = "No matrix is shown: the attention is not linear in its values, has windows, or the image is not square."
        return _section(title, message(why))
    weights, side = layer.row(place), layer.side
    small = picture.resize((PANEL_SIDE, PANEL_SIDE))
    panels = [("mean", weights.mean(0))] if len(weights) > 1 else []
    panels += [(f"head {head}", values) for head, values in enumerate(weights, 1)]
    # All heads share a scale, which ends at a tenth of an equal share or above: a dead head is dark.
    figures, scale = [], np.append(weights, 0.1 / weights[0].size)
    for name, values in panels:
        panel = draw_weights(values, small, layer.cell(place), (side, side), scale)
        image = f"<img src='{data_url(panel)}' alt='{name}'>"
        caption = f"{name} <small>{largest_weight(values):.2g}</small>"
        figures.append(f"<figure>{image}<figcaption>{caption}</figcaption></figure>")
    note = message(f"{side} x {side} tokens; below each name, its largest weight")
    return _section(title, f"{note}<div class='panels'>{''.join(figures)}</div>")


def _section(title: str, content: str) -> str:
    return f"<section><h3>{title}</h3>{content}</section>"


def _bars(title: str, rows: list[tuple[str, list[float], str]], note: str = "") -> str:
    cells = ""
    for name, values, text in rows:
        bars = "".join(f"<i style='width: {100 * min(value, 1):.1f}%'></i>" for value in values)
        cells += f"<tr><th scope='row'>{escape(name)}</th><td class='bars'>{bars}</td><td>{escape(text)}</td></tr>"
    return _section(title, f"{message(note)}<table>{cells}</table>")


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
