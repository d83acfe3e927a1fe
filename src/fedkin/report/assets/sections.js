// The other sections: result, learning, who benefits, clients, costs, how it was made.

// ---- result
const capital = (text) =>
  ["auc", "mae", "mse", "rmse"].includes(text) ? text.toUpperCase() : text[0].toUpperCase() + text.slice(1);
const wrappable = (name) => name.replaceAll(",", ",\u200b"); // a long name may wrap at its commas
function renderResult() {
  const body = document.querySelector("#result .body"),
    reference = byName(DATA.reference),
    several = DATA.methods.length > 1,
    bestIs = DATA.headline.higher_is_better ? "max" : "min";
  const columns = [
    ["method", (m) => m.name, (m) => wrappable(m.name), null],
    [
      "personal",
      (m) => headline(m, "personal"),
      (m) => withSpread(headline(m, "personal"), spread(m, "personal")),
      bestIs,
    ],
    ["received", (m) => headline(m, "received"), (m) => score(headline(m, "received")), bestIs],
    ["std over clients", (m) => headline(m, "personal", "std"), (m) => score(headline(m, "personal", "std")), "min"],
    [
      "worst 10 %",
      (m) => headline(m, "personal", "worst_decile"),
      (m) => score(headline(m, "personal", "worst_decile")),
      bestIs,
    ],
    reference && several
      ? [
          "gain over local",
          (m) => (m === reference ? null : mean(gains(m, reference).map((g) => g.gain))),
          (m) => (m === reference ? "–" : gap(mean(gains(m, reference).map((g) => g.gain)))),
          "max",
        ]
      : null,
    ["rounds", (m) => mean(over(m, (r) => r.rounds)), roundsText, null],
    ["traffic", (m) => mean(over(m, (r) => r.down + r.up)), (m) => bytes(mean(over(m, (r) => r.down + r.up))), "min"],
    [
      "simulated time",
      (m) => mean(over(m, (r) => r.compute + r.communication)),
      (m) => duration(mean(over(m, (r) => r.compute + r.communication))),
      "min",
    ],
    ["wall time", (m) => mean(over(m, (r) => r.wall)), (m) => duration(mean(over(m, (r) => r.wall))), "min"],
  ].filter(Boolean);
  const best = columns.map(([, value, , better]) => {
    const values = DATA.methods.map(value).filter(known);
    return better && several && values.length ? Math[better](...values) : null;
  });
  const order = DATA.methods.map((_, i) => i);
  if (state.sort) {
    const [, value] = columns[state.sort[0]];
    order.sort((a, b) => {
      const [p, q] = [value(DATA.methods[a]), value(DATA.methods[b])];
      return state.sort[1] * (typeof p === "string" ? p.localeCompare(q) : (p ?? -Infinity) - (q ?? -Infinity));
    });
  }
  const table = el(
    "table",
    { class: "result", id: "headline" },
    el("caption", { class: "unseen" }, "Results and costs of each method"),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        columns.map(([name], k) =>
          el(
            "th",
            {
              scope: "col",
              "aria-sort": state.sort?.[0] === k ? (state.sort[1] > 0 ? "ascending" : "descending") : null,
            },
            several
              ? el(
                  "button",
                  {
                    type: "button",
                    "data-control": `sort ${k}`,
                    onclick: acting(() => {
                      state.sort = state.sort?.[0] === k ? (state.sort[1] === -1 ? [k, 1] : null) : [k, -1];
                      renderResult();
                    }),
                  },
                  `${name}${state.sort?.[0] === k ? (state.sort[1] > 0 ? " ↑" : " ↓") : ""}`,
                )
              : name,
          ),
        ),
      ),
    ),
    el(
      "tbody",
      {},
      order.map((i) =>
        el(
          "tr",
          {
            class: several && i === state.method ? "chosen" : null,
            "data-method": DATA.methods[i].name,
            onclick: () => {
              if (several) {
                state.method = i;
                renderAll(["result", "learning", "relation", "benefit"]);
              }
            },
          },
          columns.map(([, value, text], k) =>
            el(
              "td",
              { class: best[k] !== null && value(DATA.methods[i]) === best[k] ? "best" : null },
              k === 0 ? el("span", { class: "swatch", css: { background: methodColor(i) } }) : null,
              text(DATA.methods[i]),
            ),
          ),
        ),
      ),
    ),
  );
  const seeds = Math.max(...DATA.methods.map((m) => counted(m).length));
  body.replaceChildren(
    tiles(reference),
    el("div", { class: "wide" }, table),
    el(
      "p",
      { class: "note", css: { marginTop: "10px" } },
      `${capital(metric())} on each client's own test examples after the last round, averaged over all clients. Personal: the model that a client uses. Received: the model that the server sent to it.${DATA.headline.higher_is_better ? "" : " Lower is better."}`,
      seeds > 1
        ? ` Means over ${DATA.methods.every((m) => counted(m).length === seeds) ? "" : "up to "}${seeds} seeds; ± is their standard deviation.`
        : "",
      several ? " Bold: best in its column. Click a row to select the method for the panels below." : "",
    ),
    savers(table),
    ...warnings(),
    DATA.answers.length ? answers() : "",
  );
}
// Each method at each client, and what each client should use.
function answers() {
  const names = Object.keys(DATA.answers[0].cells),
    best = DATA.answers.map((site) =>
      Math[DATA.headline.higher_is_better ? "max" : "min"](
        ...names.map((name) => site.cells[name].test).filter(known),
      ),
    );
  const text = (cell) => `${withSpread(cell.test, cell.error)}${cell.one_class ? " (one class)" : ""}`;
  const row = (head, cells) => el("tr", {}, el("th", { scope: "row" }, head), cells);
  const table = el(
    "table",
    { class: "result", id: "answers" },
    el("caption", { class: "unseen" }, "Each method at each client"),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        [metric(), ...DATA.answers.map((site) => `${site.name} (n = ${whole(site.test_examples)})`)].map((name) =>
          el("th", { scope: "col" }, name),
        ),
      ),
    ),
    el(
      "tbody",
      {},
      names.map((name) =>
        row(
          name,
          DATA.answers.map((site, i) =>
            el(
              "td",
              { class: site.cells[name].test === best[i] ? "best" : null },
              text(site.cells[name]),
              el("br", {}),
              el("small", {}, `validation ${score(site.cells[name].validation)}`),
            ),
          ),
        ),
      ),
      metric() === "accuracy" && known(DATA.answers[0].majority_rate)
        ? row(
            "most frequent class",
            DATA.answers.map((site) => el("td", {}, percent(site.majority_rate))),
          )
        : null,
    ),
  );
  return el(
    "div",
    {},
    el("h3", {}, "Which method at which client"),
    el("div", { class: "wide" }, table),
    el("p", { class: "note" }, "± is the standard error over the n test examples. Bold: best on test. The lines below choose on validation examples and judge on test examples."),
    el(
      "ul",
      { id: "advice" },
      DATA.answers.map((site) => el("li", {}, site.advice)),
    ),
  );
}
const withSpread = (value, std) => (known(std) ? `${score(value)} ± ${DATA.headline.percent ? (100 * std).toFixed(1) : plain(std)}` : score(value));
const roundsText = (m) => {
  const run = counted(m)[0];
  return run.finished ? String(run.rounds) : `${run.rounds} of ${run.planned}`;
};
function tiles(reference) {
  const federation = DATA.federations[0],
    ranked = DATA.methods
      .filter((m) => known(headline(m, "personal")))
      .sort((a, b) => direction() * (headline(b, "personal") - headline(a, "personal")));
  const tile = (value, text) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, text));
  if (!ranked.length) return el("p", { class: "lead" }, "No results yet.");
  const best = ranked[0],
    gain = reference && best !== reference ? gains(best, reference) : [];
  return el(
    "div",
    { class: "tiles" },
    tile(
      score(headline(best, "personal")),
      DATA.methods.length > 1
        ? `personal ${metric()} of ${wrappable(best.name)}, best of ${DATA.methods.length}`
        : `personal ${metric()}, mean over clients`,
    ),
    gain.length
      ? tile(`${gap(mean(gain.map((g) => g.gain)))}${gapUnit()}`, "mean gain of its clients over local training")
      : null,
    gain.length
      ? tile(`${gain.filter((g) => g.gain < -LEVEL).length} of ${gain.length}`, "of its clients lose")
      : tile(score(headline(best, "personal", "worst_decile")), "mean of its worst 10 % of clients"),
    tile(
      whole(federation.names.length),
      `clients${federation.train ? `, ${whole(federation.train.reduce((a, b) => a + b, 0))} training examples` : ""}`,
    ),
  );
}
function warnings() {
  const out = [];
  for (const m of DATA.methods) {
    if (m.sees_test) out.push(`${m.name} learned from test examples, as its paper does, so its results are optimistic.`);
    const dropped = over(m, (r) => r.dropped).reduce((a, b) => a + b, 0);
    if (dropped)
      out.push(
        `${m.name}: ${count(dropped, "reply was", "replies were")} dropped. The first one, in round ${m.runs.find((r) => r.dropped).dropped_first[0][0]}: ${m.runs.find((r) => r.dropped).dropped_first[0][2]}.`,
      );
    const named = m.runs.find((r) => r.outliers.length);
    if (named)
      out.push(
        `${m.name}: replies unlike the others came from ${named.outliers.map(([client, rounds]) => `${DATA.federations[named.federation].names[client]} (${count(rounds, "round", "rounds")})`).join(", ")}.`,
      );
    const open = m.runs.filter((r) => !r.finished);
    if (open.length)
      out.push(
        `${m.name} is not finished: ${open.map((r) => `seed ${r.seed} is at round ${r.rounds} of ${r.planned}`).join(", ")}. ${open.length < m.runs.length ? "Unfinished runs are not counted in the tables." : "Its numbers are preliminary."}`,
      );
  }
  return out.map((text) => el("p", { class: "note" }, `⚠ ${text}`));
}

