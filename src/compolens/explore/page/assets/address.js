// The address decides what the page shows. These two functions run in the browser, since the reader waits for them.
const compolens = { followed: null, moving: null, panels: {} };
// `followed`: the address that the page follows. `moving`: the address that a slider asks for, until it is drawn.
// `panels`: name of a panel -> the settings that it shows.

// What of an address a panel depends on: the settings without those that are of no concern to it.
function concern(search, others) {
  const settings = new URLSearchParams(search || "");
  for (const name of others) settings.delete(name);
  return { search: settings.toString(), narrow: window.innerWidth < 720 };
}

const shows = (name, asked) =>
  compolens.panels[name]?.search === asked.search && compolens.panels[name]?.narrow === asked.narrow;

window.dash_clientside = Object.assign({}, window.dash_clientside, {
  compolens: {
    // A new address: the controls follow it, and those panels ask the server that depend on what has changed.
    // Below 720 pixels the panels of a figure stand below one another.
    follow(search, depends) {
      const nothing = window.dash_clientside.no_update, drawn = compolens.moving?.drawn && compolens.moving.search === search;
      compolens.followed = search || "";
      compolens.moving = null;
      const asked = Object.entries(depends).map(([name, others]) => {
        const one = concern(search, others);
        if (shows(name, one)) return nothing;
        compolens.panels[name] = one;
        return one;
      });
      return [drawn ? nothing : { search, at: performance.now() }, ...asked];
    },

    // A part of the code is moved: its edit is asked for and drawn at once; the address follows. The page's own bookkeeping
    // of an address takes longer than the edit.
    move(values, shown, depends) {
      const nothing = window.dash_clientside.no_update;
      const [told] = window.dash_clientside.callback_context.triggered;
      if (!told || !shown || shown.length !== values.length) return nothing;
      const part = JSON.parse(told.prop_id.replace(/\.value$/, "")).part, value = values[part];
      const settings = new URLSearchParams(compolens.moving?.search || compolens.followed || "");
      const parts = new Map((settings.get("parts") || "").split(",").filter(Boolean).map((one) => one.split(":")));
      const before = parts.has(String(part)) ? Number(parts.get(String(part))) : shown[part];
      if (value === null || value === undefined || Math.abs(value - before) < 1e-3) return nothing;
      parts.set(String(part), String(Number(value.toPrecision(6))));
      settings.set("parts", [...parts].sort((a, b) => a[0] - b[0]).map((one) => one.join(":")).join(","));
      const search = "?" + settings.toString().replaceAll("%3A", ":").replaceAll("%2C", ",");
      draw({ search, from: compolens.followed, facts: values.slice() }, concern(search, depends.code));
      return nothing;
    },
  },
});

async function draw(move, asked) {
  const set = window.dash_clientside.set_props;
  compolens.moving = move;
  try {
    const answer = await fetch("edit", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked) });
    const view = answer.ok ? await answer.json() : null;
    if (compolens.moving !== move || compolens.followed !== move.from) return; // the reader went on meanwhile
    if (view) {
      const graph = document.querySelector("#panel-code .js-plotly-plot");
      await Plotly.react(graph, view.figure.data, { ...view.figure.layout, template: graph.layout.template });
      compolens.panels.code = asked;
      move.drawn = true;
      for (const name of ["number", "caption", "python"]) set({ [name]: "code" }, { children: view[name] });
    }
  } catch (error) {
    console.warn(error); // the address says the rest: its panel asks again
  }
  set("facts", { data: move.facts });
  set("address", { search: move.search });
}
