// The relation view: who learns from whom in a round, as a graph of clients and as the mixing matrix.
const WEIGHT_SCALE = 10000; // weights are stored as integers; this one means 1

const federationOf = (method) => DATA.federations[method.runs[0].federation];
const sizeOf = (method) => federationOf(method).names.length;

// The latest entry of [[round, value], …] up to a round.
function upTo(entries, round) {
  let found = null;
  for (const entry of entries || []) {
    if (entry[0] <= round) found = entry;
    else break;
  }
  return found;
}
const exactly = (entries, round) => (entries || []).find((entry) => entry[0] === round) || null;

function frameAt(method, round) {
  if (!method.mixing) return null;
  return method.mixing.frames.reduce((best, f) => (f.round <= round ? f : best), method.mixing.frames[0]);
}
function partsOf(method) {
  return method.mixing ? [...new Set(method.mixing.frames.flatMap((f) => Object.keys(f.parts)))] : [];
}
// weight(i, j): the share of client i's next model that comes from client j
function weightsOf(method, frame, part) {
  const index = frame.parts[part] ?? Object.values(frame.parts)[0];
  const { rows: kept, of } = method.mixing.matrices[index];
  const weight = (i, j) => kept[of[i]][j] / WEIGHT_SCALE;
  weight.index = index;
  weight.size = of.length;
  return weight;
}

// Some methods renumber their clusters in each round. For the colors, a cluster keeps the number of the earlier cluster
// with which it shares most members.
const stableCache = new WeakMap();
function stableClusters(method) {
  const raw = method.facts.clusters;
  if (!raw) return null;
  if (stableCache.has(method)) return stableCache.get(method);
  const out = [];
  let before = null;
  for (const [round, labels] of raw) {
    const shared = new Map(),
      names = new Map();
    labels.forEach((label, c) => {
      if (label === null || label < 0) return;
      names.set(label, null);
      if (before && before[c] !== null) {
        const key = `${label}|${before[c]}`;
        shared.set(key, (shared.get(key) || 0) + 1);
      }
    });
    const taken = new Set();
    for (const [key] of [...shared].sort((a, b) => b[1] - a[1])) {
      const [label, old] = key.split("|").map(Number);
      if (names.get(label) === null && !taken.has(old)) {
        names.set(label, old);
        taken.add(old);
      }
    }
    for (const label of [...names.keys()].sort((a, b) => a - b))
      if (names.get(label) === null) {
        let name = before ? 0 : label;
        while (taken.has(name)) name++;
        names.set(label, name);
        taken.add(name);
      }
    const now = labels.map((label) => (label === null || label < 0 ? null : names.get(label)));
    // a client that did not take part keeps its last cluster
    before = now.map((name, c) => name ?? before?.[c] ?? null);
    out.push([round, now, labels]);
  }
  stableCache.set(method, out);
  return out;
}
const clustersAt = (method, round) => upTo(stableClusters(method), round)?.[1] || null;

// 1 minus the total variation distance of two clients' label distributions
const similarityCache = new WeakMap();
function similarity(federation) {
  if (!federation.labels || federation.labels.some((l) => !l)) return null;
  if (similarityCache.has(federation)) return similarityCache.get(federation);
  const shares = federation.labels.map((l) => {
      const sum = l.reduce((a, b) => a + b, 0) || 1;
      return l.map((n) => n / sum);
    }),
    n = shares.length;
  const table = new Float32Array(n * n);
  for (let i = 0; i < n; i++)
    for (let j = 0; j < n; j++)
      table[i * n + j] = 1 - shares[i].reduce((sum, p, k) => sum + Math.abs(p - shares[j][k]), 0) / 2;
  const similar = (i, j) => table[i * n + j];
  similarityCache.set(federation, similar);
  return similar;
}
const mainLabel = (labels) => labels.indexOf(Math.max(...labels));

