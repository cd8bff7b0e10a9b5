// The view of collections: a folder in, a job, its view graph, any pair, and files to download.

import { $ } from "./dom.js";
import { Graph } from "./graph.js";
import { cancelJob, followJob, hasEnded, listJobs, startJob } from "./jobs.js";
import { getJson, request } from "./service.js";
import { chosenFiles, collectionName, droppedFiles, upload } from "./upload.js";
import { Viewer } from "./viewer.js";

const STAGES = { describe: "Describing images", pair: "Choosing pairs", match: "Matching pairs", refine: "Refining points", export: "Writing files", map: "Reconstructing" };
const MAX_LISTED = 500;

let files = [], notUploaded = [], job = null, graph = null, abort = null, shown = 0;

const drawing = new Graph($("graph"), { onPair: showPair, onImage: showPairsOf });
const viewer = new Viewer($("pair-viewer"), () => {});

function showFiles(found, folder) {
  files = found;
  if (folder && !$("collection-name").value) $("collection-name").value = collectionName(folder);
  const megabytes = found.reduce((sum, [, file]) => sum + file.size, 0) / 1e6;
  $("folder-text").textContent = found.length ? `${found.length} images, ${megabytes.toFixed(1)} MB` : "No JPEG, PNG or WebP images there";
  $("start-job").disabled = !found.length;
}

async function start() {
  if (!$("collection-form").reportValidity()) return;
  const collection = $("collection-name").value;
  await attemptJob(async (signal) => {
    setBusy(true);
    job = null;
    notUploaded = await upload(collection, files, (done, total) => showProgress("Uploading images", done, total), signal);
    if (notUploaded.length === files.length) throw { detail: `No image was accepted: ${notUploaded.join(", ")}` };
    job = await startJob({
      kind: $("job-kind").value, collection, pairs: $("job-pairs").value,
      max_keypoints: Number($("job-keypoints").value), exports: ["colmap"],
    });
    await refreshJobs();
    await follow(signal);
  });
}

async function follow(signal) {
  setBusy(true);
  showProgress(job.state === "queued" ? "Waiting" : "Starting", 0, 0);
  await followJob(job.id, (kind, data) => {
    if (kind === "progress") showProgress(STAGES[data.stage] ?? data.stage, data.done, data.total, data.eta_s);
    else if (kind === "queued") showProgress("Waiting", 0, 0);
    else if (kind === "running") {
      showProgress("Starting", 0, 0);
      refreshJobs().catch(() => {}); // only the text of the list; the next event shows more
    }
  }, signal);
  job = await getJson(`/v1/jobs/${job.id}`);
  await refreshJobs();
  await showJob();
}

async function showJob() {
  clearJob();
  const texts = { succeeded: "Done", failed: `Failed: ${job.error?.detail ?? ""}`, cancelled: "Cancelled; the next job continues there" };
  $("job-status").textContent = texts[job.state] ?? job.state;
  showDownloads();
  const has = (name) => job.results.some((file) => file.name === name);
  if (has("report.json")) showReport(await getJson(fileUrl("report.json")));
  if (!has("graph.json")) return;
  graph = await getJson(fileUrl("graph.json"));
  $("graph-empty").hidden = graph.images.length > 0;
  drawing.show(graph);
  listPairs(graph.pairs);
  if (graph.pairs.length) await showPair(graph.pairs[0][0], graph.pairs[0][1]);
}

function clearJob() {
  graph = null;
  drawing.show(null);
  viewer.show([], null);
  $("pair-list").replaceChildren();
  $("downloads").replaceChildren();
  $("pair-text").textContent = "";
  for (const cell of document.querySelectorAll("#report-numbers dd")) cell.textContent = "–";
  $("report-notes").hidden = true;
  $("graph-empty").hidden = false;
  $("collection-problem").hidden = true;
}

const fileUrl = (name) => job.results.find((file) => file.name === name).url;

function showReport(report) {
  const notes = [
    ["Not uploaded", notUploaded],
    ["Not used", Object.entries(report.refused).map(([name, code]) => `${name} (${code})`)],
    ["In no 3D model", report.unregistered ?? []],
  ].filter(([, names]) => names.length);
  $("report-notes").textContent = notes.map(([title, names]) => `${title}: ${names.join(", ")}`).join(". ");
  $("report-notes").hidden = !notes.length;
  const [model] = report.models;
  const set = (name, text) => { $(`r-${name}`).textContent = text; };
  set("registered", model ? `${model.registered} of ${report.images}` : `– of ${report.images}`);
  set("pairs", `${report.pairs_verified} of ${report.pairs_matched}`);
  set("points", model ? model.points.toLocaleString("en") : "–");
  set("track", model ? model.track_length.toFixed(2) : "–");
  set("error", model ? `${model.error_px.toFixed(2)} px` : "–");
}

function showDownloads() {
  $("downloads").replaceChildren(...job.results.map((file) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet";
    button.textContent = `${file.name}, ${size(file.bytes)}`;
    button.addEventListener("click", () => attempt(() => download(file)));
    return button;
  }));
}

const size = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

async function download(file) {
  const link = document.createElement("a");
  link.download = file.name;
  link.href = file.url;
  // Without an API key the browser downloads itself, and can continue a broken download.
  if ($("key").value) link.href = URL.createObjectURL(await (await request("GET", file.url)).blob());
  link.click();
}

// Pairs as rows of the graph's file: image 0, image 1, matches, inliers, is verified.
function listPairs(pairs) {
  const options = pairs.slice(0, MAX_LISTED).map(([a, b, , inliers, isVerified]) => {
    const option = document.createElement("option");
    option.value = `${a}-${b}`;
    option.textContent = `${graph.images[a].name} – ${graph.images[b].name}: ${inliers}${isVerified ? "" : " (not verified)"}`;
    return option;
  });
  $("pair-list").replaceChildren(...options);
}

