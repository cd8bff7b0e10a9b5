// The page: two images and options in, one request to /v1/match, and what came back.

import { Viewer } from "./viewer.js";

const $ = (id) => document.getElementById(id);
const DEFAULTS = { model: "", verify: "fundamental", max_keypoints: "2048", ratio: "", threshold_px: "3", max_side: "", upright: false };
const STAGES = ["decode", "detect", "crop", "infer", "describe", "match", "verify"];
const STAGE_COLOURS = { cache: "#8d99a8", decode: "#5b8def", detect: "#12a683", crop: "#8ad0ff", infer: "#b57bee", describe: "#ffb000", match: "#ff7a59", verify: "#e0559a" };

// What the user can do about an error, by its code.
const ADVICE = {
  unsupported_format: "Please choose JPEG, PNG or WebP photographs.",
  corrupt_image: "The file seems damaged or cut off. Try to open and save it again.",
  image_too_large: "Please choose a smaller image.",
  image_too_small: "Please choose a larger image.",
  payload_too_large: "The two files together are too large. Please choose smaller ones.",
  empty_image: "The file is empty.",
  overloaded: "The server is busy. Please try again in a moment.",
  rate_limited: "You have sent too many requests. Please wait a moment and try again.",
  deadline_exceeded: "This took too long. Try fewer keypoints or a smaller longest side.",
  unauthorized: "This server requires an API key. Enter it under Options.",
  unknown_model: "This model is no longer available. Please choose another.",
};

const files = [null, null];
const bitmaps = [null, null];
let result = null, running = null, timer = 0;

const viewer = new Viewer($("viewer"), showHover);

function showHover(match, at) {
  $("hover").hidden = !match;
  if (!match) return;
  viewer.drawPatch($("patch0"), match, 0);
  viewer.drawPatch($("patch1"), match, 1);
  const round = ([x, y]) => `${x.toFixed(1)}, ${y.toFixed(1)}`;
  $("hover-text").textContent = `${round(match.p)} → ${round(match.q)}   ${filterName()} ${match.score.toFixed(3)}${match.refined ? "   refined" : ""}${match.inlier ? "" : "   rejected"}`;
  const stage = $("stage").getBoundingClientRect(), box = $("hover").getBoundingClientRect();
  const clamp = (v, size, limit) => Math.max(8, v + 18 + size > limit ? v - 18 - size : v + 18);
  $("hover").style.left = `${Math.min(clamp(at[0], box.width, stage.width), stage.width - box.width - 8)}px`;
  $("hover").style.top = `${clamp(at[1], box.height, stage.height)}px`;
}

async function setImage(side, file) {
  const drop = $(`drop${side}`);
  try {
    bitmaps[side] = await createImageBitmap(file);
  } catch {
    // Not shown here, but the server says best what is wrong with it.
    bitmaps[side] = null;
  }
  files[side] = file;
  drop.classList.toggle("has-image", true);
  drop.querySelector(".name").textContent = file.name;
  thumbnail(drop.querySelector(".thumb"), bitmaps[side]);
  $("run").disabled = !(files[0] && files[1]);
  describeRequest();
  if (files[0] && files[1]) await run();
}

function thumbnail(canvas, bitmap) {
  const scale = bitmap ? Math.min(1, 360 / Math.max(bitmap.width, bitmap.height)) : 0;
  canvas.width = bitmap ? Math.max(1, bitmap.width * scale) : 1;
  canvas.height = bitmap ? Math.max(1, bitmap.height * scale) : 1;
  if (bitmap) canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
}

function chosen() {
  return Object.fromEntries(Object.keys(DEFAULTS).map((name) => {
    const field = $(name);
    return [name, field.type === "checkbox" ? field.checked : field.value];
  }));
}

// Only what differs from the default is sent, so that the curl line stays short.
function changed() {
  return Object.entries(chosen()).filter(([name, value]) => value !== DEFAULTS[name] && value !== "");
}

function request(accept) {
  const form = new FormData();
  files.forEach((file, side) => form.append(`image${side}`, file, file.name));
  for (const [name, value] of changed()) form.append(name, value);
  const headers = { Accept: accept };
  if ($("key").value) headers["X-API-Key"] = $("key").value;
  return { method: "POST", body: form, headers };
}