// The order of the clients in matrices.
function orderOf(method, round) {
  const federation = federationOf(method),
    clusters = clustersAt(method, round),
    n = federation.names.length;
  const sizes = new Map();
  for (const name of clusters || []) sizes.set(name, (sizes.get(name) || 0) + 1);
  const keys = {
    cluster: (c) =>
      clusters && known(clusters[c]) && sizes.get(clusters[c]) > 1 ? clusters[c] : known(clusters?.[c]) ? 1e6 : 2e6, // single clients come last, then those without a cluster
    group: (c) => (federation.kin ? (federation.kin[c] ?? 1e6) : 0),
    label: (c) => (federation.labels?.[c] ? mainLabel(federation.labels[c]) : 0),
  };
  const by =
    { cluster: ["cluster", "group", "label"], group: ["group", "cluster", "label"], number: [] }[state.order] ||
    (clusters ? ["cluster", "group", "label"] : ["group", "label"]);
  return [...Array(n).keys()].sort((a, b) => by.reduce((d, key) => d || keys[key](a) - keys[key](b), 0) || a - b);
}
// What clients can be colored by: first the chosen one, or else the most informative one.
function coloring(method) {
  const federation = federationOf(method);
  const all = [
    method.facts.clusters && ["cluster", "cluster"],
    federation.kin && ["group", "hidden group"],
    federation.labels && ["label", "most frequent label"],
  ].filter(Boolean);
  return all.sort((a, b) => (b[0] === state.color) - (a[0] === state.color));
}
// There are ten colors. If there are more clusters, those of a single client are gray.
function clusterPaint(clusters) {
  const sizes = new Map();
  for (const name of clusters || []) sizes.set(name, (sizes.get(name) || 0) + 1);
  const many = sizes.size > 10;
  return (c) =>
    clusters && known(clusters[c]) && !(many && sizes.get(clusters[c]) === 1) ? color(clusters[c]) : NEUTRAL();
}
function nodeColor(method, round) {
  const federation = federationOf(method),
    clusters = clustersAt(method, round);
  const by = coloring(method)[0]?.[0];
  const source = { cluster: clusters, group: federation.kin, label: federation.labels?.map((l) => l && mainLabel(l)) }[
    by
  ];
  return by === "cluster"
    ? clusterPaint(clusters)
    : (c) => (source && known(source[c]) ? color(source[c]) : NEUTRAL());
}

// How much clients take from others, and how much of that comes from their own hidden group, or else how similar the
// sources' labels are to their own.
function kinship(method, frame, part) {
  const federation = federationOf(method),
    weight = weightsOf(method, frame, part),
    n = weight.size;
  const similar = federation.kin ? (i, j) => (federation.kin[i] === federation.kin[j] ? 1 : 0) : similarity(federation);
  if (!similar) return null;
  let borrowed = 0,
    kin = 0,
    chance = 0;
  for (let i = 0; i < n; i++)
    for (let j = 0; j < n; j++)
      if (i !== j) {
        const w = weight(i, j),
          a = similar(i, j);
        borrowed += w;
        kin += w * a;
        chance += a;
      }
  return {
    borrowed: borrowed / n,
    kin: borrowed > 1e-9 ? kin / borrowed : null,
    chance: n > 1 ? chance / (n * (n - 1)) : null,
  };
}

