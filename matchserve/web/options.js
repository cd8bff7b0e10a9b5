// The options of a match: read from the form, kept over a reload, and written into a link.

import { $ } from "./dom.js";

// Only what differs from these is sent, so that the curl line stays short. The model's default is
// set when the models are known.
export const DEFAULTS = {
  model: "", verify: "", max_keypoints: "2048", min_confidence: "0.6", threshold_px: "3",
  ratio: "", max_distance: "", max_side: "", upright: false,
};
const NAMES = Object.keys(DEFAULTS);
const STORED = "matchserve.options";

export function changedOptions() {
  return NAMES.map((name) => [name, value(name)]).filter(([name, v]) => v !== DEFAULTS[name] && v !== "");
}

function value(name) {
  const field = $(name);
  return field.type === "checkbox" ? field.checked : field.value;
}

function setValue(name, text) {
  const field = $(name);
  if (field.type === "checkbox") field.checked = text === true || text === "true";
  else field.value = text;
  // A model or a geometry that is not offered here leaves the menu empty.
  if (field.tagName === "SELECT" && field.selectedIndex < 0) field.value = DEFAULTS[name];
}

// The address has precedence over what was stored by the last visit.
export function restoreOptions() {
  const linked = Object.fromEntries(new URLSearchParams(location.search));
  const isLinked = NAMES.some((name) => name in linked);
  const kept = isLinked ? linked : stored();
  for (const name of NAMES) if (name in kept) setValue(name, kept[name]);
  if ("reduce" in kept) $("reduce").checked = String(kept.reduce) === "true";
  if (changedOptions().some(([name]) => $("more").contains($(name)))) $("more").open = true;
}

function stored() {
  try {
    const kept = JSON.parse(localStorage.getItem(STORED) ?? "{}");
    return kept && typeof kept === "object" ? kept : {};
  } catch {
    return {}; // damaged, or storage is not allowed
  }
}

export function storeOptions() {
  try {
    const kept = { ...Object.fromEntries(changedOptions()), reduce: $("reduce").checked };
    localStorage.setItem(STORED, JSON.stringify(kept));
  } catch { /* storage is not allowed: the options last as long as the page */ }
}

export function resetOptions() {
  for (const name of NAMES) setValue(name, DEFAULTS[name]);
  $("reduce").checked = true;
  try { localStorage.removeItem(STORED); } catch { /* storage is not allowed */ }
  if (location.search) history.replaceState(null, "", location.pathname + location.hash);
}

// The link never holds the API key.
export function optionsLink(sample) {
  const query = new URLSearchParams(changedOptions());
  if (sample) query.set("sample", sample);
  const text = query.toString();
  return `${location.origin}/${text ? `?${text}` : ""}`;
}

export function onOptionChange(listener) {
  for (const name of NAMES) $(name).addEventListener("change", listener);
}
