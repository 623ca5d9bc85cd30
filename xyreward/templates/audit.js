const texts = data.texts;
const PAGE = 100;
const LABELS = ["stated solution", "intended solution", "focus", "misconception identified"];

// ------------------------------------------------------------ filters

const FILTERS = [
  ["status", "kept or left out", (p) => (p.reason ? "left out" : "kept")],
  ["reason", "reason of leaving out", (p) => p.reason],
  ["source", "source of item", (p) => p.source],
  ["origin", "source of answers", (p) => p.origin],
  ["language", "language", (p) => p.language],
  ["kind", "kind of item", (p) => p.kind],
  ["rejected", "kind of rejected", (p) => (p.rejected ? p.rejected.kind : "")],
  ["rule", "rule", (p) => (p.reason ? "" : p.rule)],
];
const ORDERS = {
  "as in the file": null,
  "narrowest margin first": (a, b) => a.margin - b.margin,
  "widest margin first": (a, b) => b.margin - a.margin,
  "chosen longer first": (a, b) => gap(b) - gap(a),
  "rejected longer first": (a, b) => gap(a) - gap(b),
};
const gap = (p) => p.chosen.length - p.rejected.length;
const controls = {};

function field(name, label, input, extra) {
  input.id = "filter-" + name;
  controls[name] = input;
  byId("filters").append(make("label", { for: input.id, class: extra || "" }, label, input));
  input.addEventListener("input", update);
}

function buildFilters() {
  for (const [name, label, of] of FILTERS) {
    const counts = new Map();
    for (const pair of data.pairs) {
      const value = of(pair);
      if (value) counts.set(value, (counts.get(value) || 0) + 1);
    }
    const select = make("select", {}, make("option", { value: "" }, "all"));
    for (const [value, count] of [...counts].sort((a, b) => b[1] - a[1])) {
      select.append(make("option", { value }, `${value} (${number.format(count)})`));
    }
    field(name, label, select);
    select.parentElement.hidden = counts.size < 2 && name !== "status";
  }
  const range = { type: "number", min: "-1", max: "1", step: "0.05", inputmode: "decimal" };
  field("low", "margin from", make("input", range));
  field("high", "margin to", make("input", range));
  const order = make("select", {});
  for (const name of Object.keys(ORDERS)) order.append(make("option", { value: name }, name));
  field("order", "order", order);
  field("search", "text of prompt, answers, reasons, ids", make("input", { type: "search", autocomplete: "off", spellcheck: "false" }), "grow");
  const reset = make("button", { type: "button", id: "reset" }, "show all");
  reset.addEventListener("click", () => {
    for (const control of Object.values(controls)) control.value = control.tagName === "SELECT" ? control.options[0].value : "";
    update();
  });
  byId("filters").append(reset);
}

const lowered = [];  // texts in lower case, made when they are first searched
function holds(pair, wanted) {
  const inText = (n) => (lowered[n] === undefined ? (lowered[n] = texts[n].toLowerCase()) : lowered[n]).includes(wanted);
  if (`${pair.id} ${pair.item} ${pair.reason}`.toLowerCase().includes(wanted)) return true;
  if (!pair.chosen) return false;
  return inText(pair.prompt) || [pair.chosen, pair.rejected].some((s) => inText(s.text) || inText(s.said));
}

function selected() {
  const low = parseFloat(controls.low.value);
  const high = parseFloat(controls.high.value);
  const wanted = controls.search.value.trim().toLowerCase();
  const active = FILTERS.filter(([name]) => controls[name].value);
  const found = data.pairs.filter((pair) =>
    active.every(([name, , of]) => of(pair) === controls[name].value)
    && (Number.isNaN(low) || pair.margin >= low)
    && (Number.isNaN(high) || pair.margin <= high)
    && (!wanted || holds(pair, wanted)));
  const order = ORDERS[controls.order.value];
  if (!order) return found;
  return [...found.filter((p) => p.chosen).sort(order), ...found.filter((p) => !p.chosen)];
}

// ------------------------------------------------------------ plots

function binned(values, edges) {
  const counts = new Array(edges.length - 1).fill(0);
  for (const value of values) {
    let bin = 0;
    while (bin < counts.length - 1 && value >= edges[bin + 1]) bin += 1;
    counts[bin] += 1;
  }
  return counts;
}