async function run() {
  if (!files[0] || !files[1] || !$("form").reportValidity()) return;
  running?.abort();
  const mine = running = new AbortController();
  busy(true);
  const start = performance.now();
  timer = setInterval(() => say(`Matching… ${((performance.now() - start) / 1000).toFixed(1)} s`), 100);
  try {
    const answer = await fetch("/v1/match", { ...request("application/json"), signal: mine.signal });
    const body = await answer.json();
    if (!answer.ok) throw body;
    result = body;
    showResult();
    say([`Done in ${((performance.now() - start) / 1000).toFixed(2)} s`, ...result.notes].join("; "));
  } catch (problem) {
    if (problem?.name === "AbortError") return;
    showProblem(problem);
  } finally {
    if (running === mine) busy(false);
  }
}

function busy(is) {
  clearInterval(timer);
  $("progress").hidden = !is;
  $("stage").setAttribute("aria-busy", is);
  if (is) $("problem").hidden = true;
}

function say(text) {
  $("status").textContent = text;
}

function showProblem(problem) {
  say("");
  const isOurs = problem && typeof problem.code === "string";
  $("problem-title").textContent = isOurs ? (ADVICE[problem.code] ?? problem.title) : "The server could not be reached.";
  $("problem-text").textContent = isOurs ? problem.detail : "Check that it is running, and try again.";
  $("problem-id").textContent = isOurs ? `${problem.code}, request ${problem.request_id}` : "";
  $("problem").hidden = false;
  if (problem?.code === "unauthorized") $("key-field").hidden = false;
}

function showResult() {
  $("problem").hidden = true;
  $("empty").hidden = true;
  $("save-png").disabled = $("save-json").disabled = false;
  const scores = result.confidence ?? result.scores;
  $("score-name").textContent = filterName() === "confidence" ? "Confidence" : "Score";
  $("legend-name").textContent = filterName();
  $("legend").hidden = false;
  const low = scores.length ? Math.floor(Math.min(...scores) * 200) / 200 : 0;
  $("score").min = low;
  $("score").value = low;
  viewer.setFilter({ score: low, inliersOnly: $("inliers").checked });
  viewer.show(bitmaps.map((b) => b ?? new OffscreenCanvas(8, 8)), result);
  const { geometry } = result;
  const { text: verdict, kind, probability } = judged(result);
  number("verdict", verdict, kind);
  number("probability", probability);
  number("inliers", geometry.kind === "none" ? "–" : geometry.inliers);
  number("matches", result.matches.length);
  number("keypoints", `${result.keypoints0.length} + ${result.keypoints1.length}`);
  number("time", `${Math.round(result.timings_ms.total)} ms`);
  $("viewer").setAttribute("aria-label", `${verdict}: ${geometry.inliers} inliers of ${result.matches.length} matches`);
  showTimings(result.timings_ms);
  showFiltered();
  // On a phone the picture is below the form.
  if (innerWidth <= 860) $("stage").scrollIntoView({ block: "start" });
}

function judged({ same_scene: p, geometry }) {
  if (p === null) {
    // Without a calibration there is no probability, however many inliers there are.
    return { text: geometry.kind === "none" ? "Not verified" : "Not calibrated", kind: "", probability: "" };
  }
  const probability = `, p = ${Math.min(Math.max(p, 0.01), 0.99).toFixed(2)}`;
  return p >= 0.5 ? { text: "Same scene", kind: "yes", probability } : { text: "Different scenes", kind: "no", probability };
}

function number(name, text, kind = "") {
  $(`n-${name}`).textContent = text;
  $(`n-${name}`).className = kind;
}

function showTimings(timings) {
  const parts = STAGES.filter((stage) => timings[stage] > 0);
  const sum = parts.reduce((total, s) => total + timings[s], 0) || 1;
  const bar = document.createElement("div");
  bar.className = "bar";
  const legend = parts.map((stage) => {
    const piece = document.createElement("span");
    piece.style.width = `${(100 * timings[stage]) / sum}%`;
    piece.style.background = STAGE_COLOURS[stage];
    bar.append(piece);
    const text = document.createElement("span"), dot = document.createElement("i");
    dot.style.background = STAGE_COLOURS[stage];
    text.append(dot, `${stage} ${timings[stage].toFixed(timings[stage] < 10 ? 1 : 0)} ms`);
    return text;
  });
  if (!timings.detect) {
    const note = document.createElement("span");
    note.textContent = "features of both images were cached";
    legend.push(note);
  }
  $("timing").replaceChildren(bar, ...legend);
}

// What the slider filters by: the probability that a match is right, if the model gives it.
function filterName() {
  return result?.confidence ? "confidence" : "score";
}

function showFiltered() {
  $("score-value").textContent = Number($("score").value).toFixed(2);
  $("shown").textContent = result ? `${viewer.visible.length} shown` : "";
}