// ---- positions of the nodes
// Pairs of clients of whom one takes more than an even share from the other.
function strongLinks(weight) {
  const n = weight.size,
    even = 1 / n,
    both = [];
  let most = even;
  for (let i = 0; i < n; i++)
    for (let j = i + 1; j < n; j++) {
      const w = Math.max(weight(i, j), weight(j, i));
      if (w > even * 1.02) {
        both.push([i, j, w, w - even]);
        most = Math.max(most, w - even);
      }
    }
  return { pairs: both, most, even };
}
function spiral(n) {
  return [...Array(n).keys()].map((k) => {
    const r = 0.5 * Math.sqrt((k + 0.5) / n),
      a = k * 2.399963;
    return [0.5 + r * Math.cos(a), 0.5 + r * Math.sin(a)];
  });
}
function relaxed(start, links, steps) {
  const n = start.length,
    at = start.map((p) => [...p]),
    ideal = 0.72 / Math.sqrt(n);
  for (let step = 0; step < steps; step++) {
    const heat = 0.05 * (1 - step / steps) + 0.002,
      move = at.map(() => [0, 0]);
    for (let i = 0; i < n; i++)
      for (let j = i + 1; j < n; j++) {
        const dx = at[i][0] - at[j][0],
          dy = at[i][1] - at[j][1],
          d2 = dx * dx + dy * dy + 1e-6,
          push = (ideal * ideal) / d2;
        move[i][0] += dx * push;
        move[i][1] += dy * push;
        move[j][0] -= dx * push;
        move[j][1] -= dy * push;
      }
    for (const [i, j, strength] of links) {
      const dx = at[i][0] - at[j][0],
        dy = at[i][1] - at[j][1],
        force = (strength * Math.hypot(dx, dy)) / ideal;
      move[i][0] -= dx * force;
      move[i][1] -= dy * force;
      move[j][0] += dx * force;
      move[j][1] += dy * force;
    }
    for (let i = 0; i < n; i++) {
      move[i][0] += (0.5 - at[i][0]) * 0.8;
      move[i][1] += (0.5 - at[i][1]) * 0.8;
      const length = Math.hypot(...move[i]) || 1,
        far = Math.min(length, heat);
      at[i][0] += (move[i][0] / length) * far;
      at[i][1] += (move[i][1] / length) * far;
    }
  }
  return fitted(at);
}
function fitted(at) {
  const xs = at.map((p) => p[0]),
    ys = at.map((p) => p[1]);
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)],
    span = Math.max(x1 - x0, y1 - y0) || 1;
  return at.map(([x, y]) => [0.5 + (x - (x0 + x1) / 2) / span, 0.5 + (y - (y0 + y1) / 2) / span]);
}
// The layout of a matrix starts from the positions shown before, so that clients move and do not jump.
const positionCache = new WeakMap();
function positions(method, frame, part) {
  const n = sizeOf(method),
    cache = positionCache.get(method) || new Map();
  positionCache.set(method, cache);
  if (state.layout === "labels") {
    const similar = similarity(federationOf(method));
    if (similar && !cache.has("labels")) {
      const links = [];
      for (let i = 0; i < n; i++)
        for (let j = i + 1; j < n; j++) if (similar(i, j) > 0.05) links.push([i, j, similar(i, j) ** 2 / Math.sqrt(n)]);
      cache.set("labels", relaxed(spiral(n), links, 220));
    }
    return cache.get("labels") || spiral(n);
  }
  const weight = weightsOf(method, frame, part);
  if (!cache.has(weight.index)) {
    const { pairs, most } = strongLinks(weight),
      load = new Float64Array(n);
    for (const [i, j, , beyond] of pairs) {
      load[i] += beyond / most;
      load[j] += beyond / most;
    }
    const ease = Math.min(1, 1.5 / Math.max(...load, 1e-9)); // or a large group would collapse into one point
    const links = pairs.map(([i, j, , beyond]) => [i, j, (beyond / most) * ease]);
    const before = lastPositions.get(method.name)?.length === n ? lastPositions.get(method.name) : null;
    cache.set(weight.index, relaxed(before || spiral(n), links, before ? 80 : 240));
  }
  return cache.get(weight.index);
}

