// Arrow keys: left and right go to the episode before and after; with Shift, up and down go to the layer before and after, left
// and right to the head before and after. Not while something is being typed or a slider moved.
const TYPED = "input:not([type=checkbox], [type=radio]), textarea, select, [role=slider], [role=combobox], .dash-dropdown-content, .js-plotly-plot";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest(TYPED)) return;
  if (!event.shiftKey && event.target.closest("[type=radio]")) return;
  const plain = { ArrowLeft: "go-previous", ArrowRight: "go-next" };
  const shifted = {
    ArrowUp: "go-previous-layer", ArrowDown: "go-next-layer", ArrowLeft: "go-previous-head", ArrowRight: "go-next-head",
  };
  const button = (event.shiftKey ? shifted : plain)[event.key];
  if (!button) return;
  event.preventDefault();
  document.getElementById(button)?.click();
});
// Sliders carry the name that stands before them, for screen readers.
new MutationObserver((changes) => {
  if (!changes.some((change) => change.target.closest?.("#parts") || change.target.querySelector?.(":scope > #parts"))) return;
  for (const part of document.querySelectorAll("#parts .part")) {
    const name = part.querySelector("span")?.innerText || "";
    for (const at of part.querySelectorAll("[role=slider], input")) if (!at.hasAttribute("aria-label")) at.setAttribute("aria-label", name);
  }
}).observe(document, { childList: true, subtree: true });
