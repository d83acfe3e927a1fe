// DOM helpers, number formats, colors, the tooltip. Text is inserted as text nodes: a client's name is never markup.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "css") Object.assign(node.style, value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// ---- number formats
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
const percent = (value, digits = 1) => (known(value) ? `${(100 * value).toFixed(digits)} %` : "–");
const minus = (text) => text.replace("-", "−");
const points = (value, digits = 1) =>
  known(value) ? minus(`${value > 0 ? "+" : ""}${(100 * value).toFixed(digits)}`) : "–";
// Scores and gains in the headline metric of the task: a fraction in percent and points, another number as it is.
const metric = () => DATA.headline.metric.replaceAll("_", " ");
const score = (value, digits = 1) => (DATA.headline.percent ? percent(value, digits) : plain(value));
const gap = (value, digits = 1) =>
  DATA.headline.percent ? points(value, digits) : known(value) && value > 0 ? `+${plain(value)}` : plain(value);
const gapUnit = () => (DATA.headline.percent ? " points" : "");
const direction = () => (DATA.headline.higher_is_better ? 1 : -1);
const plain = (value) => (known(value) ? minus(String(Number(value.toPrecision(4)))) : "–");
const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en") : "–");
function bytes(value) {
  if (!known(value)) return "–";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000) return `${unit === "B" || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} TB`;
}
function duration(seconds) {
  if (!known(seconds)) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(seconds < 600 ? 1 : 0)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}
const count = (number, one, many) => `${whole(number)} ${number === 1 ? one : many || `${one}s`}`;
const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);
function deviation(values) {
  if (values.length < 2) return null;
  const middle = mean(values);
  return Math.sqrt(values.reduce((sum, v) => sum + (v - middle) ** 2, 0) / (values.length - 1));
}

// ---- scales
function scale(low, high, from, to) {
  const width = high - low || 1;
  const at = (value) => from + ((value - low) / width) * (to - from);
  at.back = (pixel) => low + ((pixel - from) / (to - from)) * width;
  return at;
}
function ticks(low, high, wanted = 5, wholeNumbers = false) {
  const rough = Math.max((high - low || 1) / wanted, wholeNumbers ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(rough));
  const steps = wholeNumbers ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
  const step = steps.map((m) => m * power).find((s) => s >= rough);
  const out = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step)
    out.push(Number(v.toPrecision(12)));
  return out;
}

// ---- colors: based on the color-blind safe palette of Okabe and Ito, darker or lighter by theme
const COLORS = {
  light: ["#0072b2", "#d55e00", "#009e73", "#a8518a", "#b07d00", "#3a9bd9", "#6b4fa0", "#5f6b2d", "#8c2d2d", "#2f7f8f"],
  dark: ["#56a9e8", "#f08a4b", "#2fc79b", "#dd93c0", "#e6b93c", "#8fd0f7", "#b39ddb", "#b5c26a", "#e58a8a", "#6cc7d6"],
};
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "5 5", "1 4", "12 4"];
const theme = () => document.documentElement.dataset.theme;
const color = (index) => COLORS[theme()][((index % 10) + 10) % 10];
const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const NEUTRAL = () => (theme() === "dark" ? "#7b8594" : "#8a929d");
// A method has the same color everywhere. Local training is gray.
function methodColor(index) {
  if (DATA.methods[index].name === DATA.reference) return NEUTRAL();
  const before = DATA.methods.slice(0, index).filter((m) => m.name !== DATA.reference).length;
  return color(before);
}
const methodDash = (index) =>
  DATA.methods[index].name === DATA.reference ? "3 3" : DASHES[Math.floor(index / 8) % DASHES.length];
const RAMPS = {
  light: [
    [246, 249, 252],
    [198, 221, 240],
    [107, 174, 214],
    [33, 113, 181],
    [8, 48, 107],
  ],
  dark: [
    [32, 38, 47],
    [33, 68, 102],
    [39, 117, 168],
    [96, 177, 222],
    [224, 243, 255],
  ],
};
function ramp(share) {
  const stops = RAMPS[theme()];
  const position = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(position));
  return stops[low].map((c, i) => Math.round(c + (position - low) * (stops[low + 1][i] - c)));
}
const rgb = ([r, g, b]) => `rgb(${r},${g},${b})`;
const hexRgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const onRamp = (share) => ((theme() === "dark") !== share > 0.55 ? "#ffffff" : "#16191d");
const rampBar = () =>
  el("span", {
    class: "ramp",
    css: { background: `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map((s) => rgb(ramp(s))).join(",")})` },
  });

