// The start page's demo: soft_plus_pico answers for a board of tiles.
import { Demo, indices, make, makeBars, makeButton, makeCanvas, makeMap, mark, paintRow, percent, showBars, start } from "./demo.js";

// As in soft_vit/data/demo/shapes.py.
const NAMES = ["red", "green", "blue", "yellow", "cyan", "magenta"];
const COLORS = [[1, 0.1, 0.1], [0.1, 0.9, 0.1], [0.15, 0.2, 1], [1, 0.95, 0.05], [0.05, 0.95, 0.95], [1, 0.1, 0.95]];
const [SIZE, CELLS, TILES] = [64, 4, 3];
const CELL = SIZE / CELLS;
const [MEAN, STD] = [0.5, 64 / 255];

const css = (color) => `rgb(${color.map((value) => Math.round(255 * value)).join(" ")})`;
const between = (low, high) => low + Math.random() * (high - low);
const dull = () => css([between(0.2, 0.8), between(0.2, 0.8), between(0.2, 0.8)]);
const shuffled = (values) => values.map((value) => [Math.random(), value]).sort((a, b) => a[0] - b[0]).map(([, value]) => value);

/** Three tiles whose left colours differ, and so do the right ones, and a cue with the left colour of the first. */
function drawBoard() {
  const [lefts, rights] = [shuffled(indices(6)), shuffled(indices(6))];
  const places = shuffled(indices(CELLS * CELLS));
  const tiles = indices(TILES).map((i) => ({ place: places[i], left: lefts[i], right: rights[i] }));
  return { tiles, cue: { place: places[TILES], left: tiles[0].left }, ground: drawGround() };
}

/** A gradient of dull colours with a line, blobs and noise, which mean nothing. */
function drawGround() {
  const canvas = makeCanvas(SIZE);
  const pen = canvas.getContext("2d");
  const gradient = pen.createLinearGradient(0, 0, between(0, SIZE), SIZE);
  gradient.addColorStop(0, dull());
  gradient.addColorStop(1, dull());
  pen.fillStyle = gradient;
  pen.fillRect(0, 0, SIZE, SIZE);
  pen.strokeStyle = dull();
  pen.lineWidth = between(1, 3);
  pen.beginPath();
  pen.moveTo(between(0, SIZE), 0);
  pen.lineTo(between(0, SIZE), SIZE);
  pen.stroke();
  for (let i = 0; i < 3; i++) {
    pen.fillStyle = dull();
    pen.beginPath();
    pen.ellipse(between(0, SIZE), between(0, SIZE), between(1, 5), between(1, 5), 0, 0, 7);
    pen.fill();
  }
  return { canvas, noise: Float32Array.from({ length: 3 * SIZE * SIZE }, () => between(-8, 8)) };
}

const corner = (place) => [(place % CELLS) * CELL, Math.floor(place / CELLS) * CELL];

/** Paint the board as the model sees it, and return the model's input [3, 64, 64]. */
function paint(board, canvas) {
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(board.ground.canvas, 0, 0);
  for (const { place, left, right } of [...board.tiles, board.cue]) {
    const [x, y] = corner(place);
    pen.fillStyle = css(COLORS[left]);
    pen.fillRect(x, y, CELL / 2, CELL);
    pen.fillStyle = right === undefined ? "#fff" : css(COLORS[right]);
    pen.fillRect(x + CELL / 2, y, CELL / 2, CELL);
  }
  const image = pen.getImageData(0, 0, SIZE, SIZE);
  const input = new Float32Array(3 * SIZE * SIZE);
  for (let pixel = 0; pixel < SIZE * SIZE; pixel++) {
    for (let channel = 0; channel < 3; channel++) {
      const at = 4 * pixel + channel;
      // The array of an image rounds and limits its values.
      image.data[at] += board.ground.noise[3 * pixel + channel];
      input[channel * SIZE * SIZE + pixel] = (image.data[at] / 255 - MEAN) / STD;
    }
  }
  pen.putImageData(image, 0, 0);
  return input;
}

/** The mean row of the tokens of a cell in a matrix [N, N]. */
function rowOf(matrix, place) {
  const side = Math.sqrt(Math.sqrt(matrix.length));
  const [count, share] = [side * side, side / CELLS];
  const row = new Float32Array(count);
  for (let token = 0; token < count; token++) {
    if (cellOf(token, side) !== place) continue;
    for (let key = 0; key < count; key++) row[key] += matrix[token * count + key] / share ** 2;
  }
  return row;
}

function cellOf(token, side) {
  const share = side / CELLS;
  return Math.floor(Math.floor(token / side) / share) * CELLS + Math.floor((token % side) / share);
}

/** The share of a row's weight, by magnitude, that lies on a cell. */
function shareOn(row, place) {
  const side = Math.sqrt(row.length);
  let [inside, all] = [0, 0];
  row.forEach((weight, token) => {
    all += Math.abs(weight);
    if (cellOf(token, side) === place) inside += Math.abs(weight);
  });
  return inside / all;
}

