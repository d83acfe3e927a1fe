"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const state = { tracks: new Set(data.tracks), key: "rank", down: false, filter: "", chosen: null };

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function mean(values) { return values.reduce((a, b) => a + b, 0) / values.length; }

// Ranks of one track; methods that tie share theirs.
function ranks(track) {
  const round = (v) => Math.round(v * 1e6);
  const all = data.methods.map((m) => round(m.accuracy[track]));
  return all.map((v) => 1 + all.filter((w) => w > v).length + (all.filter((w) => w === v).length - 1) / 2);
}

function lines() {
  const tracks = data.tracks.filter((t) => state.tracks.has(t));
  const each = tracks.map(ranks);
  return data.methods.map((m, i) => ({
    ...m, rank: mean(each.map((r) => r[i])), mean: mean(tracks.map((t) => m.accuracy[t])),
  }));
}

const percent = (v) => (v === null || v === undefined ? "–" : (100 * v).toFixed(1));
function columns() {
  return [
    ["method", "method", (m) => m.method, (m) => m.method],
    ["rank", "mean rank", (m) => m.rank, (m) => m.rank.toFixed(1)],
    ["mean", "mean %", (m) => m.mean, (m) => percent(m.mean)],
    ...data.tracks.map((t) => [t, `${t} %`, (m) => m.accuracy[t], (m) => percent(m.accuracy[t])]),
    ["worst", "worst 10 %", (m) => m.worst_decile, (m) => percent(m.worst_decile)],
    ["losers", "losers %", (m) => m.losers ?? -1, (m) => percent(m.losers)],
    ["sure", "sure losers", (m) => m.sure_losers ?? -1, (m) => m.sure_losers ?? "–"],
    ["above", "above fedavg-ft", (m) => m.above ?? -1, (m) => m.above ?? "–"],
    ["below", "below fedavg-ft", (m) => m.below ?? -1, (m) => m.below ?? "–"],
    ["megabytes", "MB a round and client", (m) => m.megabytes, (m) => m.megabytes.toFixed(3)],
    ["seconds", "seconds", (m) => m.seconds, (m) => m.seconds.toFixed(1)],
  ];
}

function drawTable(found) {
  const head = byId("board").tHead, body = byId("board").tBodies[0];
  const all = columns(), key = all.find((c) => c[0] === state.key)[2];
  const row = element("tr");
  for (const [name, title] of all) {
    const cell = element("th", undefined, { scope: "col" });
    if (name === state.key) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    const button = element("button", title, { type: "button" });
    button.addEventListener("click", () => {
      state.down = state.key === name ? !state.down : !["method", "rank", "losers", "sure", "below", "megabytes", "seconds"].includes(name);
      state.key = name;
      draw();
    });
    cell.append(button);
    row.append(cell);
  }
  head.replaceChildren(row);
  const order = found.filter((m) => m.method.includes(state.filter)).sort((a, b) => {
    const x = key(a), y = key(b);
    return (x < y ? -1 : x > y ? 1 : 0) * (state.down ? -1 : 1);
  });
  body.replaceChildren(...order.map((m) => {
    const line = element("tr", undefined, { class: m.method === state.chosen ? "chosen" : "" });
    line.append(...all.map(([, , , show]) => element("td", show(m))));
    line.addEventListener("click", () => { state.chosen = state.chosen === m.method ? null : m.method; draw(); });
    return line;
  }));
}

function svg(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function drawPareto(found) {
  const width = 900, height = 420, left = 60, bottom = 45;
  const cost = (m) => Math.log10(m.megabytes + 0.001);
  const low = Math.min(...found.map(cost)), high = Math.max(...found.map(cost)) + 1e-9;
  const worst = Math.min(...found.map((m) => m.mean)), best = Math.max(...found.map((m) => m.mean)) + 1e-9;
  const x = (m) => left + 15 + ((cost(m) - low) / (high - low || 1)) * (width - left - 40);
  const y = (v) => height - bottom - 10 - ((v - worst) / (best - worst || 1)) * (height - bottom - 30);
  const front = found.filter((m) => !found.some((o) => o !== m && o.megabytes <= m.megabytes && o.mean >= m.mean &&
    (o.megabytes < m.megabytes || o.mean > m.mean))).sort((a, b) => a.megabytes - b.megabytes);
  const parts = [
    svg("line", { class: "axis", x1: left, x2: width, y1: height - bottom, y2: height - bottom }),
    svg("line", { class: "axis", x1: left, x2: left, y1: 10, y2: height - bottom }),
    svg("text", { x: width / 2, y: height - 8, "text-anchor": "middle" }, "megabytes a round and client (logarithmic)"),
    svg("text", { x: 4, y: 20 }, `${percent(best)} %`),
    svg("text", { x: 4, y: height - bottom }, `${percent(worst)} %`),
    svg("path", { d: front.map((m, i) => `${i ? "L" : "M"}${x(m)} ${y(m.mean)}`).join("") }),
  ];
  for (const m of found) {
    const named = front.includes(m) || m.method === state.chosen;
    const dot = svg("circle", { cx: x(m), cy: y(m.mean), r: 5,
      class: m.method === state.chosen ? "chosen" : front.includes(m) ? "best" : "" });
    dot.append(svg("title", {}, `${m.method}: ${percent(m.mean)} %, ${m.megabytes.toFixed(3)} MB`));
    parts.push(dot);
    if (named) parts.push(svg("text", { x: x(m) + 7, y: y(m.mean) - 5 }, m.method));
  }
  byId("pareto").replaceChildren(...parts);
}

function draw() {
  const found = lines();
  drawTable(found);
  drawPareto(found);
}

byId("budget").textContent = data.budget + ".";
byId("words").textContent = data.words;
for (const track of data.tracks) {
  const box = element("input", undefined, { type: "checkbox" });
  box.checked = true;
  box.addEventListener("change", () => {
    if (box.checked) state.tracks.add(track); else state.tracks.delete(track);
    if (!state.tracks.size) { state.tracks.add(track); box.checked = true; }
    draw();
  });
  const label = element("label");
  label.append(box, ` ${track}`);
  byId("tracks").append(label);
}
byId("filter").addEventListener("input", (event) => { state.filter = event.target.value.trim(); draw(); });
const [header, rows] = data.winner_table;
byId("winners").tHead.append(element("tr"));
byId("winners").tHead.rows[0].append(...header.map((h) => element("th", h, { scope: "col" })));
for (const row of rows) {
  const line = element("tr");
  line.append(...row.map((cell) => element("td", cell)));
  byId("winners").tBodies[0].append(line);
}
if (data.failures.length) {
  byId("failures").append(element("h2", "Not ranked"), element("p", "A run failed or is missing:"), element("ul"));
  byId("failures").lastChild.append(...data.failures.map((f) => element("li", f)));
}
draw();
