// The overlay: the first image, mapped by a homography, over the second one.

const MAX_SIDE = 1200; // of the picture that is computed

export class Overlay {
  constructor(canvas) {
    this.canvas = canvas;
    this.mix = 0.5;
    this.layers = null;
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  // `matrix` maps points of the first image to the second; null removes the overlay.
  show(images, matrix) {
    this.layers = matrix ? { base: images[1], warped: warp(images[0], images[1], matrix) } : null;
    this.draw();
  }

  setMix(mix) {
    this.mix = mix;
    this.draw();
  }

  draw() {
    const { canvas } = this, box = canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(box.width * ratio));
    canvas.height = Math.max(1, Math.round(box.height * ratio));
    if (!this.layers) return;
    const c = canvas.getContext("2d"), { base, warped } = this.layers;
    const scale = 0.96 * Math.min(canvas.width / base.width, canvas.height / base.height);
    const [w, h] = [base.width * scale, base.height * scale];
    const place = [(canvas.width - w) / 2, (canvas.height - h) / 2, w, h];
    c.drawImage(base, ...place);
    c.globalAlpha = this.mix;
    c.drawImage(warped, ...place);
    c.globalAlpha = 1;
  }
}

function warp(source, target, matrix) {
  const scale = Math.min(1, MAX_SIDE / Math.max(target.width, target.height));
  const [width, height] = [target.width, target.height].map((v) => Math.max(1, Math.round(v * scale)));
  const from = pixels(source), inverse = inverted(matrix);
  const canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d");
  const picture = context.createImageData(width, height);
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      // Centres of pixels are whole numbers in results.
      const x = (column + 0.5) / scale - 0.5, y = (row + 0.5) / scale - 0.5;
      const [a, b, c] = inverse.map((r) => r[0] * x + r[1] * y + r[2]);
      if (c === 0) continue;
      const u = (a / c + 0.5) * from.scale - 0.5, v = (b / c + 0.5) * from.scale - 0.5;
      sample(from, u, v, picture.data, 4 * (row * width + column));
    }
  }
  context.putImageData(picture, 0, 0);
  return canvas;
}

function pixels(image) {
  const scale = Math.min(1, MAX_SIDE / Math.max(image.width, image.height));
  const [width, height] = [image.width, image.height].map((v) => Math.max(1, Math.round(v * scale)));
  const context = new OffscreenCanvas(width, height).getContext("2d");
  context.drawImage(image, 0, 0, width, height);
  return { data: context.getImageData(0, 0, width, height).data, width, height, scale };
}

// Bilinear interpolation; outside of the picture everything stays transparent.
function sample({ data, width, height }, u, v, target, at) {
  const x = Math.floor(u), y = Math.floor(v);
  if (!(x >= 0 && y >= 0 && x + 1 < width && y + 1 < height)) return;
  const fx = u - x, fy = v - y, i = 4 * (y * width + x), below = i + 4 * width;
  for (let n = 0; n < 3; n++) {
    const top = data[i + n] * (1 - fx) + data[i + 4 + n] * fx;
    const bottom = data[below + n] * (1 - fx) + data[below + 4 + n] * fx;
    target[at + n] = top * (1 - fy) + bottom * fy;
  }
  target[at + 3] = 255;
}

// Up to a factor, which does not matter for a homography: the adjugate.
function inverted([[a, b, c], [d, e, f], [g, h, i]]) {
  return [
    [e * i - f * h, c * h - b * i, b * f - c * e],
    [f * g - d * i, a * i - c * g, c * d - a * f],
    [d * h - e * g, b * g - a * h, a * e - b * d],
  ];
}
