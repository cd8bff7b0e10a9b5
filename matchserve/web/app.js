// The page: two images and options in, one request to /v1/match, and what came back.

import { $, say } from "./dom.js";
import { areChosen, chooseSample, clearImages, clipboardImages, images, isSample, prepareAgain, reductionNotes, state, swapImages, takeFiles } from "./images.js";
import { startCollections } from "./collections.js";
import { loadModels, showModelText } from "./models.js";
import { onOptionChange, optionsLink, resetOptions, restoreOptions, storeOptions } from "./options.js";
import { Overlay } from "./overlay.js";
import { clearNumbers, showLegend, showNumbers, showProblem, trustOf } from "./result.js";
import { curlText, getJson, requestMatch, saveAs } from "./service.js";
import { Viewer } from "./viewer.js";
import { startViews } from "./views.js";

// Geometries whose matrix maps a point to a point.
const POINT_MAPS = ["homography", "affine", "similarity"];

let result = null, running = null, timer = 0;

const viewer = new Viewer($("viewer"), showHover);
const overlay = new Overlay($("overlay"));

// What the slider filters by: the probability that a match is right, if the model gives it.
const filterName = () => (result?.confidence ? "confidence" : "score");
const shownMode = () => document.querySelector("[name=mode]:checked").value;

function showHover(match, at) {
  $("hover").hidden = !match;
  if (!match) return;
  viewer.drawPatch($("patch0"), match, 0);
  viewer.drawPatch($("patch1"), match, 1);
  const round = ([x, y]) => `${x.toFixed(1)}, ${y.toFixed(1)}`;
  $("hover-text").textContent = `${round(match.p)} → ${round(match.q)}   ${filterName()} ${match.score.toFixed(3)}${match.refined ? "   refined" : ""}${match.inlier ? "" : "   not an inlier"}`;
  const stage = $("stage").getBoundingClientRect(), box = $("hover").getBoundingClientRect();
  const clamp = (v, size, limit) => Math.max(8, v + 18 + size > limit ? v - 18 - size : v + 18);
  $("hover").style.left = `${Math.min(clamp(at[0], box.width, stage.width), stage.width - box.width - 8)}px`;
  $("hover").style.top = `${clamp(at[1], box.height, stage.height)}px`;
}

async function run() {
  $("curl").textContent = curlText();
  if (!areChosen() || !$("form").reportValidity()) return;
  running?.abort();
  const mine = running = new AbortController();
  busy(true);
  const start = performance.now();
  timer = setInterval(() => say(`Matching… ${((performance.now() - start) / 1000).toFixed(1)} s`), 100);
  try {
    // The curl line does without the details, which are for the view of the keypoints.
    const response = await requestMatch({ signal: mine.signal, extra: { details: true } });
    result = await response.json();
    showResult();
    say([`Done in ${((performance.now() - start) / 1000).toFixed(2)} s`, ...reductionNotes(), ...result.notes].join("; "));
  } catch (problem) {
    if (problem?.name === "AbortError") return;
    clearResult();
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

function showResult() {
  const trust = trustOf(result), scores = result.confidence ?? result.scores;
  $("empty").hidden = true;
  $("score-name").textContent = filterName() === "confidence" ? "Confidence" : "Score";
  const low = scores.length ? Math.floor(Math.min(...scores) * 200) / 200 : 0;
  $("score").min = low;
  $("score").value = low;
  viewer.setFilter({ score: low, inliersOnly: $("inliers").checked });
  viewer.show(images().map((b) => b ?? new OffscreenCanvas(8, 8)), result, trust);
  showNumbers(result);
  showLegend(trust, filterName());
  showFiltered();
  showMode();
  // On a phone the picture is below the form.
  if (innerWidth <= 860) $("stage").scrollIntoView({ block: "start" });
}

// A result must not stay beside images or an error that it does not belong to.
function clearResult() {
  result = null;
  viewer.show([], null);
  overlay.show([], null);
  clearNumbers();
  $("viewer").setAttribute("aria-label", "No matches yet");
  $("empty").hidden = false;
  $("no-overlay").hidden = true;
}

function showFiltered() {
  $("score-value").textContent = Number($("score").value).toFixed(2);
  $("shown").textContent = result ? `${viewer.visible.length} shown` : "";
}

function showMode() {
  const mode = shownMode();
  for (const part of document.querySelectorAll(".filters")) part.hidden = part.dataset.mode !== mode;
  $("viewer").hidden = $("zoom").hidden = mode === "overlay";
  $("overlay").hidden = mode !== "overlay";
  $("no-overlay").hidden = true;
  viewer.setMode(mode);
  if (mode === "overlay" && result) showOverlay(result).catch(showProblem);
}

async function showOverlay(shown) {
  overlay.show([], null);
  const matrix = trustOf(shown) === "doubtful" ? null : await homographyOf(shown);
  if (shown !== result || shownMode() !== "overlay") return; // a newer result took its place
  $("no-overlay").hidden = Boolean(matrix);
  $("no-overlay").textContent = "No overlay: the images do not share a plane that could be laid over the other.";
  if (matrix) overlay.show(images(), matrix);
}

async function homographyOf({ geometry }) {
  if (POINT_MAPS.includes(geometry.kind)) return geometry.matrix;
  $("progress").hidden = false;
  try {
    const response = await requestMatch({ extra: { verify: "homography" } });
    return (await response.json()).geometry.matrix;
  } finally {
    $("progress").hidden = true;
  }
}

async function loadLimits() {
  const { limits } = await getJson("/info");
  state.limits = limits;
  const keypoints = $("max_keypoints");
  keypoints.max = limits.max_keypoints;
  keypoints.value = Math.min(keypoints.value, limits.max_keypoints);
  $("max_side").max = limits.max_side;
  $("max_side").placeholder = limits.working_side || "full size";
}

// New images: the result of those before is removed first.
async function choose(work) {
  try {
    running?.abort();
    clearResult();
    await work();
    await run();
  } catch (problem) {
    showProblem(problem);
  }
}

function reset() {
  running?.abort();
  busy(false);
  clearImages();
  resetOptions();
  showModelText();
  clearResult();
  $("problem").hidden = true;
  $("curl").textContent = curlText();
  say("");
}

async function pasteFromClipboard() {
  let files = [];
  try {
    files = await clipboardImages();
  } catch {
    return say("The browser does not allow this button to read the clipboard: press Ctrl+V");
  }
  if (!files.length) return say("There is no image on the clipboard");
  await choose(() => takeFiles(files));
}

function listenToImages() {
  for (const side of [0, 1]) {
    const drop = $(`drop${side}`);
    $(`image${side}`).addEventListener("change", (event) => {
      const [file] = event.target.files;
      if (file) choose(() => takeFiles([file], side));
    });
    drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => { drop.classList.remove("over"); dropped(event, side); });
  }
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => dropped(event, null));
  document.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files].filter((file) => file.type.startsWith("image/"));
    if (files.length) choose(() => takeFiles(files));
  });
  $("paste").addEventListener("click", pasteFromClipboard);
  $("swap").addEventListener("click", () => choose(swapImages));
  $("reset").addEventListener("click", reset);
  for (const button of document.querySelectorAll("[data-sample]")) {
    button.addEventListener("click", () => choose(() => chooseSample(button.dataset.sample)));
  }
}