// ---- drawing
let flight = 0;
const lastPositions = new Map();
function drawGraph(container, method, frame, part, round) {
  const federation = federationOf(method),
    n = federation.names.length,
    weight = weightsOf(method, frame, part);
  const width = Math.max(240, container.clientWidth || 420),
    height = Math.min(width, 460),
    pad = 22;
  const goal = positions(method, frame, part),
    old = lastPositions.get(method.name);
  const paint = nodeColor(method, round),
    most = Math.max(...(federation.train || [1]), 1);
  const radius = (c) =>
    Math.max(2.5, Math.min(12, 62 / Math.sqrt(n)) * Math.sqrt((federation.train?.[c] ?? most) / most));
  const { pairs, most: beyond, even } = strongLinks(weight);
  const kept = pairs
    .sort((a, b) => b[3] - a[3])
    .slice(0, Math.min(5 * n, 420))
    .reverse();
  const chart = svg("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    tabindex: 0,
    role: "img",
    class: "graph",
    "aria-label": `Graph of ${n} clients in round ${frame.round}: in ${kept.length} of ${(n * (n - 1)) / 2} pairs, one takes more than an even share from the other. Use the arrow keys to step through the clients.`,
  });
  const lines = kept.map(([i, j, , extra]) =>
    svg("line", {
      stroke: token("ink"),
      opacity: Math.max(0.07, Math.min(0.6, (0.6 * extra) / beyond)),
      "stroke-width": 0.7 + 2.6 * (extra / beyond),
    }),
  );
  const own = svg("g", {});
  const dots = federation.names.map((name, c) =>
    svg("circle", {
      r: radius(c),
      fill: paint(c),
      stroke: token("panel"),
      "stroke-width": 1.5,
      class: "node",
      "data-client": c,
    }),
  );
  chart.append(...lines, own, ...dots);
  let at = goal;
  const px = (p) => [pad + p[0] * (width - 2 * pad), pad + p[1] * (height - 2 * pad)];
  function settle(share) {
    at = goal.map((p, c) =>
      old && share < 1 ? [old[c][0] + (p[0] - old[c][0]) * share, old[c][1] + (p[1] - old[c][1]) * share] : p,
    );
    kept.forEach(([i, j], k) => {
      const [a, b] = [px(at[i]), px(at[j])];
      fill(lines[k], { x1: a[0], y1: a[1], x2: b[0], y2: b[1] }, []);
    });
    dots.forEach((dot, c) => {
      const [x, y] = px(at[c]);
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", y);
    });
  }
  function highlight(c) {
    own.replaceChildren();
    for (const line of lines) line.style.opacity = c === null ? "" : 0.05;
    if (c === null) return;
    const sources = [...Array(n).keys()]
      .filter((j) => j !== c && weight(c, j) > 0)
      .sort((a, b) => weight(c, b) - weight(c, a))
      .slice(0, 12);
    const top = Math.max(...sources.map((j) => weight(c, j)), 1e-9);
    for (const j of sources) {
      const [a, b] = [px(at[c]), px(at[j])];
      own.append(
        svg("line", {
          x1: a[0],
          y1: a[1],
          x2: b[0],
          y2: b[1],
          stroke: token("accent"),
          "stroke-width": 0.8 + 3.6 * (weight(c, j) / top),
          opacity: 0.8,
        }),
      );
    }
  }
  function tipOf(c) {
    const sources = [...Array(n).keys()]
        .filter((j) => j !== c && weight(c, j) > 0)
        .sort((a, b) => weight(c, b) - weight(c, a)),
      cluster = upTo(stableClusters(method), round)?.[2][c];
    const accuracy = upToScore(method, c, round);
    return clientTip(federation, c, [
      known(cluster) && ["cluster", String(cluster)],
      known(accuracy) && [`personal ${metric()}`, score(accuracy)],
      ["keeps of its own model", percent(weight(c, c))],
      ...sources.slice(0, 4).map((j) => [`learns from ${federation.names[j]}`, percent(weight(c, j))]),
    ]);
  }
  const clear = () => highlight(null);
  function visit(c, x, y) {
    const content = tipOf(c);
    showTip(content, x, y, clear);
    highlight(c);
    say(content.map((node) => node.textContent).join(" "));
  }
  dots.forEach((dot, c) => pointed(dot, (event) => visit(c, event.clientX, event.clientY)));
  let here = -1;
  chart.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    here = (here + move + n) % n;
    const box = chart.getBoundingClientRect(),
      [x, y] = px(at[here]);
    visit(here, box.left + x, box.top + y);
  });
  chart.addEventListener("blur", hideTip);
  container.replaceChildren(chart);
  chart.highlight = highlight;
  cancelAnimationFrame(flight);
  if (old && old.length === n && !matchMedia("(prefers-reduced-motion: reduce)").matches) {
    const begin = performance.now();
    const step = (now) => {
      const share = Math.min(1, (now - begin) / 380);
      settle(1 - (1 - share) ** 3);
      if (share < 1) flight = requestAnimationFrame(step);
    };
    settle(0);
    flight = requestAnimationFrame(step);
  } else settle(1);
  lastPositions.set(method.name, goal);
  return { chart, links: kept.length, even };
}
function upToScore(method, client, round) {
  const { rounds, personal } = method.clients;
  for (let k = rounds.findLastIndex((r) => r <= round); k >= 0; k--)
    if (known(personal[k][client])) return personal[k][client];
  return null;
}

