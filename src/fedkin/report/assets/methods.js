// Panels for what a method reports itself. A panel appears if the history has its data.
const SHOWN_ELSEWHERE = new Set(["rand_index", "lost_round", "attention_nodes"]);

function methodPanels(content, method, round) {
  const facts = method.facts,
    shown = new Set(SHOWN_ELSEWHERE);
  const take = (...names) => names.forEach((name) => shown.add(name));
  kinPanel(content, method, round);
  partsPanel(content, method);
  if (facts.clusters) {
    clusterPanel(content, method, round);
    take("clusters");
  }
  if (facts.graph && facts.clusters) {
    cedarPanels(content, method, round);
    take("graph", "cosines", "graph_evenness", "centers");
  }
  if (facts.utilities || facts.phase) {
    pflicPanels(content, method, round);
    take("phase", "changes", "participation", "utilities", "mean_loss", "e_cal", "e_com");
  }
  if (method.class === "PFedGAT") {
    headsPanel(content, method, round);
    take("attention_heads", "attention_nodes");
  }
  if (facts.gamma && facts.layer_discrepancy) {
    dcpflPanels(content, method, round);
    take(
      "gamma",
      "loss",
      "radius",
      "rdp_end",
      "trial",
      "tree",
      "leaves",
      "discrepancy",
      "layer_discrepancy",
      "layer_period",
    );
  }
  scalarPanels(content, method, round, shown);
}

const chartBox = () => el("div", {});
// A chart needs its width, so its panel is added to the page first.
function lineFact(content, width, title, note, series, round, more = {}) {
  const box = chartBox();
  content.append(
    panel(width, title, note, series.length > 1 ? legend(series.map((s) => [s.name, s.color, s.dash])) : null, box),
  );
  lineChart(box, {
    series,
    height: 190,
    xLabel: "round",
    cursor: round,
    domain: [1, Math.max(2, DATA.methods[state.method].runs[0].rounds)],
    xFormat: String,
    wholeNumbers: true,
    label: title,
    names: false,
    ...more,
  });
}
const asSeries = (name, entries, index = 0) => ({
  name,
  color: index ? color(index) : token("accent"),
  points: (entries || []).filter((e) => known(e[1])),
});

function kinPanel(content, method, round) {
  if (!method.mixing || method.mixing.frames.length < 2) return;
  const federation = federationOf(method),
    part = partsOf(method).includes(state.part) ? state.part : partsOf(method)[0];
  const kin = method.mixing.frames.map((f) => [f.round, kinship(method, f, part)]).filter(([, k]) => k);
  if (!kin.length || kin.every(([, k]) => k.borrowed < 1e-6)) return;
  const rand = federation.kin && method.facts.rand_index;
  const series = [
    { name: "from other clients", color: NEUTRAL(), dash: "2 3", points: kin.map(([r, k]) => [r, k.borrowed]) },
    {
      name: federation.kin ? "of that, from its own group" : "label similarity of the sources",
      color: token("accent"),
      width: 2.5,
      points: kin.filter(([, k]) => known(k.kin)).map(([r, k]) => [r, k.kin]),
    },
    { name: "with an even mix", color: token("soft"), dash: "6 4", points: kin.map(([r, k]) => [r, k.chance]) },
    rand ? { name: "Rand index", color: color(1), points: rand.filter((e) => known(e[1])) } : null,
  ].filter(Boolean);
  lineFact(
    content,
    "w6",
    "Does it find similar clients?",
    federation.kin
      ? "The share of a client's model that comes from other clients, and how much of that comes from its own hidden group."
      : "The share of a client's model that comes from other clients, and how similar their labels are to its own.",
    series,
    round,
    { yFormat: (v) => percent(v, 0), zero: true, top: 1 },
  );
}

// How much each client's model relies on each of its parts, at the end.
function partsPanel(content, method) {
  const names = Object.keys(method.parts);
  if (!names.length) return;
  const clients = federationOf(method).names,
    shades = names.map((_, k) => color(k)),
    box = chartBox();
  content.append(
    panel(
      "w6",
      "What does each client rely on?",
      "The weight of each part of a client's model in its predictions, at the end of the run.",
      legend(names.map((name, k) => [name, shades[k]])),
      box,
    ),
  );
  const items = clients
    .map((name, c) => ({ name, parts: names.map((part) => method.parts[part][c] ?? 0) }))
    .filter((item) => item.parts.some((v) => v > 0));
  stackedBars(box, { items, parts: names, shades, format: (v) => percent(v, 0), label: "weights of the parts" });
}