function dropped(event, side) {
  event.preventDefault();
  event.stopPropagation();
  const files = [...event.dataTransfer.files];
  if (files.length) choose(() => takeFiles(files, side));
}

function listenToOptions() {
  $("form").addEventListener("submit", (event) => { event.preventDefault(); run(); });
  onOptionChange(async (event) => {
    storeOptions();
    showModelText();
    if (event.target.id === "max_side") await prepareAgain();
    run();
  });
  $("reduce").addEventListener("change", () => {
    storeOptions();
    choose(prepareAgain);
  });
  $("key").addEventListener("change", start);
}

function listenToResult() {
  $("score").addEventListener("input", () => { viewer.setFilter({ score: Number($("score").value) }); showFiltered(); });
  $("inliers").addEventListener("change", () => { viewer.setFilter({ inliersOnly: $("inliers").checked }); showFiltered(); });
  $("mix").addEventListener("input", () => {
    $("mix-value").textContent = $("mix").value;
    overlay.setMix(Number($("mix").value) / 100);
  });
  for (const mode of document.querySelectorAll("[name=mode]")) mode.addEventListener("change", showMode);
  $("zoom-in").addEventListener("click", () => viewer.zoom(1.25));
  $("zoom-out").addEventListener("click", () => viewer.zoom(0.8));
  $("fit").addEventListener("click", () => viewer.fit());
  $("viewer").addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() === "i") $("inliers").click();
  });
  $("copy").addEventListener("click", () => copy($("curl").textContent, $("curl")));
  $("copy-link").addEventListener("click", () => copy(optionsLink(state.sample)));
  const save = (accept, name) => saveAs(accept, name).catch(showProblem);
  $("save-png").addEventListener("click", () => save("image/png", "matches.png"));
  $("save-json").addEventListener("click", () => save("application/json", "matches.json"));
  $("save-npz").addEventListener("click", () => save("application/x-npz", "matches.npz"));
}

async function copy(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied");
  } catch {
    if (shown) getSelection().selectAllChildren(shown);
    say(shown ? "Press Ctrl+C to copy" : text);
  }
}

function switchTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
}

async function start() {
  $("problem").hidden = true;
  try {
    await Promise.all([loadModels(), loadLimits()]);
    restoreOptions();
    showModelText();
    $("curl").textContent = curlText();
    const sample = new URLSearchParams(location.search).get("sample");
    if (sample && isSample(sample) && !areChosen()) await choose(() => chooseSample(sample));
  } catch (problem) {
    showProblem(problem);
  }
}

startViews();
startCollections();
listenToImages();
listenToOptions();
listenToResult();
$("theme").addEventListener("click", switchTheme);
$("curl").textContent = curlText();
start();