function drawMatrix(container, method, frame, part, round, graph) {
  const federation = federationOf(method),
    order = orderOf(method, round),
    weight = weightsOf(method, frame, part),
    n = order.length,
    paint = nodeColor(method, round);
  let most = 0,
    least = 1;
  for (let i = 0; i < n; i++)
    for (let j = 0; j < n; j++)
      if (i !== j || n === 1) {
        most = Math.max(most, weight(i, j));
        least = Math.min(least, weight(i, j));
      }
  if (most === 0) for (let i = 0; i < n; i++) most = Math.max(most, weight(i, i));
  const from = state.stretch ? least : 0,
    span = most - from || 1;
  const canvas = heatMap(container, {
    rows: n,
    columns: n,
    value: (i, j) => (weight(order[i], order[j]) - from) / span,
    gap: 1,
    strip: (i) => paint(order[i]),
    stripAcross: (j) => paint(order[j]),
    hover: (i, j) => matrixTip(federation, weight, order[i], order[j]),
    onCell: (i) => graph && graph.chart.highlight(i === null ? null : order[i]),
    label: `Mixing matrix of round ${frame.round}, ${n} by ${n} clients. The largest share taken from another client is ${percent(most)}.`,
  });
  canvas.dataset.round = frame.round;
  canvas.id = "matrix";
  return { from, most };
}
function matrixTip(federation, weight, i, j) {
  const similar = similarity(federation),
    kin = federation.kin ? (federation.kin[i] === federation.kin[j] ? "same" : "different") : null;
  const what = i === j ? "keeps of its own model" : `takes from ${federation.names[j]}`;
  return [
    el("b", {}, federation.names[i]),
    rows([
      [what, percent(weight(i, j), 2)],
      i !== j && similar && ["label similarity", percent(similar(i, j), 0)],
      i !== j && kin && ["hidden group", kin],
    ]),
  ];
}
function drawTruth(container, method, round) {
  const federation = federationOf(method),
    order = orderOf(method, round),
    n = order.length,
    similar = similarity(federation);
  const groups = federation.kin && state.truth !== "labels";
  const value = groups
    ? (i, j) => (federation.kin[order[i]] === federation.kin[order[j]] ? 0.75 : 0)
    : (i, j) => similar(order[i], order[j]);
  const paint = (c) => (federation.kin && known(federation.kin[c]) ? color(federation.kin[c]) : NEUTRAL());
  heatMap(container, {
    rows: n,
    columns: n,
    value,
    gap: 1,
    strip: federation.kin ? (i) => paint(order[i]) : null,
    stripAcross: federation.kin ? (j) => paint(order[j]) : null,
    label: groups ? "Which clients are in the same hidden group" : "How similar the clients' label distributions are",
    hover: (i, j) => {
      const [a, b] = [order[i], order[j]];
      return [
        el("b", {}, `${federation.names[a]} and ${federation.names[b]}`),
        rows([
          similar && ["label similarity", percent(similar(a, b), 0)],
          federation.kin && ["hidden groups", `${federation.kin[a]} and ${federation.kin[b]}`],
        ]),
      ];
    },
  });
}