// ---- learning
function renderLearning() {
  const body = document.querySelector("#learning .body"),
    box = el("div", {}),
    several = DATA.methods.length > 1;
  const isLoss = state.metric === "personal_loss";
  const axis = { round: null, bytes: ["down", "up"], time: ["compute", "communication"] }[state.axis];
  const position = (m) => {
    if (!axis) return (round) => round;
    let sum = 0;
    const sums = new Map(m.rounds.map((round, i) => [round, (sum += m.costs[axis[0]][i] + m.costs[axis[1]][i])]));
    return (round) => sums.get(round) ?? sum;
  };
  const series = DATA.methods.map((m, i) => {
    const curve = m.curves[state.metric],
      at = position(m),
      chosen = i === state.method;
    if (!curve) return { name: m.name, color: methodColor(i), points: [] };
    return {
      name: m.name,
      index: i,
      color: methodColor(i),
      dash: methodDash(i),
      width: chosen && several ? 3 : 2,
      points: curve.round.map((r, k) => [at(r), curve.mean[k]]),
      band: chosen ? curve.round.map((r, k) => [at(r), curve.low[k], curve.high[k]]) : null,
      dots: new Set(m.evaluated.map(at)),
      faint:
        chosen && state.each
          ? federationOf(m).names.map((_, c) =>
              m.clients[state.metric].map((row, k) => [at(m.clients.rounds[k]), row[c]]).filter((p) => known(p[1])),
            )
          : null,
    };
  });
  const pick = (key) => (value) => {
    state[key] = value;
    renderLearning();
  };
  const lacking = series.filter((s) => !s.points.length).map((s) => s.name);
  body.replaceChildren(
    el(
      "div",
      { class: "controls" },
      choice(
        "What",
        [
          ["personal", `personal ${metric()}`],
          ["received", `received ${metric()}`],
          ["personal_loss", "personal loss"],
        ],
        state.metric,
        pick("metric"),
      ),
      choice(
        "Against",
        [
          ["round", "rounds"],
          ["bytes", "traffic"],
          ["time", "simulated time"],
        ],
        state.axis,
        pick("axis"),
      ),
      checkBox("show each client", state.each, pick("each")),
    ),
    el(
      "figure",
      { class: "panel" },
      several ? legend(DATA.methods.map((m, i) => [m.name, methodColor(i), methodDash(i)])) : null,
      box,
      el(
        "p",
        { class: "note" },
        `Mean over clients after each round. The band contains 80 % of the clients of ${DATA.methods[state.method].name}. At dots all clients were evaluated, elsewhere the participants of the next round.${lacking.length ? ` Not available for ${lacking.join(", ")}: no model is sent.` : ""}`,
      ),
      numbers(["round", ...DATA.methods.map((m) => m.name)], () =>
        [...new Set(DATA.methods.flatMap((m) => m.curves[state.metric]?.round || []))]
          .sort((a, b) => a - b)
          .map((r) => [
            String(r),
            ...DATA.methods.map((m) => {
              const curve = m.curves[state.metric],
                k = curve ? curve.round.indexOf(r) : -1;
              return k < 0 ? "–" : isLoss ? plain(curve.mean[k]) : score(curve.mean[k], 2);
            }),
          ]),
      ),
    ),
  );
  lineChart(box, {
    series,
    height: Math.max(260, Math.min(400, innerHeight * 0.5)),
    xLabel: { round: "round", bytes: "traffic in both directions", time: "simulated time" }[state.axis],
    wholeNumbers: state.axis === "round",
    xFormat: { round: (v) => String(v), bytes, time: duration }[state.axis],
    yFormat: isLoss ? plain : (v, fine) => score(v, fine ? 2 : 0),
    label: `Learning curves of ${DATA.methods.map((m) => m.name).join(", ")}`,
    names: several,
    onPick: (s) => {
      state.method = s.index;
      renderAll(["result", "learning", "relation", "benefit"]);
    },
  });
}