class TilesDemo extends Demo {
  constructor(root) {
    super(root, "tiles", [1, 3, SIZE, SIZE]);
    this.canvas = makeCanvas(SIZE);
    this.square = make("div", "demo-square");
    this.cells = make("div", "demo-cells");
    this.square.append(this.canvas, this.cells);
    this.maps = ["Stage 1", "Stage 2"].map((name, i) => {
      return { name, ...makeMap(16 >> i, make("span", "demo-frame"), make("span", "demo-frame demo-cue")) };
    });
    this.answers = ["With attention", "Attention off"].map((title) => makeBars(title, NAMES, COLORS.map(css)));
    const first = make("div", "demo-board");
    first.append(this.square, makeButton("md-button demo-again", "New board", () => this.change(drawBoard())));
    const results = make("div", "demo-results");
    results.append(...this.answers, ...this.maps.map((map) => map.figure));
    root.replaceChildren(this.said, first, results, this.time);
    this.change(drawBoard());
  }

  /** Show a board, and what the model says of it. */
  change(board) {
    this.board = board;
    this.target = board.tiles.find((tile) => tile.left === board.cue.left);
    this.said.replaceChildren(
      "The cue, whose right half is white, asks: which colour shares a tile with ",
      this.swatch(board.cue.left), " on the left? Answer: ", this.swatch(this.target.right), ". ",
      make("span", "demo-hint", "Click a colour to change it, or an empty place to move the cue there."),
    );
    this.showCells();
    return this.answer({ input: paint(board, this.canvas), board, target: this.target });
  }

  swatch(color) {
    const name = make("strong", "demo-swatch", NAMES[color]);
    name.style.setProperty("--color", css(COLORS[color]));
    return name;
  }

  showCells() {
    const held = this.cells.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    this.cells.replaceChildren(...indices(CELLS * CELLS).flatMap((place) => {
      const tile = this.board.tiles.find((each) => each.place === place);
      const where = `row ${Math.floor(place / CELLS) + 1}, column ${(place % CELLS) + 1}`;
      if (tile) return ["left", "right"].map((side) => this.button(place, side, `${side} of the tile in ${where}: ${NAMES[tile[side]]}`, () => this.recolor(tile, side)));
      if (place === this.board.cue.place) {
        return [this.button(place, "ask", `the cue in ${where} asks for ${NAMES[this.board.cue.left]}`, () => this.ask())];
      }
      return [this.button(place, "whole", `move the cue to ${where}`, () => this.change({ ...this.board, cue: { ...this.board.cue, place } }))];
    }));
    if (held) this.cells.querySelector(`[data-key="${held}"]`)?.focus();
  }

  button(place, side, label, act) {
    const button = makeButton(`demo-${side}`, side === "ask" ? "?" : "", act);
    button.title = button.ariaLabel = label;
    button.dataset.key = `${place} ${side}`;
    const column = 2 * (place % CELLS) + (side === "right" ? 2 : 1);
    const span = side === "left" || side === "right" ? 1 : 2;
    button.style.gridArea = `${Math.floor(place / CELLS) + 1} / ${column} / auto / span ${span}`;
    return button;
  }

  /** Give a half of a tile the next colour that no other tile has there. */
  recolor(tile, side) {
    const others = this.board.tiles.filter((each) => each !== tile).map((each) => each[side]);
    let color = tile[side];
    do color = (color + 1) % NAMES.length;
    while (others.includes(color));
    const tiles = this.board.tiles.map((each) => (each === tile ? { ...tile, [side]: color } : each));
    const cue = side === "left" && tile === this.target ? { ...this.board.cue, left: color } : this.board.cue;
    return this.change({ ...this.board, tiles, cue });
  }

  /** Let the cue ask for the next tile. */
  ask() {
    const next = this.board.tiles[(this.board.tiles.indexOf(this.target) + 1) % TILES];
    return this.change({ ...this.board, cue: { ...this.board.cue, left: next.left } });
  }

  show({ board, target }, { outputs }) {
    ["logits", "without"].forEach((name, i) => mark(this.answers[i], showBars(this.answers[i], outputs[name]).best === target.right));
    this.maps.forEach((map, i) => {
      const row = rowOf(outputs[`stage${i + 1}`], target.place);
      paintRow(map.canvas, row);
      [target.place, board.cue.place].forEach((place, j) => {
        const [x, y] = corner(place);
        Object.assign(map.frames[j].style, { left: `${(100 * x) / SIZE}%`, top: `${(100 * y) / SIZE}%` });
      });
      const share = percent(shareOn(row, board.cue.place));
      map.caption.textContent = `${map.name}: where the asked tile (green frame) looks; ${share} lies on the cue.`;
    });
  }
}

start("tiles-demo", TilesDemo);