// ---- the tooltip, and the same words for screen readers
const tip = document.getElementById("tip");
let openedAt = [0, 0], // scroll position of the page when the tooltip was shown
  clearMarks = null; // removes what the shown element has highlighted
function showTip(content, x, y, clear = null) {
  if (clearMarks !== clear) clearMarks?.();
  clearMarks = clear;
  openedAt = [scrollX, scrollY];
  tip.replaceChildren(...[content].flat());
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${y + height + 24 > innerHeight ? Math.max(6, y - height - 12) : y + 14}px`;
}
function hideTip() {
  tip.hidden = true;
  clearMarks?.();
  clearMarks = null;
}
const say = (text) => {
  document.getElementById("said").textContent = text;
};
// The scroll event comes a frame late: focus may scroll the page, and the next key opens a tooltip before the event.
addEventListener(
  "scroll",
  () => {
    if (scrollX !== openedAt[0] || scrollY !== openedAt[1]) hideTip();
  },
  { passive: true },
);
addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
});

// When the page scrolls or changes under a resting pointer, browsers send pointer events although nothing moved. Such
// an event must not close a tooltip that the keyboard opened. Only screen coordinates tell: the others move with the
// page. The position is kept after all handlers of an event have run, since enter, leave and move share it.
let pointer = [NaN, NaN];
const moved = (event) => event.screenX !== pointer[0] || event.screenY !== pointer[1];
for (const kind of ["pointermove", "pointerdown"])
  addEventListener(kind, (event) => {
    pointer = [event.screenX, event.screenY];
  });
// The tooltip of a touch stays until the next touch.
addEventListener("pointerdown", hideTip, { capture: true });
// Shows something while the pointer is on a node. `show` gets the event.
function pointed(node, show) {
  node.addEventListener("pointermove", (event) => {
    if (moved(event)) show(event);
  });
  node.addEventListener("pointerdown", show);
  node.addEventListener("pointerleave", (event) => {
    if (moved(event)) hideTip();
  });
  return node;
}

const rows = (pairs) =>
  el(
    "table",
    {},
    el(
      "tbody",
      {},
      pairs.filter(Boolean).map(([k, v]) => el("tr", {}, el("td", {}, k), el("td", {}, v))),
    ),
  );

// A client's name, data and labels.
function clientTip(federation, client, more) {
  const labels = federation.labels && federation.labels[client];
  const group = federation.group && federation.group[client];
  return [
    el("b", {}, federation.names[client]),
    rows([
      federation.train && ["training examples", whole(federation.train[client])],
      known(group) && ["hidden group", String(group)],
      ...(more || []),
    ]),
    labels ? labelBars(labels, federation) : null,
  ].filter(Boolean);
}
const shortened = (name, room) => (name.length > room ? `${name.slice(0, room - 1)}…` : name);
// What a class is called: by its name in the data, or else by its number.
const labelName = (federation, k, room = Infinity) => shortened(federation.classes?.[k] ?? String(k), room);
function labelBars(labels, federation) {
  const width = 190,
    height = 34,
    most = Math.max(...labels, 1),
    step = width / labels.length;
  return svg(
    "svg",
    { width, height: height + 14, role: "img", "aria-label": `examples by label: ${labels.map((n, k) => `${labelName(federation, k)} ${n}`).join(", ")}` },
    labels.map((n, i) =>
      svg("rect", {
        x: i * step + 0.5,
        y: height - (n / most) * height,
        width: Math.max(1, step - 1),
        height: (n / most) * height,
        fill: token("accent"),
      }),
    ),
    svg("line", { x1: 0, x2: width, y1: height, y2: height, class: "axis" }),
    labels.length <= 20
      ? labels.map((_, i) =>
          svg(
            "text",
            { x: (i + 0.5) * step, y: height + 12, "text-anchor": "middle", "font-size": 10 },
            labelName(federation, i, Math.max(2, Math.floor(step / 6))),
          ),
        )
      : null,
  );
}

// ---- parts of panels
// A control is redrawn when it is used. Its replacement gets the focus, for keyboard users.
function acting(action) {
  return (event) => {
    const { dataset } = event.currentTarget,
      section = event.currentTarget.closest("section").id;
    action(event);
    document.querySelector(`#${section} [data-control="${dataset.control}"]`)?.focus({ preventScroll: true });
  };
}
function choice(label, options, current, pick) {
  return el(
    "span",
    { class: "choice", role: "group", "aria-label": label },
    options.map(([value, text, swatch]) =>
      el(
        "button",
        {
          type: "button",
          "aria-pressed": String(value === current),
          onclick: acting(() => pick(value)),
          "data-control": `${label} ${value}`,
        },
        swatch ? el("span", { class: "swatch", css: { background: swatch } }) : null,
        text,
      ),
    ),
  );
}
function selectBox(label, options, current, pick) {
  return el(
    "label",
    {},
    label,
    el(
      "select",
      { "data-control": label, onchange: acting((event) => pick(event.target.value)) },
      options.map(([value, text]) => el("option", { value, selected: value === current }, text)),
    ),
  );
}
const checkBox = (label, current, pick) =>
  el(
    "label",
    {},
    el("input", {
      type: "checkbox",
      "data-control": label,
      checked: current,
      onchange: acting((event) => pick(event.target.checked)),
    }),
    label,
  );