// ---- who benefits
function renderBenefit() {
  const body = document.querySelector("#benefit .body"),
    method = DATA.methods[state.method],
    reference = referenceOf();
  if (!reference || DATA.methods.length < 2) {
    renderAlone(body, method);
    return;
  }
  const shown = DATA.methods.filter((m) => m !== reference),
    strips = el("div", {}),
    bars = el("div", { class: "wide" });
  const chosen = method === reference ? shown[0] : method,
    list = gains(chosen, reference),
    losers = list.filter((g) => g.gain < -LEVEL).reverse(),
    winners = list.filter((g) => g.gain > LEVEL);
  const seeds = new Set(list.map((g) => g.seed)).size > 1;
  const named = (g) => `${DATA.federations[g.federation].names[g.client]}${seeds ? ` (seed ${g.seed})` : ""}`;
  body.replaceChildren(
    el(
      "p",
      { class: "note" },
      `How much better each client's personal ${metric()} is than its ${metric()} with ${reference.name === DATA.reference ? "local training" : reference.name}, for the same client and seed.`,
    ),
    el(
      "div",
      { class: "controls" },
      methodChoice(),
      selectBox(
        "gain over",
        DATA.methods.map((m) => [m.name, m.name]),
        reference.name,
        (v) => {
          state.reference = v;
          renderBenefit();
        },
      ),
    ),
    el(
      "div",
      { class: "panels" },
      panel("w5", "All methods", `A tick is a client, the dot is the mean.${DATA.headline.percent ? " In points." : ""}`, strips),
      panel(
        "w7",
        `${chosen.name}: gain of each client${DATA.headline.percent ? ", in points" : ""}`,
        null,
        list.length
          ? el(
              "p",
              { id: "benefit-said" },
              `Of ${count(list.length, "client")}, ${count(winners.length, "gains", "gain")}, ${count(losers.length, "loses", "lose")}, ${count(list.length - winners.length - losers.length, "stays", "stay")} the same. The median is ${gap(list[Math.floor(list.length / 2)]?.gain)}${gapUnit()}.`,
            )
          : missing(`There is no run of ${reference.name} on the same clients.`),
        bars,
        losers.length
          ? el(
              "p",
              { class: "note" },
              `Largest losses: ${losers
                .slice(0, 8)
                .map((g) => `${named(g)} ${gap(g.gain)}`)
                .join(", ")}${losers.length > 8 ? ` and ${losers.length - 8} more` : ""}.`,
            )
          : null,
        numbers(["client", "seed", reference.name, chosen.name, "gain"], () =>
          list.map((g) => [
            DATA.federations[g.federation].names[g.client],
            String(g.seed),
            score(g.base, 2),
            score(g.value, 2),
            gap(g.gain, 2),
          ]),
        ),
      ),
    ),
  );
  gainStrips(strips, shown, reference, chosen);
  if (list.length)
    gainBars(bars, list, (g) =>
      clientTip(DATA.federations[g.federation], g.client, [
        seeds && ["seed", String(g.seed)],
        [reference.name, score(g.base)],
        [chosen.name, score(g.value)],
        ["gain", `${gap(g.gain)}${gapUnit()}`],
      ]),
    );
}
function gainStrips(container, shown, reference, chosen) {
  const lists = shown.map((m) => gains(m, reference)),
    all = lists.flat().map((g) => g.gain);
  if (!all.length) {
    container.append(missing("The runs have no clients in common."));
    return;
  }
  const width = Math.max(260, container.clientWidth),
    line = 34,
    height = shown.length * line + 26,
    left = Math.min(140, 20 + 7 * Math.max(...shown.map((m) => Math.min(17, m.name.length))));
  const x = scale(Math.min(0, ...all), Math.max(0, ...all), left + 6, width - 46);
  const chart = svg("svg", {
    width,
    height,
    role: "img",
    "aria-label": shown
      .map((m, k) => `${m.name}: mean gain ${gap(mean(lists[k].map((g) => g.gain)))}${gapUnit()}`)
      .join("; "),
  });
  for (const t of ticks(Math.min(0, ...all), Math.max(0, ...all), 4))
    chart.append(
      svg("line", { class: "grid", x1: x(t), x2: x(t), y1: 0, y2: height - 20 }),
      svg("text", { x: x(t), y: height - 5, "text-anchor": "middle" }, gap(t, 0)),
    );
  chart.append(svg("line", { x1: x(0), x2: x(0), y1: 0, y2: height - 20, stroke: token("soft") }));
  shown.forEach((m, k) => {
    const y = k * line + line / 2,
      i = DATA.methods.indexOf(m),
      middle = mean(lists[k].map((g) => g.gain));
    chart.append(
      svg(
        "g",
        {
          css: { cursor: "pointer" },
          onclick: () => {
            state.method = i;
            renderAll(["result", "learning", "relation", "benefit"]);
          },
        },
        svg("rect", {
          x: 0,
          y: y - line / 2 + 1,
          width,
          height: line - 2,
          rx: 6,
          fill: m === chosen ? token("accent") : "transparent",
          opacity: m === chosen ? 0.1 : 1,
        }),
        svg(
          "text",
          { x: left - 6, y: y + 4, "text-anchor": "end", class: "strong" },
          m.name.length > 17 ? `${m.name.slice(0, 16)}…` : m.name,
        ),
        lists[k].map((g) =>
          svg("line", {
            x1: x(g.gain),
            x2: x(g.gain),
            y1: y - 8,
            y2: y + 8,
            stroke: g.gain < -LEVEL ? token("lose") : token("gain"),
            opacity: 0.55,
            "stroke-width": 1.6,
          }),
        ),
        known(middle)
          ? [
              svg("circle", {
                cx: x(middle),
                cy: y,
                r: 5,
                fill: token("ink"),
                stroke: token("panel"),
                "stroke-width": 1.5,
              }),
              svg("text", { x: width - 3, y: y + 4, "text-anchor": "end", class: "strong" }, gap(middle)),
            ]
          : null,
      ),
    );
  });
  container.replaceChildren(chart);
}
function gainBars(container, list, tipOf) {
  const step = Math.max(5, Math.min(40, (container.clientWidth - 46) / list.length)),
    width = Math.max(container.clientWidth, 46 + step * list.length),
    height = 230;
  const low = Math.min(0, ...list.map((g) => g.gain)),
    high = Math.max(0, ...list.map((g) => g.gain)),
    y = scale(low, high, height - 12, 12);
  const chart = svg("svg", {
    width,
    height,
    css: { maxWidth: "none" },
    tabindex: 0,
    role: "img",
    id: "gain-bars",
    "aria-label": `Gain of ${list.length} clients, from ${gap(high)} to ${gap(low)}${gapUnit()}. Use the arrow keys to step through them.`,
  });
  for (const t of ticks(low, high, 5))
    chart.append(
      svg("line", { class: "grid", x1: 40, x2: width, y1: y(t), y2: y(t) }),
      svg("text", { x: 34, y: y(t) + 4, "text-anchor": "end" }, gap(t, 0)),
    );
  const bars = list.map((g, k) =>
    svg("rect", {
      x: 42 + k * step,
      y: Math.min(y(0), y(g.gain)),
      width: Math.max(1, step - (step > 8 ? 2 : 1)),
      height: Math.max(1, Math.abs(y(g.gain) - y(0))),
      fill: g.gain < -LEVEL ? token("lose") : token("gain"),
      class: "bar",
    }),
  );
  const targets = list.map((g, k) =>
    pointed(
      svg("rect", { x: 42 + k * step, y: 0, width: step, height, fill: "transparent", class: "target" }),
      (e) => showTip(tipOf(g), e.clientX, e.clientY),
    ),
  );
  chart.append(...bars, svg("line", { x1: 40, x2: width, y1: y(0), y2: y(0), stroke: token("soft") }), ...targets);
  let here = -1;
  chart.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    here = Math.max(0, Math.min(list.length - 1, here + move));
    const box = bars[here].getBoundingClientRect(),
      content = tipOf(list[here]);
    showTip(content, box.left, box.top);
    say(content.map((node) => node.textContent).join(" "));
  });
  chart.addEventListener("blur", hideTip);
  container.replaceChildren(chart);
}
// Without a reference: the score of each client.
function renderAlone(body, method) {
  const run = method.runs[0],
    federation = federationOf(method),
    bars = el("div", { class: "wide" });
  const list = (run.last_personal || [])
    .map((value, client) => ({ client, value, gain: value }))
    .filter((g) => known(g.value))
    .sort((a, b) => b.value - a.value);
  body.replaceChildren(
    el(
      "p",
      { class: "note" },
      DATA.reference && DATA.methods.length < 2
        ? "This is local training. To see what other methods gain, add their runs: fedkin report DIR DIR …"
        : `To see who gains from learning together, add a run of 'local' on the same clients: fedkin compare local …, or fedkin report DIR DIR-OF-LOCAL. This is the ${metric()} of each client:`,
    ),
    el(
      "figure",
      { class: "panel" },
      el("h3", {}, `Personal ${metric()} of each client, sorted`),
      bars,
      numbers(["client", `personal ${metric()}`], () =>
        list.map((g) => [federation.names[g.client], score(g.value, 2)]),
      ),
    ),
  );
  if (list.length)
    gainBars(bars, list, (g) =>
      clientTip(federation, g.client, [
        [`personal ${metric()}`, score(g.value)],
        known(run.last_received?.[g.client]) && [`received ${metric()}`, score(run.last_received[g.client])],
      ]),
    );
  else bars.append(missing("No results yet."));
}

