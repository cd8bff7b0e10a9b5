// The menu of models: which is faster and which finds more, by the figures in the models' cards.

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
  const words = [model.name === reference?.name ? "default" : "", ...comparison(model, reference)];
  const text = words.filter(Boolean).join(", ");
  return text ? `${model.name}: ${text}` : model.name;
}

// Compared with the default model: work for one patch, and correct matches on the benchmark.
function comparison(model, reference) {
  if (!reference || model.name === reference.name) return [];
  const words = [];
  const [work, usual] = [workOf(model), workOf(reference)];
  if (work && usual && work / usual > 1.5) words.push("slower");
  if (work === 0 && usual) words.push("fastest");
  const [correct, normal] = [correctOf(model, reference), correctOf(reference, reference)];
  if (correct && normal && Math.abs(correct / normal - 1) > 0.01) {
    const percent = Math.round(100 * (correct / normal - 1));
    words.push(`${percent > 0 ? "+" : "−"}${Math.abs(percent)} % correct matches`);
  }
  if (model.kind === "binary") words.push("smallest");
  return words;
}

// Millions of multiply-accumulate operations for one patch; 0 for a descriptor without a network.
function workOf(model) {
  if (!model.sha256) return 0;
  const found = /([\d.]+) MMAC/.exec(model.method ?? "");
  return found ? Number(found[1]) : null;
}

function correctOf(model, reference) {
  const own = model.metrics?.[BENCHMARK]?.figures ?? reference.metrics?.[BENCHMARK]?.figures;
  return own?.[model.name]?.correct ?? null;
}

function description(model) {
  if (!model.ready) return model.error ?? "";
  const size = model.kind === "binary" ? `${model.dim} bits` : `${model.dim} floats`;
  return `${model.method}; ${size} per keypoint`;
}

export function showModelText() {
  $("model-text").textContent = texts.get($("model").value) ?? "";
}
