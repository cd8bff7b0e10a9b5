// The view graph: images as dots, verified pairs as lines; choosing one calls back.

const SIZE = 1000, MARGIN = 60;
const MAX_LINES = 3000; // more are slow to draw, and hide each other

const element = (name, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

export class Graph {
  // `onPair` gets the two image numbers of a chosen line, `onImage` that of a chosen dot.
  constructor(svg, { onPair, onImage }) {
    this.svg = svg;
    this.callbacks = { onPair, onImage };
    svg.setAttribute("viewBox", `0 0 ${SIZE} ${SIZE}`);
  }

  show(graph) {
    this.svg.replaceChildren();
    if (!graph) return;
    const places = this.places(graph.images);
    const verified = graph.pairs.filter((pair) => pair[4] === 1).slice(0, MAX_LINES);
    // The strongest last, on top of the others.
    for (const [a, b, , inliers] of verified.reverse()) this.addLine(a, b, inliers, places, graph.images);
    const linked = new Set(verified.flatMap(([a, b]) => [a, b]));
    graph.images.forEach((image, number) => this.addDot(number, image, places[number], linked.has(number)));
  }

  addLine(a, b, inliers, places, images) {
    const [x1, y1, x2, y2] = [...places[a], ...places[b]];
    const strength = Math.min(1, Math.log10(Math.max(inliers, 15) / 15) / 1.5);
    const line = element("line", { x1, y1, x2, y2, class: "edge", "data-pair": `${a}-${b}` });
    line.style.setProperty("--strength", strength.toFixed(2)); // the policy forbids style attributes
    // A wide line that is not seen is easier to hit.
    const target = element("line", { x1, y1, x2, y2, class: "edge-target" });
    target.append(title(`${images[a].name} – ${images[b].name}: ${inliers} inliers`));
    target.addEventListener("click", () => this.callbacks.onPair(a, b));
    this.svg.append(line, target);
  }

  addDot(number, image, [cx, cy], isLinked) {
    const dot = element("circle", { cx, cy, r: 11, class: isLinked ? "node" : "node alone", tabindex: 0, role: "button", "aria-label": image.name });
    dot.append(title(`${image.name}: ${image.keypoints} keypoints${isLinked ? "" : ", no verified pair"}`));
    const choose = () => this.callbacks.onImage(number);
    dot.addEventListener("click", choose);
    dot.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(); });
    this.svg.append(dot);
  }

  mark(a, b) {
    for (const line of this.svg.querySelectorAll(".edge")) line.classList.toggle("chosen", line.dataset.pair === `${a}-${b}`);
  }

  places(images) {
    const xs = images.map((image) => image.x), ys = images.map((image) => image.y);
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const scale = (SIZE - 2 * MARGIN) / Math.max(right - left, bottom - top, 1e-9);
    const shift = [(SIZE - scale * (left + right)) / 2, (SIZE - scale * (top + bottom)) / 2];
    return images.map(({ x, y }) => [x * scale + shift[0], y * scale + shift[1]]);
  }
}

function title(text) {
  const made = element("title", {});
  made.textContent = text;
  return made;
}
