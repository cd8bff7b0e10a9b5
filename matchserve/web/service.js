// Requests to the service, and the same request as a curl command.

import { $ } from "./dom.js";
import { sentFiles } from "./images.js";
import { changedOptions } from "./options.js";

function keyHeader() {
  return $("key").value ? { "X-API-Key": $("key").value } : {};
}

// Return the response, or throw the problem that the service describes.
async function checked(response) {
  if (response.ok) return response;
  throw await response.json();
}

export async function getJson(path) {
  return (await request("GET", path)).json();
}

export async function request(method, path, { headers = {}, ...options } = {}) {
  return checked(await fetch(path, { method, headers: { ...headers, ...keyHeader() }, ...options }));
}

export async function requestMatch({ accept = "application/json", signal, extra = {} } = {}) {
  const form = new FormData();
  sentFiles().forEach((file, side) => form.append(`image${side}`, file, file.name));
  const fields = { ...Object.fromEntries(changedOptions()), ...extra };
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  const headers = { Accept: accept, ...keyHeader() };
  return checked(await fetch("/v1/match", { method: "POST", body: form, headers, signal }));
}

export function curlText() {
  const quote = (text) => (/^[\w.@=/:+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const part = (name, value) => `-F ${quote(`${name}=${value}`)}`;
  const names = sentFiles().map((file, side) => part(`image${side}`, `@${file?.path ?? file?.name ?? "ab"[side] + ".jpg"}`));
  const options = changedOptions().map(([name, value]) => part(name, value));
  const key = $("key").value ? ["-H 'X-API-Key: …'"] : [];
  return ["curl", ...key, ...names, ...options, `${location.origin}/v1/match`].join(" ");
}

export async function saveAs(accept, name) {
  const blob = await (await requestMatch({ accept })).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