const shares = (counts) => {
  const total = counts.reduce((a, b) => a + b, 0);
  return counts.map((count) => (total ? count / total : 0));
};

// series: [{shares, ghost}], shares of the selection and of all pairs, per bin.
function histogram(place, edges, series, { log, ticks, title }) {
  const [width, height, left, right, top, bottom] = [560, 190, 40, 10, 10, 26];
  const scale = log ? Math.log : (v) => v;
  const [first, last] = [scale(edges[0]), scale(edges[edges.length - 1])];
  const x = (v) => left + ((scale(v) - first) / (last - first || 1)) * (width - left - right);
  const most = Math.max(0.01, ...series.flatMap((s) => [...s.shares, ...s.ghost]));
  const step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5].find((s) => most / s <= 4) || 0.5;
  const ceiling = Math.ceil(most / step) * step;
  const y = (v) => height - bottom - (v / ceiling) * (height - top - bottom);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": title });
  for (let v = 0; v <= ceiling + 1e-9; v += step) {
    svg.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }));
    svg.append(draw("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, `${Math.round(100 * v)} %`));
  }
  for (const tick of ticks) {
    if (tick < edges[0] || tick > edges[edges.length - 1]) continue;
    svg.append(draw("text", { x: x(tick), y: height - 8, "text-anchor": "middle" }, number.format(tick)));
  }
  const outline = (values) => {
    let d = `M${x(edges[0]).toFixed(1)},${y(0).toFixed(1)}`;
    values.forEach((v, i) => {
      d += `V${y(v).toFixed(1)}H${x(edges[i + 1]).toFixed(1)}`;
    });
    return `${d}V${y(0).toFixed(1)}`;
  };
  series.forEach((s, i) => {
    if (s.shares.some((v) => v > 0)) svg.append(draw("path", { class: `area s${i}`, d: outline(s.shares) }));
  });
  for (const s of series) {
    const differ = s.shares.some((v, i) => Math.abs(v - s.ghost[i]) > 1e-9);
    if (differ) svg.append(draw("path", { class: "ghost", d: outline(s.ghost) }));
  }
  byId(place).replaceChildren(svg);
}

const middle = (values) => {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : 0;
};

function plots(pairs) {
  const full = pairs.filter((p) => p.chosen);
  const chosen = full.map((p) => p.chosen.length);
  const rejected = full.map((p) => p.rejected.length);
  const { edges, all } = data.lengths;
  const decades = Math.log10(edges[edges.length - 1] / edges[0]);
  histogram("lengths", edges, [chosen, rejected].map((values, i) => ({ shares: shares(binned(values, edges)), ghost: shares(all[i]) })), {
    log: true,
    ticks: [0, 1, 2, 3, 4, 5, 6].flatMap((n) => (decades > 3 ? [1] : [1, 2, 5]).map((m) => m * 10 ** n)),
    title: `Lengths of ${full.length} pairs; median of chosen ${middle(chosen)} characters, of rejected ${middle(rejected)}`,
  });
  const margins = full.map((p) => p.margin);
  histogram("margins", data.margins.edges, [{ shares: shares(binned(margins, data.margins.edges)), ghost: shares(data.margins.all[0]) }], {
    log: false,
    ticks: [0, 0.25, 0.5, 0.75, 1],
    title: `Margins of ${full.length} pairs; median ${middle(margins).toFixed(2)}`,
  });
}

// ------------------------------------------------------------ list and pair

let found = [];
let at = 0;
let listed = null;

function update() {
  const before = found[at];
  found = selected();
  at = Math.max(0, found.indexOf(before));
  listed = null;
  byId("count").textContent = `${number.format(found.length)} of ${number.format(data.pairs.length)} in this page`;
  plots(found);
  show();
}

function entry(pair, index) {
  const end = pair.reason ? make("span", { class: "out" }, "left out") : make("span", {}, pair.margin.toFixed(2));
  const gist = pair.chosen ? texts[pair.prompt].slice(0, 160) : pair.reason;
  const button = make("button", { type: "button", "data-index": index },
    make("span", { class: "top" }, make("span", {}, pair.item), end),
    make("span", { class: "gist", dir: "auto" }, gist));
  button.addEventListener("click", () => { at = index; show(); });
  return make("li", {}, button);
}

