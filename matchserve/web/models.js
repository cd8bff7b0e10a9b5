// The menu of models: what each is for, and how many correct matches it finds, by its card.

import { $ } from "./dom.js";
import { DEFAULTS } from "./options.js";
import { getJson } from "./service.js";

const BENCHMARK = "Eight Oxford sequences, 40 pairs";
const texts = new Map();

export async function loadModels() {
  const { models, default: preferred } = await getJson("/v1/models");
  DEFAULTS.model = preferred;
  const reference = models.find((model) => model.name === preferred);
  $("model").replaceChildren(...models.map((model) => {
    texts.set(model.name, description(model));
    const option = new Option(label(model, reference), model.name, false, model.name === preferred);
    option.disabled = !model.ready;
    return option;
  }));
  showModelText();
}

function label(model, reference) {
  if (!model.ready) return `${model.name} (not ready)`;
  const name = model.name === reference?.name ? `${model.name} (default)` : model.name;
  const text = [model.purpose, comparison(model, reference)].filter(Boolean).join(", ");
  return text ? `${name}: ${text}` : name;
}

// Correct matches on the benchmark of the cards, compared with the default model.
function comparison(model, reference) {
  const [correct, usual] = [correctOf(model, reference), correctOf(reference, reference)];
  if (!correct || !usual || Math.abs(correct / usual - 1) < 0.01) return "";
  const percent = Math.round(100 * (correct / usual - 1));
  return `${percent > 0 ? "+" : "−"}${Math.abs(percent)} % correct matches`;
}

function correctOf(model, reference) {
  const own = model?.metrics?.[BENCHMARK]?.figures ?? reference?.metrics?.[BENCHMARK]?.figures;
  return own?.[model?.name]?.correct ?? null;
}

function description(model) {
  if (!model.ready) return model.error ?? "";
  const size = model.kind === "binary" ? `${model.dim} bits` : `${model.dim} floats`;
  const keypoints = model.detector?.is_default ? " Keypoints of a learned detector." : "";
  return `${size} per keypoint. ${model.method}${keypoints}`;
}

export function showModelText() {
  $("model-text").textContent = texts.get($("model").value) ?? "";
}
