// The demo of real pictures: soft_plus_pico names items of Fashion-MNIST and what the reader draws.
import { Demo, indices, make, makeBars, makeButton, makeCanvas, makeMap, mark, paintRow, percent, showBars, start } from "./demo.js";

// As in the model's pretrained_cfg.
const NAMES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"];
// Items of a class are a column of the picture.
const [SIDE, ROWS, PEN] = [28, 2, 2.5];
// Tokens of the first stage in a row.
const TOKENS = 14;
const OPACITY = 0.6;
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const PICTURE = new URL("../demo/fashion.png", import.meta.url).href;

/** The row and the column of a test item. */
const placeOf = (item) => [Math.floor(item / NAMES.length), item % NAMES.length];
const inside = (value) => Math.min(Math.max(value, 0.02), 0.98);

class FashionDemo extends Demo {
  constructor(root) {
    super(root, "fashion", [1, 1, SIDE, SIDE]);
    // Where the reader points, from 0 to 1 in x and y.
    this.place = [0.52, 0.52];
    this.picture = new Image();
    this.picture.src = PICTURE;
    this.board = makeMap(SIDE);
    this.board.square.classList.add("demo-pad");
    this.pen = this.board.canvas.getContext("2d", { willReadFrequently: true });
    Object.assign(this.pen, { lineWidth: PEN, lineCap: "round" });
    this.maps = indices(2).map(() => makeMap(SIDE, make("span", "demo-frame")));
    this.bars = makeBars("Answer", NAMES, NAMES.map(() => "var(--md-typeset-a-color)"));
    this.items = make("div", "demo-items");
    this.items.append(...indices(ROWS * NAMES.length).map((item) => this.itemButton(item)));
    this.listen();
    const first = make("div", "demo-board");
    this.eraser = makeButton("md-button demo-again", "Erase", () => this.eraser.ariaPressed = this.eraser.ariaPressed !== "true");
    this.eraser.ariaPressed = false;
    first.append(this.board.square, makeButton("md-button demo-again", "Clear", () => this.clear()), this.eraser);
    const results = make("div", "demo-results");
    results.append(this.bars, ...this.maps.map((map) => map.figure));
    root.replaceChildren(this.items, this.said, first, results, this.time);
    this.prepared = this.choose(7);
  }

  itemButton(item) {
    const [row, column] = placeOf(item);
    const button = makeButton("demo-item", "", () => this.choose(item));
    button.title = button.ariaLabel = `${NAMES[column]}, test item ${row + 1}`;
    button.style.background = `url(${PICTURE}) ${(100 * column) / (NAMES.length - 1)}% ${(100 * row) / (ROWS - 1)}% / 1000% 200%`;
    return button;
  }

  async choose(item) {
    await this.picture.decode();
    const [row, column] = placeOf(item);
    this.pen.drawImage(this.picture, -SIDE * column, -SIDE * row);
    return this.look(item);
  }

  clear() {
    this.pen.fillRect(0, 0, SIDE, SIDE);
    return this.look();
  }

  /** Ask what is on the board. item: the number of an unchanged test item. */
  look(item) {
    this.item = item;
    [...this.items.children].forEach((button, i) => button.ariaPressed = i === item);
    const { data } = this.pen.getImageData(0, 0, SIDE, SIDE);
    const input = Float32Array.from({ length: SIDE * SIDE }, (_, i) => data[4 * i] / 255);
    return this.answer({ input, item, place: this.place });
  }

  /** Draw on the board, point on board and maps, and move the item and the place by keys. */
  listen() {
    const pad = this.board.square;
    let last;
    for (const square of [pad, ...this.maps.map((map) => map.square)]) {
      square.tabIndex = 0;
      square.role = "application";
      square.ariaLabel = square === pad ? "Board to draw on; arrow keys move the item" : "Attention of a place; arrow keys move the place";
      const act = (event) => {
        const box = square.getBoundingClientRect();
        const at = [event.clientX - box.left, event.clientY - box.top].map((value) => value / box.width);
        this.place = at.map(inside);
        if (event.type === "pointerdown") {
          last = at;
          square.setPointerCapture(event.pointerId);
        }
        const drawn = square === pad && event.buttons === 1;
        if (drawn) this.draw(last, at);
        last = at;
        this.look(drawn ? undefined : this.item);
      };
      square.addEventListener("pointerdown", act);
      square.addEventListener("pointermove", act);
      square.addEventListener("keydown", (event) => {
        const step = STEPS[event.key];
        if (!step) return;
        event.preventDefault();
        if (square === pad) this.move(step);
        else this.place = this.place.map((value, i) => inside(value + step[i] / TOKENS));
        this.look(square === pad ? undefined : this.item);
      });
    }
  }

  draw(from, to) {
    this.pen.strokeStyle = this.eraser.ariaPressed === "true" ? "#000" : "#fff";
    this.pen.beginPath();
    this.pen.moveTo(...from.map((value) => SIDE * value));
    this.pen.lineTo(...to.map((value) => SIDE * value));
    this.pen.stroke();
  }

  move([x, y]) {
    const image = this.pen.getImageData(0, 0, SIDE, SIDE);
    this.pen.fillRect(0, 0, SIDE, SIDE);
    this.pen.putImageData(image, x, y);
  }

  show({ item, place }, { outputs }) {
    const label = item === undefined ? undefined : placeOf(item)[1];
    const { shares, best } = showBars(this.bars, outputs.logits);
    mark(this.bars, label === undefined ? label : label === best);
    const words = make("span", "");
    words.append(
      "The model says ", make("strong", "", NAMES[best]), ` with ${percent(shares[best])}. `,
      label === undefined ? "" : `The label says ${NAMES[label]}. `,
      "Choose an item, or draw on the board. Point at a place to see where it looks.",
    );
    // Screen readers say what changes.
    if (words.textContent !== this.said.textContent) this.said.replaceChildren(words);
    this.maps.forEach((map, i) => {
      const matrix = outputs[`stage${i + 1}`];
      const count = Math.sqrt(matrix.length);
      const side = Math.sqrt(count);
      const [x, y] = place.map((value) => Math.floor(side * value));
      const heat = makeCanvas(side);
      paintRow(heat, matrix.slice((y * side + x) * count, (y * side + x + 1) * count));
      const pen = map.canvas.getContext("2d");
      pen.imageSmoothingEnabled = false;
      pen.globalAlpha = 1;
      pen.drawImage(this.board.canvas, 0, 0);
      pen.globalAlpha = OPACITY;
      pen.drawImage(heat, 0, 0, SIDE, SIDE);
      const share = `${100 / side}%`;
      Object.assign(map.frames[0].style, { left: `${(100 * x) / side}%`, top: `${(100 * y) / side}%`, width: share, height: share });
      map.caption.textContent = `Stage ${i + 1}: where the place in the frame looks.`;
    });
  }
}

start("fashion-demo", FashionDemo);
