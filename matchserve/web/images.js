// The two images: chosen, dropped, pasted or sample; reduced before sending if they are too large.

import { $ } from "./dom.js";

const SAMPLES = {
  easy: ["roofs1.jpg", "roofs2.jpg"],
  hard: ["street1.jpg", "street2.jpg"],
  rotated: ["river1.jpg", "river2-turned.jpg"],
  unrelated: ["roofs1.jpg", "river1.jpg"],
};
const JPEG_QUALITY = 0.92;

// Of each image: the file as chosen, what is sent, its pixels, and a note if it was reduced.
const slots = [null, null];
export const state = { limits: null, sample: "" };

export const images = () => slots.map((slot) => slot?.bitmap ?? null);
export const sentFiles = () => slots.map((slot) => slot?.sent ?? null);
export const areChosen = () => slots.every(Boolean);
export const reductionNotes = () => slots.map((slot) => slot?.note).filter(Boolean);

export async function setImage(side, file) {
  slots[side] = await prepared(file);
  show(side);
}

async function prepared(file) {
  let bitmap = null;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    // Not shown here, but the server says best what is wrong with it.
    return { file, sent: file, bitmap: null, note: "" };
  }
  const scale = $("reduce").checked ? allowedScale(file, bitmap) : 1;
  return scale < 1 ? reduced(file, bitmap, scale) : { file, sent: file, bitmap, note: "" };
}

function allowedScale(file, { width, height }) {
  if (!state.limits) return 1;
  const { max_pixels: pixels, max_side: side, max_image_bytes: bytes } = state.limits;
  const isTooLarge = width * height > pixels || Math.max(width, height) > side || file.size > bytes;
  if (!isTooLarge) return 1;
  // Twice the side that keypoints are found at loses nothing; all that is allowed for the full size.
  const wanted = $("max_side").value === "" ? state.limits.working_side : Number($("max_side").value);
  const target = wanted > 0 ? Math.min(side, 2 * wanted) : side;
  return Math.min(1, target / Math.max(width, height), Math.sqrt(pixels / (width * height)));
}

async function reduced(file, bitmap, scale) {
  for (let factor = scale; ; factor *= 0.8) {
    const [width, height] = [bitmap.width, bitmap.height].map((v) => Math.max(1, Math.floor(v * factor)));
    const small = await createImageBitmap(bitmap, { resizeWidth: width, resizeHeight: height, resizeQuality: "high" });
    const canvas = new OffscreenCanvas(width, height);
    canvas.getContext("2d").drawImage(small, 0, 0);
    const blob = await canvas.convertToBlob({ type: "image/jpeg", quality: JPEG_QUALITY });
    if (blob.size > state.limits.max_image_bytes && width > 64) continue;
    const sent = new File([blob], file.name.replace(/(\.\w+)?$/, `-${width}x${height}.jpg`), { type: "image/jpeg" });
    const note = `${file.name} was reduced in the browser from ${bitmap.width}x${bitmap.height} to ${width}x${height}; coordinates are those of the reduced image`;
    return { file, sent, bitmap: small, note };
  }
}

function show(side) {
  const slot = slots[side], drop = $(`drop${side}`);
  drop.classList.toggle("has-image", Boolean(slot));
  drop.querySelector(".name").textContent = slot?.file.name ?? "";
  thumbnail(drop.querySelector(".thumb"), slot?.bitmap);
  $("run").disabled = !areChosen();
  $("swap").disabled = !slots.some(Boolean);
}

function thumbnail(canvas, bitmap) {
  const scale = bitmap ? Math.min(1, 360 / Math.max(bitmap.width, bitmap.height)) : 0;
  canvas.width = bitmap ? Math.max(1, bitmap.width * scale) : 1;
  canvas.height = bitmap ? Math.max(1, bitmap.height * scale) : 1;
  if (bitmap) canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
}

export function swapImages() {
  slots.reverse();
  [0, 1].forEach(show);
}

export function clearImages() {
  slots.fill(null);
  state.sample = "";
  for (const side of [0, 1]) {
    $(`image${side}`).value = ""; // so that the same file can be chosen again
    show(side);
  }
}

// Prepare the images again, after an option that decides about their reduction has changed.
export async function prepareAgain() {
  for (const side of [0, 1]) if (slots[side]) await setImage(side, slots[side].file);
}

export async function chooseSample(name) {
  const files = await Promise.all(SAMPLES[name].map(async (file) => {
    const blob = await (await fetch(`/assets/samples/${file}`)).blob();
    const image = new File([blob], file, { type: "image/jpeg" });
    image.path = `matchserve/web/samples/${file}`; // in the repository, for the curl line
    return image;
  }));
  await setImage(0, files[0]);
  await setImage(1, files[1]);
  state.sample = name;
}

export const isSample = (name) => Object.hasOwn(SAMPLES, name);

// Two files at once are the pair; one goes to `side`, or to the first free place.
export async function takeFiles(files, side = null) {
  state.sample = "";
  if (files.length >= 2) {
    await setImage(0, files[0]);
    await setImage(1, files[1]);
  } else if (files.length) {
    await setImage(side ?? (slots[0] && !slots[1] ? 1 : 0), files[0]);
  }
}

export async function clipboardImages() {
  const files = [];
  for (const item of await navigator.clipboard.read()) {
    const type = item.types.find((t) => t.startsWith("image/"));
    if (type) files.push(new File([await item.getType(type)], `pasted.${type.slice(6)}`, { type }));
  }
  return files;
}