// ---- clients
function renderClients() {
  const body = document.querySelector("#clients .body"),
    federation = DATA.federations[DATA.methods[state.method].runs[0].federation],
    box = el("div", { class: "wide" });
  if (!federation.labels) {
    body.replaceChildren(missing("The history has no labels of the clients."));
    return;
  }
  const n = federation.names.length,
    classes = Math.max(...federation.labels.map((l) => l?.length || 0));
  const order = [...Array(n).keys()].sort(
    (a, b) => (federation.group?.[a] ?? 0) - (federation.group?.[b] ?? 0) || a - b,
  );
  const summary = [
    count(n, "client"),
    federation.train &&
      `${[...new Set([Math.min(...federation.train), Math.max(...federation.train)])].map(whole).join(" to ")} training examples each`,
    known(federation.mean_kld) && `mean pairwise KL divergence of labels ${plain(federation.mean_kld)}`,
    federation.group && `${new Set(federation.group).size} hidden groups`,
  ]
    .filter(Boolean)
    .join(", ");
  body.replaceChildren(
    el("p", { class: "note" }, `${summary}.`),
    el(
      "figure",
      { class: "panel" },
      el("h3", {}, "Training examples by label and client"),
      federation.kin
        ? legend([...new Set(federation.kin)].sort((a, b) => a - b).map((g) => [`hidden group ${g}`, color(g)]))
        : null,
      box,
      numbers(
        [
          "client",
          "hidden group",
          "train",
          "validation",
          "test",
          ...Array.from({ length: classes }, (_, k) => `label ${labelName(federation, k)}`),
        ],
        () =>
          order.map((c) => [
            federation.names[c],
            String(federation.group?.[c] ?? "–"),
            whole(federation.train?.[c]),
            whole(federation.validation?.[c]),
            whole(federation.test?.[c]),
            ...federation.labels[c].map(whole),
          ]),
      ),
    ),
  );
  const room = 22,
    longest = Math.max(...Array.from({ length: classes }, (_, k) => labelName(federation, k, room).length)),
    left = Math.max(34, 14 + 6.6 * longest),
    line = Math.max(9, Math.min(26, 330 / classes)),
    named = federation.names.some((name, c) => name !== `client ${c}`),
    broadest = named ? Math.max(72, 8 + 6.6 * Math.min(room, Math.max(...federation.names.map((name) => name.length)))) : 72,
    step = Math.max(9, Math.min(broadest, (box.clientWidth - left - 10) / n)),
    letters = Math.floor((step - 4) / 6.6), // of a client's name below its column
    width = Math.max(left + 10 + step * n, 240),
    height = classes * line + 30;
  const most = Math.max(...federation.labels.flat()),
    radius = (examples) => Math.sqrt(examples / most) * (Math.min(step, line) / 2) * 1.05;
  const chart = svg("svg", {
    width,
    height,
    css: { maxWidth: "none" },
    role: "img",
    id: "bubbles",
    "aria-label": `Bubble plot of ${classes} labels by ${n} clients; the largest bubble is ${whole(most)} examples`,
  });
  for (let k = 0; k < classes; k++)
    if (line >= 13 || k % Math.ceil(14 / line) === 0)
      chart.append(
        svg("line", { class: "grid", x1: left, x2: width, y1: (k + 0.5) * line + 4, y2: (k + 0.5) * line + 4 }),
        svg("text", { x: left - 8, y: (k + 0.5) * line + 8, "text-anchor": "end" }, labelName(federation, k, room)),
      );
  order.forEach((c, i) => {
    const x = left + (i + 0.5) * step;
    const hit = svg("rect", { x: x - step / 2, y: 0, width: step, height, fill: token("ink"), opacity: 0 });
    const clear = () => hit.setAttribute("opacity", 0);
    const column = pointed(svg("g", {}), (e) => {
      showTip(
        clientTip(federation, c, [
          federation.validation && ["validation examples", whole(federation.validation[c])],
          federation.test && ["test examples", whole(federation.test[c])],
        ]),
        e.clientX,
        e.clientY,
        clear,
      );
      hit.setAttribute("opacity", 0.12);
    });
    column.append(
      hit,
      ...federation.labels[c].map((v, k) =>
        v
          ? svg("circle", {
              cx: x,
              cy: (k + 0.5) * line + 4,
              r: Math.max(0.8, radius(v)),
              fill: federation.kin && known(federation.kin[c]) ? color(federation.kin[c]) : token("accent"),
              opacity: 0.85,
            })
          : "",
      ),
    );
    if (step >= 20 || i % Math.ceil(22 / step) === 0)
      column.append(
        svg(
          "text",
          { x, y: height - 8, "text-anchor": "middle" },
          named && letters >= 5 ? shortened(federation.names[c], letters) : String(c),
        ),
      );
    chart.append(column);
  });
  box.replaceChildren(chart);
}