function describeRequest() {
  const quote = (text) => (/^[\w.@=/:+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const part = (name, value) => `-F ${quote(`${name}=${value}`)}`;
  const names = files.map((file, side) => part(`image${side}`, `@${file?.name ?? "ab"[side] + ".jpg"}`));
  const options = changed().map(([name, value]) => part(name, value));
  const key = $("key").value ? ["-H 'X-API-Key: …'"] : [];
  $("curl").textContent = ["curl", ...key, ...names, ...options, `${location.origin}/v1/match`].join(" ");
}

async function save(accept, name) {
  const answer = await fetch("/v1/match", request(accept));
  if (!answer.ok) return showProblem(await answer.json());
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

async function useSample() {
  say("Loading the sample…");
  const [first, second] = await Promise.all([0, 1].map(async (side) => {
    const blob = await (await fetch(`/assets/sample${side}.jpg`)).blob();
    return new File([blob], `sample${side}.jpg`, { type: "image/jpeg" });
  }));
  await setImage(0, first);
  await setImage(1, second);
}

async function loadLimits() {
  const headers = $("key").value ? { "X-API-Key": $("key").value } : {};
  const answer = await fetch("/info", { headers });
  if (!answer.ok) return;
  const { limits } = await answer.json();
  const keypoints = $("max_keypoints");
  keypoints.max = limits.max_keypoints;
  keypoints.value = Math.min(keypoints.value, limits.max_keypoints);
  $("max_side").max = limits.max_side;
  $("max_side").placeholder = limits.working_side || "full size";
}

async function loadModels() {
  const headers = $("key").value ? { "X-API-Key": $("key").value } : {};
  const answer = await fetch("/v1/models", { headers });
  if (!answer.ok) return showProblem(await answer.json());
  const { models, default: preferred } = await answer.json();
  DEFAULTS.model = preferred;
  $("model").replaceChildren(...models.map((model) => {
    const text = model.ready ? `${model.name} (${model.dim} ${model.kind === "binary" ? "bits" : "floats"})` : `${model.name} (not ready)`;
    const option = new Option(text, model.name, model.name === preferred, model.name === preferred);
    option.disabled = !model.ready;
    option.title = model.method ?? model.error;
    return option;
  }));
  $("problem").hidden = true;
}

function listen() {
  for (const side of [0, 1]) {
    const drop = $(`drop${side}`);
    $(`image${side}`).addEventListener("change", (event) => {
      if (event.target.files[0]) setImage(side, event.target.files[0]);
    });
    drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => { drop.classList.remove("over"); dropped(event, side); });
  }
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => dropped(event, files[0] && !files[1] ? 1 : 0));
  $("form").addEventListener("submit", (event) => { event.preventDefault(); run(); });
  for (const name of Object.keys(DEFAULTS)) {
    $(name).addEventListener("change", () => { describeRequest(); run(); });
  }
  $("key").addEventListener("change", () => { describeRequest(); loadModels(); loadLimits(); });
  $("sample").addEventListener("click", () => useSample().catch(showProblem));
  $("score").addEventListener("input", () => { viewer.setFilter({ score: Number($("score").value) }); showFiltered(); });
  $("inliers").addEventListener("change", () => { viewer.setFilter({ inliersOnly: $("inliers").checked }); showFiltered(); });
  $("zoom-in").addEventListener("click", () => viewer.zoom(1.25));
  $("zoom-out").addEventListener("click", () => viewer.zoom(0.8));
  $("fit").addEventListener("click", () => viewer.fit());
  $("copy").addEventListener("click", copyCurl);
  $("save-png").addEventListener("click", () => save("image/png", "matches.png"));
  $("save-json").addEventListener("click", () => save("application/json", "matches.json"));
  $("theme").addEventListener("click", switchTheme);
  $("viewer").addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() === "i") $("inliers").click();
  });
}

// Two files dropped at once are the pair.
function dropped(event, side) {
  event.preventDefault();
  event.stopPropagation();
  const given = [...event.dataTransfer.files];
  if (given.length >= 2) {
    setImage(0, given[0]).then(() => setImage(1, given[1]));
  } else if (given.length) {
    setImage(side, given[0]);
  }
}

async function copyCurl() {
  try {
    await navigator.clipboard.writeText($("curl").textContent);
    say("Copied");
  } catch {
    getSelection().selectAllChildren($("curl"));
    say("Press Ctrl+C to copy");
  }
}

function switchTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
}

listen();
describeRequest();
Promise.all([loadModels(), loadLimits()]).then(describeRequest).catch(showProblem);
