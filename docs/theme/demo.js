// What the demos share: a model answers in the reader's browser by ONNX Runtime, with bars and maps of its attention.
const FOLDER = new URL("../demo/", import.meta.url);
// Colours of weights from none to the largest.
const RAMP = [[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]];

export const indices = (count) => [...Array(count).keys()];
export const percent = (value) => `${(100 * value).toFixed(value > 0.1 ? 0 : 1)} %`;

export function make(tag, className, text = "") {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  return element;
}

export function makeButton(className, text, act) {
  const button = make("button", className, text);
  button.type = "button";
  button.addEventListener("click", act);
  return button;
}

export function makeCanvas(side) {
  const canvas = make("canvas", "");
  canvas.width = canvas.height = side;
  return canvas;
}

/** A square of a canvas with frames on it, and a caption. */
export function makeMap(side, ...frames) {
  const map = { canvas: makeCanvas(side), frames, square: make("div", "demo-square"), caption: make("figcaption", "") };
  map.square.append(map.canvas, ...frames);
  map.figure = make("figure", "demo-map");
  map.figure.append(map.square, map.caption);
  return map;
}

/** Bars of probabilities below a title. */
export function makeBars(title, names, colors) {
  const list = make("div", "demo-answer");
  list.append(make("h3", "", title), ...names.map((name, i) => {
    const line = make("div", "demo-bar");
    line.append(make("span", "", name), make("i", ""), make("b", ""));
    line.children[1].style.setProperty("--color", colors[i]);
    return line;
  }));
  return list;
}

/** Show the probabilities of logits, and return them with the index of the largest. */
export function showBars(list, logits) {
  const shares = probabilities(logits);
  const best = shares.indexOf(Math.max(...shares));
  list.querySelectorAll(".demo-bar").forEach((line, i) => {
    line.classList.toggle("demo-best", i === best);
    line.children[1].style.setProperty("--share", shares[i]);
    line.children[2].textContent = percent(shares[i]);
  });
  return { shares, best };
}

/** Say whether the answer above the bars is right; nothing for undefined. */
export function mark(list, right) {
  list.dataset.right = right ?? "";
  list.firstChild.dataset.mark = right === undefined ? "" : right ? "\u2713 right" : "\u2717 wrong";
}

function probabilities(logits) {
  const largest = Math.max(...logits);
  const powers = Array.from(logits, (value) => Math.exp(value - largest));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((value) => value / sum);
}

export function paintRow(canvas, row) {
  const side = Math.sqrt(row.length);
  const largest = Math.max(...row);
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(side, side);
  row.forEach((weight, token) => {
    const at = (RAMP.length - 1) * Math.min(Math.max(weight / largest, 0), 0.9999);
    const [low, part] = [Math.floor(at), at % 1];
    for (let c = 0; c < 3; c++) image.data[4 * token + c] = RAMP[low][c] * (1 - part) + RAMP[low + 1][c] * part;
    image.data[4 * token + 3] = 255;
  });
  pen.putImageData(image, 0, 0);
}

/**
 * A demo in an element. Subclasses call `answer` and define `show(question, result)`. The model waits for `prepared`, a
 * promise of the first question, if they have it.
 */
export class Demo {
  /** name: of the files of the model. shape: of its input, also that of one image. */
  constructor(root, name, shape) {
    Object.assign(this, { root, name, shape });
    this.said = make("p", "demo-said");
    this.said.ariaLive = "polite";
    this.time = make("p", "demo-time", "The model loads in your browser: 19 MB.");
    root.classList.add("demo");
  }

  /** Let the model answer a question, which has its `input`. */
  answer(question) {
    this.question = question;
    return this.run();
  }

  async load() {
    try {
      await this.prepared;
      const ort = await import(new URL("ort.wasm.bundle.min.mjs", FOLDER));
      const binary = await fetch(new URL("ort-wasm-simd-threaded.wasm", FOLDER));
      if (!binary.ok) throw new Error(`${binary.url}: ${binary.status}`);
      ort.env.wasm.wasmBinary = await binary.arrayBuffer();
      // More threads need headers that few static hosts send.
      ort.env.wasm.numThreads = 1;
      const path = `soft_plus_pico.${this.name}.safetensors`;
      const session = await ort.InferenceSession.create(new URL(`${this.name}.onnx`, FOLDER).href, {
        externalData: [{ path, data: new URL(path, FOLDER).href }],
      });
      this.model = async (input) => {
        const start = performance.now();
        const outputs = await session.run({ images: new ort.Tensor("float32", input, this.shape) });
        const data = Object.fromEntries(Object.entries(outputs).map(([name, tensor]) => [name, tensor.data]));
        return { input, outputs: data, ms: performance.now() - start };
      };
      // The first run allocates memory.
      await this.model(this.question.input);
      await this.run();
    } catch (error) {
      // Also when the reader leaves the page meanwhile.
      this.time.textContent = `The model did not load: ${error.message}`;
      console.warn(error);
    }
  }

  async run() {
    if (!this.model) return;
    // Runs one at a time; of the questions that come meanwhile, the last.
    if (this.running) {
      this.waiting = true;
      return;
    }
    this.running = true;
    const { question } = this;
    try {
      const result = await this.model(question.input);
      this.show(question, result);
      this.time.textContent = `${result.ms.toFixed(0)} ms in your browser, on one thread, for all that is shown. Nothing is sent anywhere.`;
      this.root.dataset.state = "ready";
      this.result = result;
    } finally {
      this.running = false;
    }
    if (this.waiting) {
      this.waiting = false;
      await this.run();
    }
  }
}

/** Start a demo in the element of an id, if this page has it, and load its model as soon as the reader sees it. */
export function start(id, Kind) {
  const root = document.getElementById(id);
  if (root?.dataset.ready === undefined) return;
  root.demo = new Kind(root);
  const seen = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) {
      seen.disconnect();
      root.demo.load();
    }
  });
  seen.observe(root);
}
