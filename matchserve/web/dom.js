// Access to elements of the page by their id.

export const $ = (id) => document.getElementById(id);

export function say(text) {
  $("status").textContent = text;
}