function clusterPanel(content, method, round) {
  const history = stableClusters(method),
    federation = federationOf(method),
    rounds = method.runs[0].rounds,
    n = federation.names.length;
  // sort by the last grouping that is one: not all together, not all alone
  const last = (history.findLast(([, names]) => new Set(names).size > 1 && new Set(names).size < n) || history.at(-1))[1];
  const order = [...Array(n).keys()].sort(
    (a, b) => (last[a] ?? 1e6) - (last[b] ?? 1e6) || (federation.kin?.[a] ?? 0) - (federation.kin?.[b] ?? 0) || a - b,
  );
  const byRound = new Map(history.map((e) => [e[0], e]));
  const phase = method.facts.phase?.find((e) => e[1] === 2);
  const paints = new Map(history.map(([r, names]) => [r, clusterPaint(names)]));
  const box = chartBox();
  content.append(
    panel(
      "w6",
      method.class === "PFLIC" ? "Identities over rounds" : "Clusters over rounds",
      `Rows are clients, columns are rounds, colors are clusters.${phase ? ` Identities are frozen from round ${phase[0]} on.` : ""}${federation.kin ? " The strip on the left shows the hidden group." : ""}`,
      box,
      numbers(["round", ...order.map((c) => federation.names[c])], () =>
        history.map(([r, , raw]) => [
          String(r),
          ...order.map((c) => (known(raw[c]) && raw[c] >= 0 ? String(raw[c]) : "–")),
        ]),
      ),
    ),
  );
  const canvas = heatMap(box, {
    rows: n,
    columns: rounds,
    height: Math.max(120, Math.min(330, n * 10)),
    cursor: round - 1,
    gap: 1,
    value: (i, j) => (known(byRound.get(j + 1)?.[1][order[i]]) ? hexRgb(paints.get(j + 1)(order[i])) : null),
    paint: (tint) => tint,
    strip: federation.kin ? (i) => color(federation.kin[order[i]]) : null,
    label: `Cluster of each client in each of ${rounds} rounds`,
    hover: (i, j) => {
      const raw = byRound.get(j + 1)?.[2][order[i]];
      return clientTip(federation, order[i], [
        ["round", String(j + 1)],
        ["cluster", known(raw) && raw >= 0 ? String(raw) : "not in this round"],
      ]);
    },
  });
  canvas.id = "identities";
}

