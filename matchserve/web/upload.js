// A folder of images: read from a drop or a file input, and sent to a collection of the service.

import { request } from "./service.js";

const ACCEPTED = /\.(jpe?g|png|webp)$/i;
const PARALLEL = 3;
const MAX_TRIES = 8;
// Problems of one image; the others are sent all the same.
const IMAGE_PROBLEMS = new Set(["empty_image", "invalid_image", "unsupported_format", "corrupt_image", "image_too_large", "image_too_small"]);

// Return [name, file] for every image of a file input; names are relative to the chosen folder.
export function chosenFiles(files) {
  return images([...files].map((file) => [(file.webkitRelativePath || file.name).replace(/^[^/]*\//, ""), file]));
}

// Return [name, file] for every image below dropped folders, and the name of the first folder.
export async function droppedFiles(items) {
  const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const found = [];
  for (const entry of entries) await walk(entry, entry.isDirectory && entries.length === 1 ? "" : entry.name, found);
  return { files: images(found), folder: entries.find((entry) => entry.isDirectory)?.name ?? "" };
}

async function walk(entry, name, found) {
  if (entry.isFile) {
    found.push([name || entry.name, await new Promise((done, fail) => entry.file(done, fail))]);
    return;
  }
  const reader = entry.createReader();
  // A reader returns a part of the entries at a time, and none at the end.
  for (;;) {
    const part = await new Promise((done, fail) => reader.readEntries(done, fail));
    if (!part.length) return;
    for (const child of part) await walk(child, name ? `${name}/${child.name}` : child.name, found);
  }
}

function images(found) {
  return found.filter(([name]) => ACCEPTED.test(name) && !name.split("/").some((part) => part.startsWith(".")));
}

export function collectionName(folder) {
  const name = folder.normalize("NFKD").replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[^A-Za-z0-9]+/, "");
  return name.slice(0, 64) || "photographs";
}

// Send all images, a few at a time; `onProgress` gets the number of those that are done. Return
// "name (code)" for each image that the service refused.
export async function upload(collection, files, onProgress, signal) {
  await request("PUT", `/v1/collections/${collection}`, { signal });
  const waiting = [...files];
  const refused = [];
  let done = 0;
  const work = async () => {
    for (let next = waiting.shift(); next; next = waiting.shift()) {
      try {
        await send(collection, next, signal);
      } catch (problem) {
        if (!IMAGE_PROBLEMS.has(problem.code)) throw problem;
        refused.push(`${next[0]} (${problem.code})`);
      }
      onProgress(++done, files.length);
    }
  };
  await Promise.all(Array.from({ length: PARALLEL }, work));
  return refused.sort();
}

async function send(collection, [name, file], signal) {
  const path = name.split("/").map(encodeURIComponent).join("/");
  for (let tries = 1; ; tries++) {
    try {
      await request("PUT", `/v1/collections/${collection}/images/${path}?replace=true`, {
        body: file, headers: { "Content-Type": "application/octet-stream" }, signal,
      });
      return;
    } catch (problem) {
      const isTemporary = problem instanceof TypeError || (problem.status === 429 && problem.code !== "quota_exceeded");
      if (!isTemporary || tries === MAX_TRIES) throw { ...problem, detail: `${name}: ${problem.detail ?? "the service cannot be reached"}` };
      await new Promise((wake) => setTimeout(wake, 500 * tries));
    }
  }
}
