// The numbers of a result, its verdict, the time by stage, and problems.

import { $, say } from "./dom.js";

const STAGES = ["cache", "decode", "detect", "crop", "infer", "describe", "match", "verify"];
const STAGE_COLOURS = { cache: "#8d99a8", decode: "#5b8def", detect: "#12a683", crop: "#8ad0ff", infer: "#b57bee", describe: "#ffb000", match: "#ff7a59", verify: "#e0559a" };
const NUMBERS = ["verdict", "probability", "inliers", "matches", "keypoints", "time"];

// What the user can do about an error, by its code.
const ADVICE = {
  unsupported_format: "Please choose JPEG, PNG or WebP photographs.",
  corrupt_image: "The file seems damaged or cut off. Try to open and save it again.",
  image_too_large: "The photograph is too large. Tick “Reduce photographs that are too large”, or choose a smaller “Longest side”.",
  image_too_small: "Please choose a larger image.",
  payload_too_large: "The two files together are too large. Tick “Reduce photographs that are too large”.",
  empty_image: "The file is empty.",
  overloaded: "The server is busy. Please try again in a moment.",
  rate_limited: "You have sent too many requests. Please wait a moment and try again.",
  deadline_exceeded: "This took too long. Try fewer keypoints or a smaller “Longest side”.",
  unauthorized: "This server requires an API key. Enter it under Options.",
  unknown_model: "This model is no longer available. Please choose another.",
};

export function showProblem(problem) {
  say("");
  const isOurs = problem && typeof problem.code === "string";
  $("problem-title").textContent = isOurs ? (ADVICE[problem.code] ?? problem.title) : "The server could not be reached.";
  $("problem-text").textContent = isOurs ? problem.detail : "Check that it is running, and try again.";
  $("problem-id").textContent = isOurs ? `${problem.code}, request ${problem.request_id}` : "";
  $("problem").hidden = false;
  if (problem?.code === "unauthorized") $("key-field").hidden = false;
}

export function clearNumbers() {
  for (const name of NUMBERS) number(name, name === "probability" ? "" : "–");
  $("timing").replaceChildren();
  $("shown").textContent = "";
  $("legend").hidden = true;
  for (const name of ["save-png", "save-json", "save-npz"]) $(name).disabled = true;
}

// How far the matches can be trusted: "trusted", "unchecked" (no geometry) or "doubtful".
export function trustOf({ same_scene: p, geometry }) {
  if (geometry.kind === "none") return "unchecked";
  return p !== null && p < 0.5 ? "doubtful" : "trusted";
}

export function showNumbers(result) {
  $("problem").hidden = true;
  for (const name of ["save-png", "save-json", "save-npz"]) $(name).disabled = false;
  const trust = trustOf(result), { text, kind, probability } = verdict(result);
  number("verdict", text, kind);
  number("probability", probability);
  number("inliers", trust === "trusted" ? result.geometry.inliers : "–");
  number("matches", result.matches.length);
  number("keypoints", `${result.keypoints0.length} + ${result.keypoints1.length}`);
  number("time", `${Math.round(result.timings_ms.total)} ms`);
  const counts = trust === "trusted" ? `${result.geometry.inliers} inliers of ` : "";
  $("viewer").setAttribute("aria-label", `${text}: ${counts}${result.matches.length} matches`);
  showTimings(result.timings_ms);
}

function verdict({ same_scene: p, geometry }) {
  if (p === null) {
    // Without a calibration there is no probability, however many inliers there are.
    return { text: geometry.kind === "none" ? "Not checked" : "Not calibrated", kind: "", probability: "" };
  }
  const probability = `, p = ${Math.min(Math.max(p, 0.01), 0.99).toFixed(2)}`;
  return p >= 0.5 ? { text: "Same scene", kind: "yes", probability } : { text: "Not the same scene", kind: "no", probability };
}

function number(name, text, kind = "") {
  $(`n-${name}`).textContent = text;
  $(`n-${name}`).className = kind;
}

function showTimings(timings) {
  const parts = STAGES.filter((stage) => timings[stage] > 0.05);
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

export function showLegend(trust, filterName) {
  $("legend").hidden = false;
  for (const item of $("legend").children) item.hidden = item.dataset.legend !== trust;
  $("legend-name").textContent = $("legend-name-unchecked").textContent = filterName;
}