// ---- FedCEDAR
function cedarPanels(content, method, round) {
  const found = upTo(method.facts.graph, round);
  if (found) {
    const [at, unsorted] = found,
      clusters = upTo(stableClusters(method), at),
      k = unsorted.length;
    const stable = [...Array(k).keys()].map((c) => {
      const member = clusters[2].indexOf(c);
      return member < 0 ? c : clusters[1][member];
    });
    const order = [...Array(k).keys()].sort((a, b) => stable[a] - stable[b]),
      graph = order.map((i) => order.map((j) => unsorted[i][j])),
      name = order.map((c) => stable[c]),
      members = order.map((c) => clusters[2].filter((label) => label === c).length);
    const box = chartBox();
    content.append(
      panel(
        "w6",
        "Graph between cluster centers",
        `How much each cluster's model takes from the others, before propagation (round ${at}). An even mix would be ${percent(1 / k)}.`,
        box,
      ),
    );
    if (k <= 12)
      box.append(
        ringGraph(graph, members, name, Math.min(380, box.clientWidth)),
        cellTable(
          graph,
          name.map((c) => String(c)),
          name,
        ),
      );
    else
      heatMap(box, {
        rows: k,
        columns: k,
        value: (i, j) => graph[i][j] / Math.max(...graph.flat()),
        label: `Graph of ${k} centers`,
        hover: (i, j) => [el("b", {}, `center ${i} takes from center ${j}`), percent(graph[i][j])],
      });
  }
  if (method.facts.graph_evenness)
    lineFact(
      content,
      "w6",
      "Evenness of the graph",
      "1: all clusters are mixed equally, as if there were only one. 0: each cluster keeps to itself.",
      [asSeries("evenness", method.facts.graph_evenness)],
      round,
      { zero: true },
    );
}
function ringGraph(graph, members, name, width) {
  const k = graph.length,
    height = Math.min(width, 250),
    r = height / 2 - 34,
    most = Math.max(...members, 1);
  const spot = (i) => [
    width / 2 + (k > 1 ? r * Math.cos((2 * Math.PI * i) / k - Math.PI / 2) : 0),
    height / 2 + (k > 1 ? r * Math.sin((2 * Math.PI * i) / k - Math.PI / 2) : 0),
  ];
  const between = graph.flatMap((row, i) => row.slice(0, i).map((w, j) => [i, j, (w + graph[j][i]) / 2]));
  const top = Math.max(...between.map((b) => b[2]), 1e-9);
  return svg(
    "svg",
    { width, height, role: "img", "aria-label": `Graph of ${k} cluster centers with ${members.join(", ")} clients` },
    between.map(([i, j, w]) => {
      const [a, b] = [spot(i), spot(j)];
      return svg("line", {
        x1: a[0],
        y1: a[1],
        x2: b[0],
        y2: b[1],
        stroke: token("ink"),
        opacity: 0.1 + (0.5 * w) / top,
        "stroke-width": 1 + (5 * w) / top,
      });
    }),
    members
      .map((count, i) => {
        const [x, y] = spot(i);
        return [
          svg("circle", {
            cx: x,
            cy: y,
            r: 9 + 15 * Math.sqrt(count / most),
            fill: color(name[i]),
            stroke: token("panel"),
            "stroke-width": 2,
          }),
          svg(
            "text",
            {
              x,
              y: y + 4,
              "text-anchor": "middle",
              css: { fill: theme() === "dark" ? "#111" : "#fff", fontWeight: 600 },
            },
            String(count),
          ),
        ];
      })
      .flat(),
  );
}
function cellTable(matrix, names, tint) {
  const all = matrix.flat(),
    low = Math.min(...all),
    high = Math.max(...all);
  const head = (i) =>
    el("th", { scope: "row" }, el("span", { class: "swatch", css: { background: color(tint[i]) } }), names[i]);
  return el(
    "div",
    { class: "wide" },
    el(
      "table",
      { class: "cells" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", {}, ""),
          names.map((_, i) => head(i)),
        ),
      ),
      el(
        "tbody",
        {},
        matrix.map((row, i) =>
          el(
            "tr",
            {},
            head(i),
            row.map((w) => {
              const share = high > low ? (w - low) / (high - low) : 0.5;
              return el(
                "td",
                { css: { background: rgb(ramp(share)), color: onRamp(share) } },
                percent(w, high - low < 0.02 ? 2 : 1),
              );
            }),
          ),
        ),
      ),
    ),
  );
}

