// The page of the API: Swagger UI with the document that the page names, in the colors of the playground. The key is that
// of the playground, where the server asks for keys.

const THEME = "geartrain-theme"; // shared with the playground
const THEMES = ["auto", "light", "dark"];
const ICONS = {
  auto: "M8 2a6 6 0 1 0 0 12zM8 2a6 6 0 0 1 0 12",
  light: "M8 10.8a2.8 2.8 0 1 0 0-5.6 2.8 2.8 0 0 0 0 5.6zM8 1.2v1.4M8 13.4v1.4M1.2 8h1.4M13.4 8h1.4M3.2 3.2l1 1M11.8 11.8l1 1M3.2 12.8l1-1M11.8 4.2l1-1",
  dark: "M13.4 9.7A5.8 5.8 0 0 1 6.3 2.6a5.8 5.8 0 1 0 7.1 7.1z",
};
const METHODS = ["post", "put", "get"];
// Paths from the first to the last of a model; what is in none of these lines stands before the health check.
const PATHS = [/\/predictions$/, /\/predictions\//, /\/trainings/, /\/(infer|generate|generate_stream)$/];
const LAST = [/\/health-check$/, /\/openapi\.json$/, /\/docs$/, /\/shutdown$/, /^\/$/];

const key = sessionStorage.getItem("geartrain-key");
const place = document.getElementById("swagger-ui");
const control = document.getElementById("theme");

function rank(operation) {
  const path = operation.get("path");
  const early = PATHS.findIndex((pattern) => pattern.test(path));
  const late = LAST.findIndex((pattern) => pattern.test(path));
  const at = early >= 0 ? early : late >= 0 ? PATHS.length + 1 + late : PATHS.length;
  return at * 10 + METHODS.indexOf(operation.get("method"));
}

function setTheme(theme) {
  const chosen = THEMES.includes(theme) ? theme : "auto";
  document.documentElement.dataset.theme = chosen;
  control.querySelector("path").setAttribute("d", ICONS[chosen]);
  control.setAttribute("aria-label", `Theme: ${chosen}`);
}

// All models are folded but the first, unless the address names an operation.
function openFirst() {
  if (location.hash.length > 2) return;
  const first = ui.specSelectors.taggedOperations().keySeq().first();
  if (first) ui.layoutActions.show(["operations-tag", first], true);
}

// A link within a button cannot be reached, and the text of the button is its best label.
function plainSummaries({ React }) {
  new MutationObserver(() => {
    for (const each of place.querySelectorAll(".opblock-summary-control[aria-label]")) each.removeAttribute("aria-label");
    for (const each of place.querySelectorAll("pre:not([tabindex])")) each.tabIndex = 0; // what scrolls can be reached
  }).observe(place, { childList: true, subtree: true });
  return { wrapComponents: { DeepLink: () => ({ text }) => React.createElement("span", {}, text) } };
}

control.addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  localStorage.setItem(THEME, next);
  setTheme(next);
});
setTheme(localStorage.getItem(THEME) ?? "auto");

const ui = SwaggerUIBundle({
  url: place.dataset.document,
  domNode: place,
  deepLinking: true,
  docExpansion: "none",
  operationsSorter: (one, other) => rank(one) - rank(other),
  onComplete: openFirst,
  plugins: [plainSummaries],
  validatorUrl: null,
  requestInterceptor: (request) => {
    if (key) request.headers.Authorization = `Bearer ${key}`;
    return request;
  },
});
