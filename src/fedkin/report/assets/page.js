// The page: what is selected, its sections, the theme, and updates while a run goes on.
let DATA = JSON.parse(document.getElementById("data").textContent);
const state = {
  method: 0,
  round: null,
  part: null,
  color: "",
  layout: "mixing",
  order: "",
  truth: "groups",
  stretch: false,
  metric: "personal",
  axis: "round",
  each: false,
  reference: null,
  sort: null,
};

// Hidden groups are only informative if clients share them. If nearly every client is its own group, use labels.
function prepared(data) {
  for (const federation of data.federations)
    federation.kin =
      federation.group && new Set(federation.group).size <= federation.group.length / 2 ? federation.group : null;
  return data;
}
prepared(DATA);

const methodChoice = () =>
  DATA.methods.length > 1
    ? choice(
        "Method",
        DATA.methods.map((m, i) => [i, m.name, methodColor(i)]),
        state.method,
        (i) => {
          state.method = i;
          stopPlaying();
          renderAll(["result", "learning", "relation", "benefit"]);
        },
      )
    : null;
// Runs that count: the finished ones, if there are any.
function counted(method) {
  const done = method.runs.filter((run) => run.finished);
  return done.length ? done : method.runs;
}
const over = (method, read) => counted(method).map(read).filter(known);
const headline = (method, key, field = "mean") => mean(over(method, (run) => run[key]?.[field]));
const ahead = (a, b) =>
  direction() * (headline(a, "personal") ?? -direction() * Infinity) >
  direction() * (headline(b, "personal") ?? -direction() * Infinity);
const spread = (method, key) => deviation(over(method, (run) => run[key]?.mean));

// Gains over a reference, for the same client and seed.
function gains(method, reference) {
  const out = [];
  for (const run of counted(method)) {
    const other = reference && counted(reference).find((r) => r.federation === run.federation && r.seed === run.seed);
    if (!other?.last_personal || !run.last_personal) continue;
    run.last_personal.forEach((value, client) => {
      const base = other.last_personal[client];
      if (known(value) && known(base))
        out.push({ client, seed: run.seed, federation: run.federation, value, base, gain: direction() * (value - base) });
    });
  }
  return out.sort((a, b) => b.gain - a.gain);
}
const byName = (name) => DATA.methods.find((m) => m.name === name) || null;
const referenceOf = () => byName(state.reference) || byName(DATA.reference);
const LEVEL = 1e-9;

// ---- sections
const SECTIONS = {
  result: renderResult,
  learning: renderLearning,
  relation: renderRelation,
  benefit: renderBenefit,
  clients: renderClients,
  costs: renderCosts,
  made: renderMade,
};
function renderAll(which = Object.keys(SECTIONS)) {
  hideTip();
  document.getElementById("title").textContent = DATA.title;
  document
    .getElementById("setting")
    .replaceChildren(...DATA.setting.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v))));
  for (const name of which) {
    try {
      SECTIONS[name]();
    } catch (error) {
      // a section that fails must not break the others
      console.error(error);
      document
        .querySelector(`#${name} .body`)
        .replaceChildren(missing(`This part could not be drawn: ${error.message}`));
    }
  }
}
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  document.getElementById("theme").setAttribute("aria-label", name === "dark" ? "Switch to light" : "Switch to dark");
}
const remembered = (() => {
  try {
    return localStorage.getItem("fedkin-theme");
  } catch {
    return null;
  }
})();
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
setTheme(remembered || (prefersDark.matches ? "dark" : "light"));
prefersDark.addEventListener("change", (event) => {
  setTheme(event.matches ? "dark" : "light");
  renderAll();
});
document.getElementById("theme").addEventListener("click", () => {
  setTheme(theme() === "dark" ? "light" : "dark");
  try {
    localStorage.setItem("fedkin-theme", theme());
  } catch {
    /* a page opened from a file may have no storage */
  }
  renderAll();
});
let width = innerWidth,
  waiting = null;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  clearTimeout(waiting);
  waiting = setTimeout(() => renderAll(), 120);
});
// first show the best method that has clusters, else the best one that has a mixing matrix and is not local training
const bestOf = (wanted) =>
  DATA.methods.filter(wanted).reduce((best, m) => (!best || ahead(m, best) ? m : best), null);
state.method = Math.max(
  0,
  DATA.methods.indexOf(bestOf((m) => m.facts.clusters) ?? bestOf((m) => m.mixing && m.name !== DATA.reference)),
);
renderAll();

// ---- live: keep asking the local server for new data, also after the end of the run, which may be started again
if (DATA.live) {
  const box = document.getElementById("live");
  const showStatus = (text, on) => {
    box.className = on ? "on" : "";
    box.replaceChildren(el("span", { class: "dot" }), text);
  };
  const showProgress = () => {
    if (DATA.reading) {
      showStatus(`reading the history: ${Math.floor(100 * DATA.reading)} %`, true);
      return;
    }
    const open = DATA.methods.find((m) => m.runs.some((r) => !r.finished)),
      run = open?.runs.find((r) => !r.finished);
    showStatus(
      run ? `${DATA.methods.length > 1 ? `${open.name}, ` : ""}round ${run.rounds} of ${run.planned}` : "finished",
      Boolean(run),
    );
  };
  let version = DATA.version,
    held = false; // the page does not change while the reader presses or points at something
  addEventListener("pointerdown", () => {
    held = true;
  });
  for (const end of ["pointerup", "pointercancel"])
    addEventListener(end, () => {
      held = false;
    });
  showProgress();
  (async function ask() {
    const begin = performance.now();
    if (held || !tip.hidden) {
      setTimeout(ask, 500);
      return;
    }
    try {
      const answer = await fetch(`data.json?since=${encodeURIComponent(version)}`, { cache: "no-store" });
      if (answer.status === 200) {
        const fresh = await answer.json();
        version = fresh.version;
        const name = DATA.methods[state.method]?.name,
          playing = Boolean(timer),
          focus = document.activeElement?.id;
        DATA = prepared(fresh);
        state.method = Math.max(
          0,
          DATA.methods.findIndex((m) => m.name === name),
        );
        // do not redraw sections with open tables, nor the relation view while it plays
        renderAll(
          Object.keys(SECTIONS).filter(
            (s) => !(playing && s === "relation") && !document.querySelector(`#${s} details[open]`),
          ),
        );
        if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
        showProgress();
      } else if (answer.status !== 204) showStatus(`the server answers ${answer.status}`, false);
      else showProgress();
    } catch {
      showStatus("fedkin watch does not answer; trying again", false);
    }
    setTimeout(ask, DATA.reading ? 0 : Math.max(1000, 4 * (performance.now() - begin)));
  })();
}
