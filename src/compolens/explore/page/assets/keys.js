// Arrow keys: left and right go to the episode before and after; with Shift, up and down go to the layer before and after, left
// and right to the head before and after. Not while something is being typed or a slider moved.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target.closest("input:not([type=checkbox]), textarea, select, [role=slider], [role=listbox], [role=combobox], .js-plotly-plot")) return;
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
new MutationObserver(() => {
  for (const part of document.querySelectorAll("#parts .part")) {
    const name = part.querySelector("span")?.innerText || "";
    for (const at of part.querySelectorAll("[role=slider], input")) if (!at.hasAttribute("aria-label")) at.setAttribute("aria-label", name);
  }
}).observe(document, { childList: true, subtree: true });