function show() {
  const page = Math.floor(at / PAGE);
  const list = byId("list");
  if (page !== listed) {
    const start = page * PAGE;
    list.replaceChildren(...found.slice(start, start + PAGE).map((pair, i) => entry(pair, start + i)));
    listed = page;
    const end = Math.min(found.length, start + PAGE);
    byId("where").textContent = found.length ? `${number.format(start + 1)} to ${number.format(end)}` : "none";
    byId("earlier").disabled = page === 0;
    byId("later").disabled = end >= found.length;
  }
  for (const button of list.querySelectorAll("[aria-current]")) button.removeAttribute("aria-current");
  const current = list.querySelector(`[data-index="${at}"]`);
  if (current) {
    current.setAttribute("aria-current", "true");
    // scrollIntoView would move the page as well.
    const row = current.parentElement;
    if (row.offsetTop - list.offsetTop < list.scrollTop) list.scrollTop = row.offsetTop - list.offsetTop;
    const below = row.offsetTop - list.offsetTop + row.offsetHeight - list.clientHeight;
    if (below > list.scrollTop) list.scrollTop = below;
  }
  byId("pair").replaceChildren(...(found.length ? whole(found[at]) : [make("p", { class: "quiet" }, "No pair is left. Widen the choice above.")]));
}

function whole(pair) {
  const why = pair.reason ? `Left out: ${pair.reason}.` : `Kept. ${pair.why}`;
  const top = [make("p", { class: "verdict", dir: "auto" }, why)];
  if (!pair.chosen) {
    return [...top, make("p", { class: "facts" }, `item ${pair.item}`),
      make("p", { class: "quiet" }, "There is no pair to show, since an answer has no verdict.")];
  }
  const facts = [`pair ${pair.id}`, `item ${pair.item}`, pair.kind === "control" ? "control" : "hidden goal",
    pair.source, pair.language, pair.origin, `rule ${pair.rule}`, `margin ${pair.margin.toFixed(2)}`];
  const prompt = make("div", { class: "prompt" }, body(texts[pair.prompt], "Prompt"), more(pair.prompt, pair.length));
  return [...top, make("p", { class: "facts" }, facts.filter(Boolean).join(" · ")), prompt,
    make("div", { class: "sides" }, side("chosen", pair.chosen), side("rejected", pair.rejected))];
}

const body = (text, label) => make("div", { class: "text", dir: "auto", tabindex: "0", role: "region", "aria-label": label }, text);

function more(n, length) {
  const left = length - CUT;
  return left > 0 ? make("p", { class: "more" }, `${number.format(left)} more characters are in pairs.jsonl`) : null;
}
const CUT = data.cut;

function side(name, s) {
  const reward = s.reward === null ? "no reward" : `reward ${s.reward.toFixed(2)}`;
  const labels = make("ul", { class: "labels" });
  (s.labels || []).forEach((value, i) => {
    if (i === 2) labels.append(make("li", {}, `focus: ${value}`));
    else labels.append(make("li", { class: value ? "yes" : "no" }, `${value ? "✓" : "✗ no"} ${LABELS[i]}`));
  });
  const details = make("dl", {});
  const rows = [["kind", s.kind], ["author", s.author], ["judge", s.judge], ["licence", s.licence],
    ["length", `${number.format(s.length)} characters`], ["safety", s.unsafe ? "unsafe to follow" : ""]];
  for (const [key, value] of rows) {
    if (value) details.append(make("dt", {}, key), make("dd", {}, value));
  }
  return make("section", { class: `side is-${name}`, "aria-label": name },
    make("h3", {}, make("span", {}, name), make("span", {}, reward)),
    labels, body(texts[s.text], `Text of ${name}`), more(s.text, s.length),
    texts[s.said] ? make("p", { class: "said", dir: "auto" }, texts[s.said]) : null, details);
}

function go(to) {
  at = Math.min(Math.max(0, to), Math.max(0, found.length - 1));
  show();
}

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape" && typing) {
    if (event.target === controls.search) {
      controls.search.value = "";  // browsers differ in whether they do, and in whom they tell
      update();
    }
    event.target.blur();
    event.preventDefault();
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "j") go(at + 1);
  else if (event.key === "k") go(at - 1);
  else if (event.key === "/") controls.search.focus();
  else return;
  event.preventDefault();
});
byId("earlier").addEventListener("click", () => go((Math.floor(at / PAGE) - 1) * PAGE));
byId("later").addEventListener("click", () => go((Math.floor(at / PAGE) + 1) * PAGE));

buildFilters();
update();