// ---- costs
function renderCosts() {
  const body = document.querySelector("#costs .body"),
    traffic = el("div", {}),
    time = el("div", {}),
    average = (m, key) => mean(over(m, (r) => r[key])) || 0;
  const shades = [token("accent"), token("second")];
  body.replaceChildren(
    el(
      "p",
      { class: "note" },
      "Traffic is counted from the messages. In simulated time, clients work in parallel and each round lasts as long as its slowest client, with the link and processor speeds that the run assumes.",
    ),
    el(
      "div",
      { class: "panels" },
      panel(
        "w6",
        "Traffic of the whole run",
        null,
        legend([
          ["down, to clients", shades[0]],
          ["up, to the server", shades[1]],
        ]),
        traffic,
      ),
      panel(
        "w6",
        "Simulated time of the whole run",
        null,
        legend([
          ["compute", shades[0]],
          ["communication", shades[1]],
        ]),
        time,
        numbers(["method", "down", "up", "compute", "communication", "GFLOPs"], () =>
          DATA.methods.map((m) => [
            m.name,
            bytes(average(m, "down")),
            bytes(average(m, "up")),
            duration(average(m, "compute")),
            duration(average(m, "communication")),
            plain(average(m, "flops") / 1e9),
          ]),
        ),
      ),
    ),
  );
  stackedBars(traffic, {
    items: DATA.methods.map((m) => ({ name: m.name, parts: [average(m, "down"), average(m, "up")] })),
    parts: ["down, to clients", "up, to the server"],
    shades,
    format: bytes,
    label: "Traffic by direction",
  });
  stackedBars(time, {
    items: DATA.methods.map((m) => ({ name: m.name, parts: [average(m, "compute"), average(m, "communication")] })),
    parts: ["compute", "communication"],
    shades,
    format: duration,
    label: "Simulated compute and communication time",
  });
}

