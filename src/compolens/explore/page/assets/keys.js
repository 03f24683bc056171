// Arrow keys: left and right go to the episode before and after. Not while something is being typed or a slider moved.
document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, textarea, select, [role=slider], [role=listbox], [role=combobox], .js-plotly-plot")) return;
  const button = { ArrowLeft: "go-previous", ArrowRight: "go-next" }[event.key];
  if (button) document.getElementById(button)?.click();
});
