// The views of the page: an element with data-view is shown while its name is the fragment of the
// address (#name), and the link with the same data-tab is marked. The first view is the default.

export function startViews() {
  addEventListener("hashchange", showView);
  showView();
}

function showView() {
  const views = [...document.querySelectorAll("[data-view]")];
  const name = location.hash.slice(1).split("/")[0];
  const shown = views.find((view) => view.dataset.view === name) ?? views[0];
  for (const view of views) view.hidden = view !== shown;
  for (const tab of document.querySelectorAll("[data-tab]")) {
    const isCurrent = tab.dataset.tab === shown.dataset.view;
    if (isCurrent) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
}
