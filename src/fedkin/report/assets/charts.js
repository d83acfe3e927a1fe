// Charts that know nothing of federated learning. Each has a text alternative; the arrow keys step through its values.

// series: [{name, color, dash, width, points: [[x, y]], band: [[x, low, high]], dots: Set of x, faint: [[[x, y]]]}]
function lineChart(
  container,
  {
    series,
    height = 260,
    xLabel,
    yLabel,
    xFormat = plain,
    yFormat = plain,
    marks = [],
    cursor,
    domain,
    label,
    names = true,
    log = false,
    zero = false,
    top,
    wholeNumbers = false,
    onPick,
  },
) {
  const width = Math.max(260, container.clientWidth || 600);
  const drawn = series.filter((s) => s.points.length);
  if (!drawn.length) {
    container.replaceChildren(missing("No results yet."));
    return;
  }
  const value = (y) => (log ? Math.log10(y) : y);
  const xs = drawn.flatMap((s) => s.points.map((p) => p[0]));
  const [first, last] = domain || [Math.min(...xs), Math.max(...xs)];
  const ys = drawn
    .flatMap((s) => [
      ...s.points.map((p) => p[1]),
      ...(s.band || []).flatMap((b) => [b[1], b[2]]),
      ...(s.faint || []).flatMap((f) => f.map((p) => p[1])),
    ])
    .filter(known)
    .map(value);
  let [low, high] = [Math.min(...ys, ...(zero ? [0] : [])), Math.max(...ys)];
  if (low === high) {
    low -= Math.abs(low) * 0.1 || 0.5;
    high += Math.abs(high) * 0.1 || 0.5;
  }
  const pad = (high - low) * 0.05;
  if (!(zero && low === 0)) low -= pad;
  high = top ?? high + pad;
  const room = names && width > 560 ? 26 + 7 * Math.max(...drawn.map((s) => Math.min(22, s.name.length))) : 14;
  const edge = { left: 52, right: room, top: 12, bottom: xLabel ? 40 : 24 };
  const x = scale(first, last, edge.left, width - edge.right);
  const y = scale(low, high, height - edge.bottom, edge.top);
  const chart = svg("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    tabindex: 0,
    "aria-label": label,
  });
  const shown = log ? powers(low, high) : ticks(low, high, height < 190 ? 4 : 5);
  for (const t of shown) {
    chart.append(
      svg("line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: y(t), y2: y(t) }),
      svg("text", { x: edge.left - 7, y: y(t) + 4, "text-anchor": "end" }, yFormat(log ? 10 ** t : t)),
    );
  }
  for (const t of ticks(first, last, Math.min(8, Math.floor(width / 70)), wholeNumbers))
    chart.append(svg("text", { x: x(t), y: height - edge.bottom + 17, "text-anchor": "middle" }, xFormat(t)));
  chart.append(
    svg("line", {
      class: "axis",
      x1: edge.left,
      x2: width - edge.right,
      y1: height - edge.bottom,
      y2: height - edge.bottom,
    }),
  );
  if (xLabel)
    chart.append(
      svg("text", { x: (edge.left + width - edge.right) / 2, y: height - 5, "text-anchor": "middle" }, xLabel),
    );
  if (yLabel) chart.append(svg("text", { x: 4, y: 11 }, yLabel));
  for (const mark of marks) {
    chart.append(
      svg("line", {
        x1: x(mark.x),
        x2: x(mark.x),
        y1: edge.top,
        y2: height - edge.bottom,
        stroke: mark.color || token("soft"),
        "stroke-dasharray": mark.dash || "4 3",
        "stroke-width": 1.3,
      }),
    );
  }
  const path = (pts) =>
    pts
      .filter((p) => known(p[1]))
      .map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(value(p[1])).toFixed(1)}`)
      .join("");
  for (const s of drawn) {
    const band = (s.band || []).filter((b) => known(b[1]));
    if (band.length > 1)
      chart.append(
        svg("path", {
          d: `${path(band.map((b) => [b[0], b[2]]))}L${path([...band].reverse().map((b) => [b[0], b[1]])).slice(1)}Z`,
          fill: s.color,
          opacity: 0.16,
        }),
      );
    for (const line of s.faint || [])
      chart.append(svg("path", { d: path(line), fill: "none", stroke: s.color, opacity: 0.28, "stroke-width": 0.8 }));
  }
  for (const s of drawn) {
    chart.append(
      svg("path", {
        d: path(s.points),
        fill: "none",
        stroke: s.color,
        "stroke-width": s.width || 2,
        "stroke-dasharray": s.dash || null,
        "stroke-linejoin": "round",
      }),
    );
    for (const p of s.points)
      if (known(p[1]) && (s.points.length === 1 || (s.dots && s.dots.has(p[0]))))
        chart.append(svg("circle", { cx: x(p[0]), cy: y(value(p[1])), r: 3, fill: s.color }));
  }
  for (const mark of marks.filter((m) => m.text))
    chart.append(
      svg("text", { x: x(mark.x) + 4, y: edge.top + 9 + 13 * (mark.row || 0), class: "strong over" }, mark.text),
    );
  if (room > 14) {
    const ends = drawn
      .map((s) => ({ s, at: y(value([...s.points].reverse().find((p) => known(p[1]))?.[1] ?? 0)) }))
      .sort((a, b) => a.at - b.at);
    for (let i = 1; i < ends.length; i++) ends[i].at = Math.max(ends[i].at, ends[i - 1].at + 14);
    const over = Math.max(0, (ends.at(-1)?.at ?? 0) - (height - edge.bottom));
    for (const { s, at } of ends)
      chart.append(
        svg(
          "text",
          {
            x: width - room + 9,
            y: at - over + 4,
            fill: s.color,
            css: { fill: s.color, fontWeight: s.width > 2 ? 650 : 450, cursor: onPick ? "pointer" : "" },
            onclick: onPick ? () => onPick(s) : null,
          },
          s.name.length > 22 ? `${s.name.slice(0, 21)}…` : s.name,
        ),
      );
  }
  if (known(cursor))
    chart.append(
      svg("line", {
        class: "cursor",
        x1: x(cursor),
        x2: x(cursor),
        y1: edge.top,
        y2: height - edge.bottom,
        stroke: token("accent"),
        "stroke-width": 7,
        opacity: 0.22,
      }),
    );
  const hair = svg("line", { y1: edge.top, y2: height - edge.bottom, stroke: token("soft"), opacity: 0 });
  chart.append(hair);
  const positions = [...new Set(xs)].sort((a, b) => a - b);
  const hideHair = () => hair.setAttribute("opacity", 0);
  function at(value, clientX, clientY) {
    hair.setAttribute("x1", x(value));
    hair.setAttribute("x2", x(value));
    hair.setAttribute("opacity", 0.6);
    const near = drawn
      .map((s) => {
        const p = s.points.reduce(
          (best, q) => (known(q[1]) && Math.abs(q[0] - value) < Math.abs((best?.[0] ?? Infinity) - value) ? q : best),
          null,
        );
        return p && { s, p };
      })
      .filter(Boolean)
      .sort((a, b) => b.p[1] - a.p[1]);
    const notes = marks.filter((m) => m.x === value && m.tip).map((m) => [m.tip, ""]);
    const lines = near.map(({ s, p }) => [
      el("span", {}, el("span", { class: "swatch", css: { background: s.color } }), s.name),
      yFormat(p[1], true),
    ]);
    showTip(
      [el("b", {}, `${(xLabel || "").split(",")[0]} ${xFormat(value)}`), rows([...lines.slice(0, 14), ...notes])],
      clientX,
      clientY,
      hideHair,
    );
    say(near.map(({ s, p }) => `${s.name} ${yFormat(p[1], true)}`).join(", "));
  }
  pointed(chart, (event) => {
    const here = x.back(event.clientX - chart.getBoundingClientRect().left);
    at(
      positions.reduce((best, v) => (Math.abs(v - here) < Math.abs(best - here) ? v : best)),
      event.clientX,
      event.clientY,
    );
  });
  let step = positions.length - 1;
  chart.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    step = Math.max(0, Math.min(positions.length - 1, step + move));
    const box = chart.getBoundingClientRect();
    at(positions[step], box.left + x(positions[step]), box.top + height / 3);
  });
  chart.addEventListener("blur", hideTip);
  container.replaceChildren(chart);
}

// 1, 2, 5, 10, … between two exponents of ten; only powers of ten if there would be many
function powers(low, high) {
  const out = [];
  for (let e = Math.floor(low); e <= high; e++)
    for (const m of high - low > 2.2 ? [1] : [1, 2, 5]) out.push(e + Math.log10(m));
  return out.filter((t) => t >= low && t <= high);
}

// A matrix of colored cells. value(i, j) is in 0..1 or null; strip(i) colors a row's edge; hover(i, j) returns the
// content of the tooltip.
function heatMap(
  container,
  { rows: down, columns: across, value, paint, strip, stripAcross, hover, label, height, cursor, onCell, gap = 0 },
) {
  const margin = strip ? 9 : 0,
    top = stripAcross ? 9 : 0;
  const width = Math.max(60, container.clientWidth || 300);
  const tall = height || Math.min(width, 460);
  const canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": label });
  const ratio = Math.min(3, devicePixelRatio || 1);
  canvas.width = width * ratio;
  canvas.height = tall * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${tall}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const cellW = (width - margin) / across,
    cellH = (tall - top) / down;
  const small = new OffscreenCanvas(across, down),
    brush = small.getContext("2d");
  const image = brush.createImageData(across, down);
  for (let i = 0; i < down; i++)
    for (let j = 0; j < across; j++) {
      const share = value(i, j),
        at = 4 * (i * across + j);
      const [r, g, b, a] = share === null ? [0, 0, 0, 0] : [...(paint ? paint(share) : ramp(share)), 255];
      image.data[at] = r;
      image.data[at + 1] = g;
      image.data[at + 2] = b;
      image.data[at + 3] = a;
    }
  brush.putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, margin, top, width - margin, tall - top);
  if (strip)
    for (let i = 0; i < down; i++) {
      pen.fillStyle = strip(i);
      pen.fillRect(0, top + i * cellH, 6, cellH + 0.5);
    }
  if (stripAcross)
    for (let j = 0; j < across; j++) {
      pen.fillStyle = stripAcross(j);
      pen.fillRect(margin + j * cellW, 0, cellW + 0.5, 6);
    }
  if (gap && cellW > 7) {
    pen.strokeStyle = token("panel");
    pen.lineWidth = gap;
    for (let i = 1; i < down; i++) {
      pen.beginPath();
      pen.moveTo(margin, top + i * cellH);
      pen.lineTo(width, top + i * cellH);
      pen.stroke();
    }
    for (let j = 1; j < across; j++) {
      pen.beginPath();
      pen.moveTo(margin + j * cellW, top);
      pen.lineTo(margin + j * cellW, tall);
      pen.stroke();
    }
  }
  if (known(cursor)) {
    pen.strokeStyle = token("ink");
    pen.lineWidth = 2;
    pen.strokeRect(margin + cursor * cellW, top + 1, cellW, tall - top - 2);
  }
  const clean = hover ? pen.getImageData(0, 0, canvas.width, canvas.height) : null;
  let here = [0, 0];
  function point(i, j, x, y) {
    here = [i, j];
    pen.putImageData(clean, 0, 0);
    pen.strokeStyle = token("lose");
    pen.lineWidth = 2;
    pen.strokeRect(margin + j * cellW, top + i * cellH, cellW, cellH);
    const content = hover(i, j);
    showTip(content, x, y, clear);
    if (onCell) onCell(i, j);
    say(content.map((node) => node.textContent).join(" "));
  }
  const clear = () => {
    pen.putImageData(clean, 0, 0);
    if (onCell) onCell(null);
  };
  if (hover) {
    pointed(canvas, (event) => {
      const box = canvas.getBoundingClientRect();
      const i = Math.floor((event.clientY - box.top - top) / ((cellH * box.height) / tall)),
        j = Math.floor((event.clientX - box.left - margin) / ((cellW * box.width) / width));
      if (i >= 0 && j >= 0 && i < down && j < across) point(i, j, event.clientX, event.clientY);
      else hideTip();
    });
    canvas.addEventListener("blur", hideTip);
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      const i = Math.max(0, Math.min(down - 1, here[0] + move[0])),
        j = Math.max(0, Math.min(across - 1, here[1] + move[1]));
      const box = canvas.getBoundingClientRect();
      point(i, j, box.left + margin + (j + 0.5) * cellW, box.top + top + (i + 0.5) * cellH);
    });
  }
  container.replaceChildren(canvas);
  return canvas;
}

// Horizontal stacked bars. items: [{name, parts: [number]}]; `parts` are the names of the parts.
function stackedBars(container, { items, parts, shades, format, label }) {
  const width = Math.max(260, container.clientWidth || 500),
    line = 27,
    left = Math.min(150, 24 + 7 * Math.max(...items.map((i) => Math.min(18, i.name.length))));
  const most = Math.max(...items.map((i) => i.parts.reduce((a, b) => a + b, 0)), 1e-12);
  const x = scale(0, most, left, width - 78),
    height = items.length * line + 6;
  const chart = svg("svg", { width, height, role: "img", "aria-label": label });
  items.forEach((item, row) => {
    let from = 0;
    const y = row * line + 5,
      total = item.parts.reduce((a, b) => a + b, 0);
    const group = pointed(svg("g", {}), (event) =>
      showTip(
        [el("b", {}, item.name), rows(item.parts.map((v, k) => [parts[k], format(v)]))],
        event.clientX,
        event.clientY,
      ),
    );
    group.append(
      svg("rect", { x: 0, y: row * line, width, height: line, fill: "transparent" }),
      svg(
        "text",
        { x: left - 9, y: y + 13, "text-anchor": "end", class: "strong" },
        item.name.length > 18 ? `${item.name.slice(0, 17)}…` : item.name,
      ),
    );
    item.parts.forEach((v, k) => {
      group.append(
        svg("rect", { x: x(from), y, width: Math.max(0, x(from + v) - x(from)), height: line - 9, fill: shades[k] }),
      );
      from += v;
    });
    group.append(svg("text", { x: x(total) + 6, y: y + 13 }, format(total)));
    chart.append(group);
  });
  container.replaceChildren(chart);
}
