// The canvas: two images, their matches or keypoints, zoom, pan, and the match under the pointer.

// The colours of the legend in style.css; matchserve/drawing.py uses the same. All inliers are blue
// to green, because orange and red read as wrong.
const RAMP = [[92, 184, 255], [64, 224, 176]];
const REJECTED = "rgba(255, 107, 87, 0.7)";
const DOUBTFUL = "rgba(178, 186, 198, 0.8)";
const PLAIN = "rgba(255, 209, 102, 0.9)";
const GAP = 12;
const PATCH_PX = 56; // side of the image region shown for a match
const REACH_PX = 10;
const MAX_LINES = 160; // more hide the photographs; every match keeps its dots

export class Viewer {
  constructor(canvas, onHover) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.onHover = onHover;
    this.images = [];
    this.matches = [];
    this.visible = [];
    this.selected = -1;
    this.filter = { score: 0, inliersOnly: true };
    this.mode = "matches";
    this.view = { x: 0, y: 0, scale: 1 };
    this.pointers = new Map();
    new ResizeObserver(() => { this.layout(); this.fit(); }).observe(canvas);
    this.listen();
  }

  // `trust` says how matches are drawn: "trusted", "unchecked" or "doubtful".
  show(images, result, trust = "trusted") {
    this.images = images;
    this.result = result;
    this.trust = trust;
    if (!result) this.panels = null;
    const { confidence } = result ?? {};
    this.matches = result ? result.matches.map((_, i) => ({
      index: i,
      p: result.points0[i],
      q: result.points1[i],
      // The slider filters by confidence, or by score if the model has no confidence.
      score: confidence ? confidence[i] : result.scores[i],
      refined: result.refined[i],
      inlier: trust === "unchecked" || (trust === "trusted" && result.inliers[i]),
    })) : [];
    // Scores are coloured by rank, because most are near the top of their scale.
    const ranked = [...this.matches].filter((m) => m.inlier).sort((m, n) => m.score - n.score);
    const rank = (i) => (ranked.length > 1 ? i / (ranked.length - 1) : 1);
    ranked.forEach((m, i) => { m.rank = confidence ? m.score : rank(i); });
    this.selected = -1;
    this.layout();
    this.fit();
    this.refilter();
  }

  setMode(mode) {
    this.mode = mode;
    this.select(-1);
    this.draw();
  }

  setFilter(filter) {
    this.filter = { ...this.filter, ...filter };
    this.refilter();
  }

  refilter() {
    const { score, inliersOnly } = this.filter;
    const isKept = (m) => m.inlier || !inliersOnly || this.trust === "doubtful";
    this.visible = this.matches.filter((m) => m.score >= score && isKept(m));
    if (!this.visible.some((m) => m.index === this.selected)) this.select(-1);
    this.draw();
  }

  // Side by side at equal height; one above the other at equal width on a narrow screen.
  layout() {
    const box = this.canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(box.width * ratio));
    this.canvas.height = Math.max(1, Math.round(box.height * ratio));
    this.ratio = ratio;
    if (this.images.length < 2) return;
    const [a, b] = this.images;
    const stacked = box.width < box.height;
    const k = stacked ? a.width / b.width : a.height / b.height;
    this.panels = [
      { x: 0, y: 0, k: 1, w: a.width, h: a.height },
      { x: stacked ? 0 : a.width + GAP, y: stacked ? a.height + GAP : 0, k, w: b.width * k, h: b.height * k },
    ];
  }

  fit() {
    if (!this.panels) return this.draw();
    const [a, b] = this.panels;
    const width = Math.max(a.w, b.x + b.w), height = Math.max(a.h, b.y + b.h);
    const [w, h] = [this.canvas.width, this.canvas.height];
    const scale = 0.96 * Math.min(w / width, h / height);
    this.view = { scale, x: (w - width * scale) / 2, y: (h - height * scale) / 2 };
    this.draw();
  }

  zoom(factor, x = this.canvas.width / 2, y = this.canvas.height / 2) {
    const scale = Math.min(60, Math.max(0.02, this.view.scale * factor));
    const k = scale / this.view.scale;
    this.view = { scale, x: x - (x - this.view.x) * k, y: y - (y - this.view.y) * k };
    this.draw();
  }

  pan(dx, dy) {
    this.view.x += dx;
    this.view.y += dy;
    this.draw();
  }

  // Centres of pixels are whole numbers in the answer, corners are on the canvas.
  place(point, panel) {
    const { x, y, scale } = this.view;
    return [
      x + scale * (panel.x + (point[0] + 0.5) * panel.k),
      y + scale * (panel.y + (point[1] + 0.5) * panel.k),
    ];
  }

  colour(match, alpha = 0.85) {
    if (this.trust === "doubtful") return DOUBTFUL;
    if (!match.inlier) return REJECTED;
    const t = match.rank ?? 1;
    const mix = RAMP[0].map((c, n) => Math.round(c + (RAMP[1][n] - c) * t));
    return `rgba(${mix.join(",")},${alpha})`;
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    const c = this.context;
    c.setTransform(1, 0, 0, 1, 0, 0);
    c.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (this.images.length < 2 || !this.panels) return;
    const { x, y, scale } = this.view;
    c.imageSmoothingEnabled = scale * this.panels[0].k < 3;
    this.images.forEach((image, i) => {
      const p = this.panels[i];
      c.drawImage(image, x + p.x * scale, y + p.y * scale, p.w * scale, p.h * scale);
    });
    if (this.mode === "keypoints") return this.paintKeypoints();
    const order = [...this.visible].sort((m, n) => m.inlier - n.inlier || m.score - n.score);
    const faint = this.selected >= 0 ? 0.25 : 1;
    const every = Math.max(1, Math.ceil(order.length / MAX_LINES));
    order.forEach((match, i) => this.line(match, 1.2 * this.ratio, faint, { hasLine: i % every === 0 }));
    const chosen = this.visible.find((m) => m.index === this.selected);
    if (chosen) this.line(chosen, 3 * this.ratio, 1, { hasLine: true, isChosen: true });
  }

  paintKeypoints() {
    if (!this.result) return;
    for (const side of [0, 1]) {
      this.clipTo(this.panels[side]);
      const matched = new Set(this.matches.filter((m) => m.inlier).map((m) => this.result.matches[m.index][side]));
      const points = this.result[`keypoints${side}`];
      const order = points.map((_, i) => i).sort((i, j) => matched.has(i) - matched.has(j));
      for (const i of order) this.keypoint(side, i, matched.has(i) ? this.colour({ inlier: true }) : PLAIN);
      this.context.restore();
    }
  }

  // Large circles must not reach into the other image; the caller restores the context.
  clipTo(panel) {
    const { x, y, scale } = this.view, c = this.context;
    c.save();
    c.beginPath();
    c.rect(x + panel.x * scale, y + panel.y * scale, panel.w * scale, panel.h * scale);
    c.clip();
  }

  // A circle of the keypoint's scale with a line for its orientation; a dot if they are not known.
  keypoint(side, index, colour) {
    const c = this.context, panel = this.panels[side], { result } = this;
    const [x, y] = this.place(result[`keypoints${side}`][index], panel);
    const sigma = result[`scales${side}`]?.[index], angle = result[`orientations${side}`]?.[index] ?? 0;
    c.strokeStyle = c.fillStyle = colour;
    c.lineWidth = this.ratio;
    c.beginPath();
    if (sigma === undefined) {
      c.arc(x, y, 2.2 * this.ratio, 0, 7);
      c.fill();
      return;
    }
    const radius = Math.max(1.5 * this.ratio, 3 * sigma * panel.k * this.view.scale);
    c.arc(x, y, radius, 0, 7);
    c.moveTo(x, y);
    c.lineTo(x + radius * Math.cos(angle), y + radius * Math.sin(angle));
    c.stroke();
  }

  line(match, width, alpha, { hasLine, isChosen = false }) {
    const c = this.context;
    const [x0, y0] = this.place(match.p, this.panels[0]);
    const [x1, y1] = this.place(match.q, this.panels[1]);
    c.globalAlpha = alpha;
    if (isChosen) {
      c.strokeStyle = "rgba(0,0,0,0.6)";
      c.lineWidth = width + 2 * this.ratio;
      c.beginPath(); c.moveTo(x0, y0); c.lineTo(x1, y1); c.stroke();
    }
    c.strokeStyle = c.fillStyle = this.colour(match, isChosen ? 1 : 0.85);
    c.lineWidth = width;
    c.setLineDash(match.inlier ? [] : [6 * this.ratio, 4 * this.ratio]);
    if (hasLine) { c.beginPath(); c.moveTo(x0, y0); c.lineTo(x1, y1); c.stroke(); }
    c.setLineDash([]);
    const radius = (isChosen ? 5 : 2.2) * this.ratio;
    for (const [x, y] of [[x0, y0], [x1, y1]]) {
      c.beginPath(); c.arc(x, y, radius, 0, 7); c.fill();
    }
    c.globalAlpha = 1;
  }

  nearest(x, y) {
    let best = -1, distance = REACH_PX * this.ratio;
    if (this.mode !== "matches") return best;
    for (const match of this.visible) {
      for (const [px, py] of [this.place(match.p, this.panels[0]), this.place(match.q, this.panels[1])]) {
        const d = Math.hypot(px - x, py - y);
        if (d < distance) { distance = d; best = match.index; }
      }
    }
    return best;
  }

  select(index, at) {
    if (index === this.selected && index < 0) return;
    this.selected = index;
    const match = this.matches[index];
    this.canvas.classList.toggle("on-match", index >= 0);
    this.onHover(match, at ?? (match && this.place(match.p, this.panels[0]).map((v) => v / this.ratio)));
    this.draw();
  }

  step(by) {
    if (!this.visible.length || this.mode !== "matches") return;
    const at = this.visible.findIndex((m) => m.index === this.selected);
    const next = at < 0 ? (by > 0 ? 0 : -1) : at + by;
    this.select(this.visible.at(next % this.visible.length).index);
  }

  // The surroundings of one end of a match, from the image itself.
  drawPatch(canvas, match, side) {
    const image = this.images[side], [x, y] = side ? match.q : match.p;
    const c = canvas.getContext("2d");
    c.clearRect(0, 0, canvas.width, canvas.height);
    const k = side ? 1 / this.panels[1].k : 1, size = PATCH_PX * k;
    c.drawImage(image, x + 0.5 - size / 2, y + 0.5 - size / 2, size, size, 0, 0, canvas.width, canvas.height);
    for (const [radius, colour] of [[6, "rgba(0,0,0,0.75)"], [5, "#ffffff"]]) {
      c.strokeStyle = colour;
      c.beginPath(); c.arc(canvas.width / 2, canvas.height / 2, radius, 0, 7); c.stroke();
    }
  }

  listen() {
    const canvas = this.canvas;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [(event.clientX - box.left) * this.ratio, (event.clientY - box.top) * this.ratio];
    };
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * 0.0015), ...at(event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, at(event));
      this.hasMoved = false;
    });
    canvas.addEventListener("pointermove", (event) => this.moved(event, at(event)));
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, (event) => {
        this.pointers.delete(event.pointerId);
        canvas.classList.remove("dragging");
        if (!this.hasMoved && this.panels) this.hoverAt(at(event));
      });
    }
    canvas.addEventListener("pointerleave", () => this.select(-1));
    canvas.addEventListener("dblclick", () => this.fit());
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  moved(event, point) {
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      if (this.panels) this.hoverAt(point);
      return;
    }
    const [dx, dy] = [point[0] - before[0], point[1] - before[1]];
    if (Math.hypot(dx, dy) > 2 * this.ratio) this.hasMoved = true;
    if (!this.hasMoved) return;
    this.canvas.classList.add("dragging");
    if (this.pointers.size === 2) {
      const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
      const spread = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]);
      this.zoom(spread(point) / Math.max(1, spread(before)), (point[0] + other[0]) / 2, (point[1] + other[1]) / 2);
    } else {
      this.pan(dx, dy);
    }
    this.pointers.set(event.pointerId, point);
  }

  hoverAt([x, y]) {
    this.select(this.nearest(x, y), [x / this.ratio, y / this.ratio]);
  }

  key(event) {
    const step = 60 * this.ratio;
    const actions = {
      "+": () => this.zoom(1.25), "=": () => this.zoom(1.25), "-": () => this.zoom(0.8),
      0: () => this.fit(), n: () => this.step(1), p: () => this.step(-1), Escape: () => this.select(-1),
      ArrowLeft: () => this.pan(step, 0), ArrowRight: () => this.pan(-step, 0),
      ArrowUp: () => this.pan(0, step), ArrowDown: () => this.pan(0, -step),
    };
    const action = actions[event.key] ?? actions[event.key.toLowerCase()];
    if (action && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      action();
    }
  }
}