function panel(width, title, note, ...content) {
  return el(
    "figure",
    { class: `panel ${width}` },
    el("h3", {}, title),
    note ? el("p", { class: "note" }, note) : null,
    content,
  );
}
// Buttons that save a table, as it is shown, as CSV or as LaTeX (booktabs).
function savers(table) {
  const clean = (cell) => cell.textContent.replaceAll("\u200b", "").replaceAll("−", "-").replace(/ [↑↓]$/, "").trim();
  const rows = () => [...table.rows].map((row) => [...row.cells].map(clean));
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const escapes = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "–": "--" };
  const greek = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega";
  [..."αβγδεζηθικλμνξπρστυφχψω"].forEach((c, i) => (escapes[c] = `$\\${greek.split(" ")[i]}$`));
  const escaped = (text) =>
    text.replace(/[\\{}~^&%$#_±–αβγδεζηθικλμνξπρστυφχψω]/g, (c) => escapes[c] || `\\${c}`).replace(/(?<![\w.-])-(?=\d)/g, "$$-$$");
  const csv = () => rows().map((row) => row.map(quoted).join(",")).join("\n");
  const latex = () => {
    const [header, ...body] = rows().map((row) => `${row.map(escaped).join(" & ")} \\\\`);
    const columns = `l${"r".repeat(table.rows[0].cells.length - 1)}`;
    return [`\\begin{tabular}{${columns}}`, "\\toprule", header, "\\midrule", ...body, "\\bottomrule", "\\end{tabular}"].join("\n");
  };
  const saver = (name, file, text) =>
    el(
      "button",
      {
        type: "button",
        onclick: () => el("a", { download: file, href: URL.createObjectURL(new Blob([`${text()}\n`])) }).click(),
      },
      name,
    );
  return el("p", { class: "savers" }, saver("Save as CSV", "table.csv", csv), saver("Save as LaTeX", "table.tex", latex));
}
// The numbers behind a chart. The table is built when it is opened.
function numbers(header, makeRows) {
  const box = el("details", {}, el("summary", {}, "Show the numbers"));
  box.addEventListener("toggle", () => {
    if (!box.open || box.querySelector("table")) return;
    const table = el(
      "table",
      { class: "small" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          header.map((h) => el("th", { scope: "col" }, h)),
        ),
      ),
      el(
        "tbody",
        {},
        makeRows().map((row) =>
          el(
            "tr",
            {},
            row.map((cell) => el("td", {}, cell)),
          ),
        ),
      ),
    );
    box.append(el("div", { class: "wide" }, table), savers(table));
  });
  return box;
}
const legend = (items) =>
  el(
    "div",
    { class: "legend" },
    items.map(([text, tint, dash]) =>
      el(
        "span",
        {},
        dash
          ? svg(
              "svg",
              { class: "dash", width: 22, height: 4, "aria-hidden": "true" },
              svg("line", { x1: 0, x2: 22, y1: 2, y2: 2, stroke: tint, "stroke-width": 2, "stroke-dasharray": dash }),
            )
          : el("span", { class: "swatch", css: { background: tint } }),
        text,
      ),
    ),
  );
const missing = (text) => el("p", { class: "missing" }, text);