function showPairsOf(number) {
  const pairs = graph.pairs.filter(([a, b]) => a === number || b === number);
  listPairs(pairs);
  $("all-pairs").hidden = false;
  $("pair-text").textContent = `${pairs.length} pairs of ${graph.images[number].name}`;
  if (pairs.length) showPair(pairs[0][0], pairs[0][1]);
}

async function showPair(a, b) {
  const mine = ++shown;
  drawing.mark(a, b);
  if (![...$("pair-list").options].some((option) => option.value === `${a}-${b}`)) listPairs(graph.pairs);
  $("pair-list").value = `${a}-${b}`;
  await attempt(async () => {
    const names = [graph.images[a].name, graph.images[b].name];
    const query = new URLSearchParams({ image0: names[0], image1: names[1] });
    const [pair, ...images] = await Promise.all([getJson(`/v1/jobs/${job.id}/pair?${query}`), ...names.map(loadImage)]);
    if (mine !== shown) return; // another pair was chosen meanwhile
    const result = {
      ...pair, matches: pair.points0, scores: pair.confidence ?? pair.points0.map(() => 1),
      refined: pair.points0.map(() => false),
    };
    viewer.show(images, result, pair.is_verified ? "trusted" : "doubtful");
    viewer.setFilter({ score: 0, inliersOnly: pair.is_verified });
    const inliers = pair.inliers.filter(Boolean).length;
    $("pair-text").textContent = `${pair.points0.length} matches, ${inliers} inliers${pair.is_verified ? "" : ", not verified"}`;
    $("pair-viewer").setAttribute("aria-label", `${names.join(" and ")}: ${$("pair-text").textContent}`);
  });
}

// Coordinates are those of the raster as it is stored, so EXIF must not turn the image.
async function loadImage(name) {
  const response = await request("GET", `/v1/jobs/${job.id}/image?${new URLSearchParams({ name })}`);
  return createImageBitmap(await response.blob(), { imageOrientation: "none" });
}

function showProgress(text, done, total, eta) {
  const bar = $("job-progress");
  if (total) { bar.max = total; bar.value = done; } else bar.removeAttribute("value");
  const left = eta > 1 ? `, ${Math.ceil(eta)} s left` : "";
  $("job-status").textContent = total ? `${text}: ${done} of ${total}${left}` : text;
}

function setBusy(is) {
  $("job-progress").hidden = $("cancel-job").hidden = !is;
  $("start-job").disabled = is || !files.length;
}

async function refreshJobs() {
  const jobs = await listJobs();
  const options = jobs.map((item) => {
    const option = document.createElement("option");
    option.value = item.id;
    option.textContent = `${item.request.collection ?? item.request.source}: ${item.kind === "reconstruct" ? "reconstruct" : "match"}, ${item.state}`;
    return option;
  });
  $("job-list").replaceChildren(...options);
  $("job-field").hidden = !jobs.length;
  if (job) $("job-list").value = job.id;
  return jobs;
}

async function openJob(id) {
  await attemptJob(async (signal) => {
    job = await getJson(`/v1/jobs/${id}`);
    notUploaded = []; // of another job
    clearJob();
    await (hasEnded(job) ? showJob() : follow(signal));
  });
}

async function cancel() {
  if (job && !hasEnded(job)) await attempt(() => cancelJob(job.id));
  else abort?.abort();
}

// Run work and show its problem, if there is one.
async function attempt(work) {
  try {
    $("collection-problem").hidden = true;
    await work();
  } catch (problem) {
    if (problem?.name === "AbortError") return;
    $("collection-problem").hidden = false;
    $("collection-problem").textContent = problem?.detail ?? String(problem);
  }
}

// Upload or follow a job; another upload or job is given up first.
async function attemptJob(work) {
  abort?.abort();
  const mine = abort = new AbortController();
  await attempt(() => work(mine.signal));
  if (abort === mine) setBusy(false);
}

function listen() {
  const drop = $("folder-drop");
  $("folder").addEventListener("change", (event) => {
    const [first] = event.target.files;
    showFiles(chosenFiles(event.target.files), first?.webkitRelativePath.split("/")[0] ?? "");
  });
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  // Anywhere in this view: a drop outside would otherwise start a match of two images.
  $("collections").addEventListener("drop", async (event) => {
    event.preventDefault();
    event.stopPropagation();
    drop.classList.remove("over");
    const { files: found, folder } = await droppedFiles(event.dataTransfer.items);
    showFiles(found, folder);
  });
  $("collection-form").addEventListener("submit", (event) => { event.preventDefault(); start(); });
  $("cancel-job").addEventListener("click", cancel);
  $("job-list").addEventListener("change", () => openJob($("job-list").value));
  $("pair-list").addEventListener("change", () => showPair(...$("pair-list").value.split("-").map(Number)));
  $("all-pairs").addEventListener("click", () => { listPairs(graph.pairs); $("all-pairs").hidden = true; });
  addEventListener("hashchange", enter);
}

// The jobs are loaded when the view is opened, not with the page.
async function enter() {
  if (!location.hash.startsWith("#collections")) return;
  await attempt(async () => {
    const { collections, limits } = await getJson("/info");
    $("no-collections").hidden = collections;
    $("collection-controls").disabled = !collections;
    const keypoints = $("job-keypoints");
    keypoints.max = limits.max_keypoints;
    keypoints.value = Math.min(keypoints.value, limits.max_keypoints);
    if (!collections) return;
    const jobs = await refreshJobs();
    if (!job && jobs.length) await openJob(jobs[0].id);
  });
}

export function startCollections() {
  listen();
  enter();
}
