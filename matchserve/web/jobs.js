// Jobs of the service: start one, follow its events, cancel it.

import { getJson, request } from "./service.js";

const ENDED = ["succeeded", "failed", "cancelled"];

export async function startJob(fields) {
  const response = await request("POST", "/v1/jobs", {
    body: JSON.stringify(fields), headers: { "Content-Type": "application/json" },
  });
  return response.json();
}

export const cancelJob = (id) => request("DELETE", `/v1/jobs/${id}`);
export const listJobs = async () => (await getJson("/v1/jobs?limit=50")).jobs;
export const hasEnded = (job) => ENDED.includes(job.state);

// Call `onEvent(kind, data)` for every event of a job until it ends; connect again if the stream
// breaks. An EventSource cannot send an API key.
export async function followJob(id, onEvent, signal) {
  for (let last = 0; ;) {
    try {
      for await (const event of events(id, last, signal)) {
        last = event.id;
        onEvent(event.kind, event.data);
        if (ENDED.includes(event.kind)) return;
      }
    } catch (problem) {
      // A network error is a TypeError; all else is an answer of the service, or the end.
      if (!(problem instanceof TypeError)) throw problem;
    }
    await new Promise((wake) => setTimeout(wake, 1000));
  }
}

async function* events(id, last, signal) {
  const response = await request("GET", `/v1/jobs/${id}/events`, { headers: { "Last-Event-ID": String(last) }, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s)));
      if (fields.id) yield { id: Number(fields.id), kind: fields.event, data: JSON.parse(fields.data) };
    }
  }
}