// ---- how it was made
function renderMade() {
  const body = document.querySelector("#made .body"),
    commands = [...new Set(DATA.methods.map((m) => m.command).filter(Boolean))],
    environment = DATA.methods[0].environment;
  const settings = (m) =>
    Object.entries(m.parameters)
      .map(([k, v]) => `${k.replaceAll("_", " ")} ${typeof v === "object" ? JSON.stringify(v) : v}`)
      .join(", ");
  body.replaceChildren(
    el("h3", {}, commands.length > 1 ? "Commands" : "Command"),
    commands.length
      ? el("pre", { id: "command" }, commands.join("\n"))
      : missing("No command was recorded: the run was not started from the command line."),
    el("h3", {}, "Evaluation"),
    el("p", {}, DATA.evaluation),
    el("h3", {}, "Methods and their settings"),
    el(
      "dl",
      { class: "stack" },
      DATA.methods.flatMap((m) => [el("dt", {}, m.name), el("dd", {}, settings(m) || "no settings")]),
    ),
    el("h3", {}, "Environment"),
    el(
      "p",
      {},
      Object.entries(environment)
        .map(([k, v]) => `${k} ${v}`)
        .join(", ") || "not recorded",
    ),
    el("h3", {}, "Folders"),
    el("p", { class: "note" }, DATA.methods.flatMap((m) => m.runs.map((r) => r.folder)).join(", ")),
    el("h3", {}, "Citation"),
    el("pre", { id: "bibtex" }, DATA.bibtex),
  );
}