// ---- the section
let timer = null;
function stopPlaying() {
  clearInterval(timer);
  timer = null;
  const button = document.getElementById("play");
  if (button) button.textContent = "▶ Play";
}
function renderRelation() {
  const body = document.querySelector("#relation .body"),
    method = DATA.methods[state.method],
    federation = federationOf(method);
  const top = Math.max(1, method.runs[0].rounds),
    round = state.round === null ? top : Math.min(state.round, top);
  const parts = partsOf(method),
    part = parts.includes(state.part) ? state.part : parts[0];
  const output = el("output", { for: "round", id: "round-said" });
  const slider = el("input", {
    type: "range",
    id: "round",
    min: 1,
    max: top,
    value: round,
    "aria-label": "Round",
    oninput: (event) => {
      stopPlaying();
      goTo(Number(event.target.value));
    },
  });
  const play = el(
    "button",
    {
      type: "button",
      id: "play",
      onclick: () => {
        if (timer) {
          stopPlaying();
          return;
        }
        if (Number(slider.value) >= top) {
          slider.value = 1;
          goTo(1);
        }
        play.textContent = "❚❚ Pause";
        const pace = Math.max(160, Math.min(700, 12000 / top));
        timer = setInterval(() => {
          const next = Number(slider.value) + 1;
          if (next > top) {
            stopPlaying();
            return;
          }
          slider.value = next;
          goTo(next);
        }, pace);
      },
    },
    timer ? "❚❚ Pause" : "▶ Play",
  );
  const content = el("div", { class: "panels" });
  body.replaceChildren(
    el(
      "p",
      { class: "note" },
      "Each client's next model is a weighted mix of the models that clients sent. Move the slider to see how the mix changes over the rounds. Point at a client or a cell for details.",
    ),
    el("div", { class: "controls" }, methodChoice()),
    el(
      "div",
      { class: "roundbar" },
      play,
      slider,
      output,
      parts.length > 1
        ? selectBox(
            "part of the model",
            parts.map((p) => [p, p]),
            part,
            (v) => {
              state.part = v;
              renderRelation();
            },
          )
        : null,
    ),
    content,
  );
  function goTo(now) {
    state.round = now >= top ? null : now;
    draw(now);
  }
  function draw(now) {
    output.textContent = `Round ${now} of ${method.runs[0].planned}`;
    const held = content.offsetHeight;
    content.style.minHeight = `${held}px`;
    content.replaceChildren();
    relationPanels(content, method, now, part);
    methodPanels(content, method, now);
    content.style.minHeight = "";
  }
  draw(round);
}
function relationPanels(content, method, round, part) {
  const federation = federationOf(method),
    clusters = clustersAt(method, round);
  if (!method.mixing) {
    content.append(
      panel(
        "",
        "No mixing matrix",
        null,
        missing(
          `${method.name} recorded no mixing matrix: either its merge is not a mix of the clients' models, or there are too many clients.`,
        ),
      ),
    );
    return;
  }
  const frame = frameAt(method, round);
  const colors = coloring(method);
  const graphBox = el("div", {}),
    matrixBox = el("div", {}),
    truthBox = el("div", {}),
    kinBox = el("div", {});
  const again = (key) => (value) => {
    state[key] = value;
    renderRelation();
  };
  const graphNote = el("p", { class: "note" }),
    matrixNote = el("p", { class: "note" });
  const shownAt =
    frame.round === round ? "" : ` This is the matrix of round ${frame.round}, the latest one stored.`;
  const orders = [
    ["", clusters ? "cluster" : federation.kin ? "hidden group" : "most frequent label"],
    clusters && federation.kin && ["group", "hidden group"],
    ["number", "client number"],
  ].filter(Boolean);
  content.append(
    el(
      "div",
      { class: "controls all" },
      colors.length ? selectBox("color by", colors, colors[0][0], again("color")) : null,
      federation.labels
        ? selectBox(
            "layout",
            [
              ["mixing", "by mixing weights"],
              ["labels", "by label similarity"],
            ],
            state.layout,
            again("layout"),
          )
        : null,
      selectBox("order by", orders, orders.some(([v]) => v === state.order) ? state.order : "", again("order")),
      federation.kin && federation.labels
        ? selectBox(
            "ground truth",
            [
              ["groups", "hidden groups"],
              ["labels", "label similarity"],
            ],
            state.truth,
            again("truth"),
          )
        : null,
      checkBox("stretch colors to the range", state.stretch, again("stretch")),
    ),
    panel("w4", "Clients", null, graphBox, graphNote),
    panel(
      "w4",
      "Mixing matrix",
      null,
      matrixBox,
      matrixNote,
      numbers(["learner", ...federation.names], () => {
        const weight = weightsOf(method, frame, part);
        return federation.names.map((name, i) => [name, ...federation.names.map((_, j) => percent(weight(i, j), 2))]);
      }),
    ),
    panel(
      "w4",
      federation.kin && state.truth !== "labels" ? "Ground truth: hidden groups" : "Ground truth: label similarity",
      null,
      federation.kin || similarity(federation)
        ? truthBox
        : missing("The history has neither labels nor groups of the clients."),
      kinBox,
    ),
  );
  const graph = drawGraph(graphBox, method, frame, part, round);
  const { from, most } = drawMatrix(matrixBox, method, frame, part, round, graph);
  const self = mean([...Array(sizeOf(method)).keys()].map((i) => weightsOf(method, frame, part)(i, i)));
  graphNote.textContent =
    self > 0.9999
      ? "In this round every client keeps its own model."
      : graph.links
        ? `A dot is a client; its area is its number of training examples. A line joins two clients if one takes more than an even share (${percent(graph.even)}) from the other${graph.links >= 420 ? "; the strongest 420 are shown" : ""}.`
        : "No client takes more than an even share from another: all learn equally from all.";
  matrixNote.append(
    el("span", { class: "scale" }, percent(from, 1), rampBar(), percent(most, 1)),
    `Row: learner. Column: source. On average, a client keeps ${percent(self)} of its own model.${shownAt}`,
  );
  if (federation.kin || similarity(federation)) drawTruth(truthBox, method, round);
  const kin = kinship(method, frame, part);
  if (kin && known(kin.kin))
    kinBox.append(
      el(
        "p",
        { class: "note" },
        federation.kin
          ? `Of what clients take from others, ${percent(kin.kin, 0)} comes from their own hidden group. With an even mix it would be ${percent(kin.chance, 0)}.`
          : `The labels of a client's sources are on average ${percent(kin.kin, 0)} similar to its own. With an even mix it would be ${percent(kin.chance, 0)}.`,
      ),
    );
  const rand = exactly(method.facts.rand_index, round);
  if (rand && known(rand[1]) && federation.kin)
    kinBox.append(el("p", { class: "note" }, `Rand index of the clusters against the hidden groups: ${rand[1].toFixed(2)}.`));
}