// ---- PFLIC
function pflicPanels(content, method, round) {
  const federation = federationOf(method),
    times = upTo(method.facts.participation, round)?.[1],
    utility = upTo(method.facts.utilities, round)?.[1];
  if (times && utility) {
    const box = chartBox(),
      clusters = clustersAt(method, round);
    content.append(
      panel(
        "w6",
        "Participation and utility",
        `Each dot is a client: the number of rounds it took part in, and its utility, the mean loss of its model (eq. 4), after round ${round}. Selection prefers clients with high utility that took part in few rounds.`,
        box,
        numbers(["client", "rounds of participation", "utility"], () =>
          times.map((t, c) => [federation.names[c], String(t), plain(utility[c])]),
        ),
      ),
    );
    scatter(
      box,
      times.map((t, c) => ({
        x: t,
        y: utility[c],
        fill: clusters && known(clusters[c]) ? color(clusters[c]) : NEUTRAL(),
        tip: () =>
          clientTip(federation, c, [
            ["took part in", count(t, "round")],
            ["utility", plain(utility[c])],
            known(clusters?.[c]) && ["identity", String(upTo(stableClusters(method), round)[2][c])],
          ]),
      })),
      { xLabel: "rounds of participation", yLabel: "utility", label: "Participation and utility of each client" },
    );
  }
  if (method.facts.mean_loss)
    lineFact(
      content,
      "w6",
      "Mean loss",
      "Loss of the models that the clients chose, on their training examples, weighted by client size.",
      [asSeries("mean loss", method.facts.mean_loss)],
      round,
    );
  if (method.facts.changes)
    lineFact(
      content,
      "w6",
      "Clients that changed their identity",
      null,
      [asSeries("changes", method.facts.changes)],
      round,
      { zero: true },
    );
}
function scatter(container, dots, { xLabel, yLabel, label, height = 240 }) {
  const width = Math.max(240, container.clientWidth || 400),
    shown = dots.filter((d) => known(d.x) && known(d.y));
  if (!shown.length) {
    container.replaceChildren(missing("No results yet."));
    return;
  }
  const [xs, ys] = [shown.map((d) => d.x), shown.map((d) => d.y)],
    spanX = Math.max(...xs) - Math.min(...xs) || 1,
    spanY = Math.max(...ys) - Math.min(...ys) || Math.abs(ys[0]) || 1;
  const x = scale(Math.min(...xs) - spanX * 0.06, Math.max(...xs) + spanX * 0.06, 50, width - 12),
    y = scale(Math.min(...ys) - spanY * 0.08, Math.max(...ys) + spanY * 0.08, height - 40, 16);
  const chart = svg("svg", { width, height, role: "img", "aria-label": label });
  for (const t of ticks(y.back(height - 40), y.back(16), 4))
    chart.append(
      svg("line", { class: "grid", x1: 50, x2: width - 12, y1: y(t), y2: y(t) }),
      svg("text", { x: 43, y: y(t) + 4, "text-anchor": "end" }, plain(t)),
    );
  const steps = [...new Set(ticks(Math.min(...xs), Math.max(...xs), 6).map(Math.round))];
  for (const t of steps) chart.append(svg("text", { x: x(t), y: height - 23, "text-anchor": "middle" }, String(t)));
  chart.append(
    svg("text", { x: width / 2, y: height - 5, "text-anchor": "middle" }, xLabel),
    svg("text", { x: 4, y: 11 }, yLabel),
  );
  for (const d of shown)
    chart.append(
      pointed(
        svg("circle", {
          cx: x(d.x),
          cy: y(d.y),
          r: shown.length > 60 ? 4 : 6,
          fill: d.fill,
          opacity: 0.85,
          stroke: token("panel"),
        }),
        (e) => showTip(d.tip(), e.clientX, e.clientY),
      ),
    );
  container.replaceChildren(chart);
}

// ---- pFedGAT
function headsPanel(content, method, round) {
  const found = upTo(method.facts.attention_heads, round);
  if (!found) {
    content.append(
      panel(
        "",
        "Attention of each head",
        null,
        missing("The history has no attention of single heads: it is recorded for up to 50 clients."),
      ),
    );
    return;
  }
  const [at, heads] = found,
    nodes = upTo(method.facts.attention_nodes, at)?.[1] || heads[0].map((_, i) => i);
  const federation = federationOf(method),
    position = new Map(nodes.map((c, i) => [c, i])),
    order = orderOf(method, at)
      .filter((c) => position.has(c))
      .map((c) => position.get(c));
  const most = Math.max(...heads.flat(2)),
    box = el("div", { class: "heads" });
  content.append(
    panel(
      "",
      "Attention of each head",
      el(
        "span",
        {},
        el("span", { class: "scale" }, percent(0, 1), rampBar(), percent(most, 1)),
        `Round ${at}. Rows learn from columns, in the order of the matrix above. The number is the evenness (1: equal attention to all).`,
      ),
      box,
    ),
  );
  heads.forEach((head, k) => {
    const cell = el("div", {}),
      n = head.length;
    const even = mean(
      head.map((row) => -row.reduce((s, w) => s + (w > 0 ? w * Math.log(w) : 0), 0) / Math.log(Math.max(2, n))),
    );
    box.append(el("div", {}, cell, el("span", { class: "note" }, `head ${k + 1} · ${even.toFixed(3)}`)));
    heatMap(cell, {
      rows: n,
      columns: n,
      value: (i, j) => head[order[i]][order[j]] / most,
      label: `Attention of head ${k + 1}`,
      hover: (i, j) => [
        el("b", {}, `head ${k + 1}`),
        rows([
          [
            `${federation.names[nodes[order[i]]]} attends to ${federation.names[nodes[order[j]]]}`,
            percent(head[order[i]][order[j]], 2),
          ],
        ]),
      ],
    });
  });
}

// ---- DC-PFL
function dcpflPanels(content, method, round) {
  const facts = method.facts,
    gamma = upTo(facts.gamma, round)?.[1] ?? 1;
  dendrogram(content, method, round, gamma);
  const loss = (facts.loss || []).filter((e) => known(e[1]));
  const ends = (facts.rdp_end || []).map(([seen, step]) => ({ x: loss[step - 1]?.[0] ?? seen, seen }));
  const trials = (facts.trial || []).map(([at, t], i) => ({
    x: at,
    color: t.outcome === "accepted" ? token("gain") : token("lose"),
    dash: t.outcome === "accepted" ? "1 0" : "2 4",
    text: t.outcome === "accepted" ? `split, γ̃ ${plain(t.gamma)}` : `rejected, γ̃ ${plain(t.gamma)}`,
    row: i % 3,
    tip: `Trial of γ̃ = ${plain(t.gamma)}: ${t.outcome}. Loss ${plain(t.old)} with the old groups, ${plain(t.new)} with the new ones`,
  }));
  const marks = [
    ...ends.map((e, i) => ({
      x: e.x,
      text: "RDP ends",
      row: 3 + (i % 2),
      tip: `End of a rapid decrease period, detected in round ${e.seen}`,
    })),
    ...trials,
  ];
  lineFact(
    content,
    "w6",
    "Training loss and splits",
    "Loss l(t) on the training examples. Dashed: end of a rapid decrease period (RDP), the minimum of r(t). Solid: a finer grouping was tried and accepted. Dotted: it was rejected.",
    [{ ...asSeries("loss", loss), width: 2.5 }],
    round,
    { marks, height: 250 },
  );
  const radius = (facts.radius || []).filter((e) => known(e[1]));
  if (radius.length)
    lineFact(
      content,
      "w6",
      "Radius of curvature r(t)",
      "Of the smoothed loss curve, where it is convex. Logarithmic scale.",
      [{ ...asSeries("r(t)", radius), dots: new Set(radius.map((e) => e[0])) }],
      round,
      { log: true, marks: ends.map((e) => ({ x: e.x })), height: 190 },
    );
  else
    content.append(
      panel(
        "w6",
        "Radius of curvature r(t)",
        null,
        missing("r(t) has no value yet: the loss curve was not convex over a whole window."),
      ),
    );
  layerMap(content, method, round);
  lineFact(
    content,
    "w6",
    "Threshold γ̃",
    "Where the tree is cut. 1: one group. 0: each client alone.",
    [asSeries("γ̃", facts.gamma)],
    round,
    { zero: true, height: 170 },
  );
}
function dendrogram(content, method, round, gamma) {
  const facts = method.facts,
    made = (facts.tree || []).at(-1),
    box = chartBox();
  const note = made
    ? `Average linkage of the clients' discrepancies, computed in round ${made[0]}. The dashed line is the cut in round ${round} (γ̃ = ${plain(gamma)}); each subtree below it is a group.`
    : null;
  content.append(panel("w6", "Dendrogram and cut", note, box));
  if (!made) {
    box.append(missing("The tree is built after the first communication rounds. It is not in the history yet."));
    return;
  }
  const tree = made[1],
    leaves = upTo(facts.leaves, made[0])[1],
    n = leaves.length,
    federation = federationOf(method),
    clusters = clustersAt(method, round);
  const top = tree.length ? tree.at(-1)[2] : 1,
    nodes = leaves.map((c) => ({ leaves: [c], height: 0 }));
  for (const [a, b, height] of tree)
    nodes.push({
      left: nodes[a],
      right: nodes[b],
      height: height / (top || 1),
      leaves: [...nodes[a].leaves, ...nodes[b].leaves],
    });
  const order = nodes.at(-1).leaves,
    rank = new Map(order.map((c, i) => [c, i]));
  const width = Math.max(260, box.clientWidth),
    height = 250,
    y = scale(0, 1.04, height - 24, 8),
    x = scale(0, Math.max(1, n - 1), 40, width - 16);
  const chart = svg("svg", {
    width,
    height,
    role: "img",
    "aria-label": `Dendrogram of ${n} clients, cut at ${plain(gamma)}`,
  });
  for (const t of [0, 0.5, 1])
    chart.append(
      svg("line", { class: "grid", x1: 34, x2: width - 8, y1: y(t), y2: y(t) }),
      svg("text", { x: 28, y: y(t) + 4, "text-anchor": "end" }, String(t)),
    );
  const tint = clusterPaint(clusters),
    paint = (node) => (node.height <= gamma ? tint(node.leaves[0]) : token("soft"));
  (function draw(node) {
    if (!node.left) {
      node.x = x(rank.get(node.leaves[0]));
      return;
    }
    draw(node.left);
    draw(node.right);
    node.x = (node.left.x + node.right.x) / 2;
    chart.append(
      svg("path", {
        d: `M${node.left.x} ${y(node.left.height)}V${y(node.height)}H${node.right.x}V${y(node.right.height)}`,
        fill: "none",
        stroke: paint(node),
        "stroke-width": 1.8,
      }),
    );
  })(nodes.at(-1));
  order.forEach((c, i) =>
    chart.append(
      pointed(svg("circle", { cx: x(i), cy: y(0), r: Math.min(5, width / n / 3), fill: tint(c) }), (e) =>
        showTip(
          clientTip(federation, c, [known(clusters?.[c]) && ["group", String(clusters[c])]]),
          e.clientX,
          e.clientY,
        ),
      ),
      n <= 30 ? svg("text", { x: x(i), y: height - 6, "text-anchor": "middle", "font-size": 10 }, String(c)) : "",
    ),
  );
  chart.append(
    svg("line", {
      x1: 34,
      x2: width - 8,
      y1: y(gamma),
      y2: y(gamma),
      stroke: token("lose"),
      "stroke-width": 2,
      "stroke-dasharray": "6 4",
    }),
    svg(
      "text",
      { x: 40, y: y(gamma) - 5, class: "over", css: { fill: token("lose"), fontWeight: 600 } },
      `γ̃ = ${plain(gamma)}`,
    ),
  );
  box.append(chart);
}
function layerMap(content, method, round) {
  const found = upTo(method.facts.layer_discrepancy, round),
    periods = upTo(method.facts.layer_period, round)?.[1] || {};
  if (!found) return;
  const groups = Object.keys(found[1]),
    layers = Object.keys(found[1][groups[0]] || {}),
    all = groups.flatMap((g) => Object.values(found[1][g])).filter(known);
  const labels = upTo(method.facts.clusters, found[0])?.[1] || [],
    alone = groups.filter((g) => labels.filter((label) => label === Number(g)).length === 1);
  const most = Math.max(...all, 1e-12),
    together = groups.filter((g) => !alone.includes(g)),
    shown = together.slice(0, 20);
  content.append(
    panel(
      "w6",
      "Discrepancy of each layer, and how often it is averaged",
      `Rows are groups, columns are layers. Darker: the members differ more. Below: how often the layer is averaged (round ${found[0]}).`,
      shown.length
        ? el(
            "div",
            { class: "wide" },
            el(
              "table",
              { class: "cells" },
              el(
                "thead",
                {},
                el(
                  "tr",
                  {},
                  el("th", {}, "group"),
                  layers.map((l) => el("th", { scope: "col" }, l)),
                ),
              ),
              el(
                "tbody",
                {},
                shown.map((g) =>
                  el(
                    "tr",
                    {},
                    el(
                      "th",
                      { scope: "row" },
                      `${g} (${labels.filter((label) => label === Number(g)).length} clients)`,
                    ),
                    layers.map((layer) => {
                      const v = found[1][g][layer],
                        share = known(v) ? v / most : 0,
                        every = periods[g]?.[layer];
                      return el(
                        "td",
                        { css: { background: known(v) ? rgb(ramp(share)) : "", color: known(v) ? onRamp(share) : "" } },
                        known(v) ? plain(Number(v.toPrecision(3))) : "–",
                        every
                          ? el("div", { css: { fontSize: "11px" } }, every === 1 ? "every round" : `every ${every} rounds`)
                          : null,
                      );
                    }),
                  ),
                ),
              ),
            ),
          )
        : null,
      together.length > shown.length
        ? el("p", { class: "note" }, `${count(together.length - shown.length, "more group")} not shown`)
        : null,
      alone.length
        ? el(
            "p",
            { class: "note" },
            `${count(alone.length, "client is a group of its own, with nothing", "clients are groups of their own, with nothing")} to average.`,
          )
        : null,
    ),
  );
}

// ---- any other number that a method reports
function scalarPanels(content, method, round, shown) {
  for (const [name, entries] of Object.entries(method.facts)) {
    if (
      shown.has(name) ||
      entries.length < 2 ||
      !entries.every((e) => e[1] === null || typeof e[1] === "number") ||
      !entries.some((e) => known(e[1]))
    )
      continue;
    lineFact(
      content,
      "w6",
      `${name[0].toUpperCase()}${name.slice(1).replaceAll("_", " ")}`,
      `Reported by ${method.name}.`,
      [asSeries(name, entries)],
      round,
      { height: 150, zero: entries.every((e) => !(e[1] < 0)) },
    );
  }
}
