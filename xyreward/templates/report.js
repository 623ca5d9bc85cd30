const ROW = 62;  // height of an entry of the list, as in the style
const KEPT = 80;  // parts that are kept in memory
const rows = data.ids.length;

// ------------------------------------------------------------ answers, which lie in parts

const parts = new Map();
const waiting = new Map();
const pause = (ms) => new Promise((done) => { setTimeout(done, ms); });

// A part of the page itself is whole when the next one has begun.
async function inPage(n) {
  while (document.readyState === "loading" && !byId(`part-${n + 1}`)) await pause(10);
  return JSON.parse(byId(`part-${n}`).textContent);
}

function beside(n) {
  return new Promise((resolve, reject) => {
    const name = `${data.folder}/part-${n}.js`;
    const script = make("script", { src: name });
    const missing = () => reject(new Error(`${name} cannot be read. Keep the folder ${data.folder} beside this page.`));
    waiting.set(n, resolve);
    script.addEventListener("error", missing);
    script.addEventListener("load", () => {
      script.remove();
      if (waiting.delete(n)) missing();
    });
    document.head.append(script);
  });
}

if (data.folder !== null) {
  window.xyrewardPart = (n, texts) => {
    const resolve = waiting.get(n);
    waiting.delete(n);
    if (resolve) resolve(texts);
  };
}

function part(n) {
  if (!parts.has(n)) {
    const read = data.folder === null ? inPage(n) : beside(n);
    parts.set(n, read);
    read.catch(() => parts.delete(n));
    if (parts.size > KEPT) parts.delete(parts.keys().next().value);
  }
  return parts.get(n);
}

function partOf(row) {
  let [low, high] = [0, data.starts.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (data.starts[middle] <= row) low = middle;
    else high = middle - 1;
  }
  return low;
}

async function textsOf(row) {
  const n = partOf(row);
  return (await part(n))[row - data.starts[n]];
}

// ------------------------------------------------------------ labels

const bit = (code, n) => code >= 0 && ((code >> n) & 1) === 1;
const stated = (code) => bit(code, 0);
const intended = (code) => bit(code, 1);
const steers = (code) => bit(code, 2);
const focus = (code) => (code >= 0 ? data.focus[code >> 3] : "");
const onIntended = (code) => focus(code) === "intended";
const failure = (code) => (code <= -3 ? data.failures[-3 - code].replace(/_/g, " ") : "");
const state = (code) => {
  if (code >= 0) return "judged";
  if (code === -1) return "not evaluated";
  return code === -2 ? "not judged" : `failed: ${failure(code)}`;
};
// As in the key below the list.
const gist = (code) => (code >= 0
  ? `${stated(code) ? "S" : ""}${intended(code) ? "I" : ""}${steers(code) ? "M" : ""} ${focus(code)}`.trim() : state(code));

const control = (row) => value("kind")(row) === "control";
const value = (column) => (row) => data[column].values[data[column].of[row]];
const yesNo = (of) => (row) => (code(row) >= 0 ? (of(code(row)) ? "yes" : "no") : "");
const picked = (row) => {
  const share = data.picked[shown()][row];
  if (share === null || share === undefined) return "";
  return { 0: "never", 0.5: "in one of two orders", 1: "in both orders" }[share] || "";
};

const LABELS = [["stated solution", stated], ["intended solution", intended],
  ["focus intended", onIntended], ["misconception identified", steers]];
const CHANGES = {
  "any label": (a, b) => a !== b,
  "no label": (a, b) => a === b,
};
for (const [name, of] of LABELS) {
  CHANGES[`gains ${name}`] = (a, b) => !of(a) && of(b);
  CHANGES[`loses ${name}`] = (a, b) => of(a) && !of(b);
}
const ORDERS = {
  "as evaluated": null,
  "lowest soft reward first": (row) => soft(shown(), row),
  "highest soft reward first": (row) => -soft(shown(), row),
  "largest loss first": (row) => soft(other(), row) - soft(shown(), row),
  "largest gain first": (row) => soft(shown(), row) - soft(other(), row),
  "longest answer first": (row) => -data.lengths[shown()][row],
  "shortest answer first": (row) => data.lengths[shown()][row],
};
const soft = (policy, row) => {
  const found = policy < 0 ? null : data.soft[policy][row];
  return found === null ? NaN : found;
};

// ------------------------------------------------------------ filters

const controls = {};
const shown = () => Number(controls.shown.value);
const other = () => Number(controls.other.value);
const code = (row) => data.codes[shown()][row];

const FILTERS = [
  ["state", "judgement", (row) => state(code(row))],
  ["stated", "stated solution", yesNo(stated)],
  ["intended", "intended solution", yesNo(intended)],
  ["focus", "focus", (row) => focus(code(row))],
  ["steers", "misconception identified or invented", yesNo(steers)],
  ["picked", "picks the better answer", picked],
  ["kind", "kind of item", (row) => (control(row) ? "control" : "hidden goal")],
  ["source", "source", value("source")],
  ["domain", "domain", value("domain")],
  ["language", "language", value("language")],
];

function field(name, label, input, extra) {
  input.id = `filter-${name}`;
  controls[name] = input;
  byId("filters").append(make("label", { for: input.id, class: extra || "" }, label, input));
  input.addEventListener("input", update);
}

function choice(options) {
  const select = make("select", {});
  for (const [val, text] of options) select.append(make("option", { value: val }, text));
  return select;
}

function buildFilters() {
  const names = data.names.map((name, n) => [n, name]);
  const two = names.length > 1;
  field("shown", "answers of", choice(names));
  field("other", "beside those of", choice([[-1, "nobody"], ...names]));
  controls.shown.value = two ? "1" : "0";
  controls.other.value = two ? "0" : "-1";
  field("change", "change between them", choice([["", "all"], ...Object.keys(CHANGES).map((name) => [name, name])]));
  for (const name of ["shown", "other", "change"]) controls[name].parentElement.hidden = !two;
  for (const [name, label] of FILTERS) field(name, label, choice([["", "all"]]));
  field("order", "order", choice(Object.keys(ORDERS).map((name) => [name, name])));
  field("search", "text of questions, answers, reasons, ids", make("input", { type: "search", autocomplete: "off", spellcheck: "false" }), "grow");
  const reset = make("button", { type: "button", id: "reset" }, "show all");
  reset.addEventListener("click", () => {
    for (const [name, control] of Object.entries(controls)) {
      if (name !== "shown" && name !== "other") control.value = control.tagName === "SELECT" ? control.options[0].value : "";
    }
    update();
  });
  byId("filters").append(reset);
}

let counted = -1;
// The values of every filter, with counts over all rows of the policy that is shown.
function count() {
  if (counted === shown()) return;
  counted = shown();
  for (const [name, , of] of FILTERS) {
    const counts = new Map();
    for (let row = 0; row < rows; row += 1) {
      const found = of(row);
      if (found) counts.set(found, (counts.get(found) || 0) + 1);
    }
    const select = controls[name];
    const kept = select.value;
    const sorted = [...counts].sort((a, b) => b[1] - a[1]);
    select.replaceChildren(make("option", { value: "" }, "all"),
      ...sorted.map(([val, n]) => make("option", { value: val }, `${val} (${number.format(n)})`)));
    select.value = counts.has(kept) ? kept : "";
    select.parentElement.hidden = counts.size < 2;
  }
}

function chosen() {
  const active = FILTERS.filter(([name]) => controls[name].value);
  const change = other() >= 0 ? CHANGES[controls.change.value] : undefined;
  const before = other() >= 0 ? data.codes[other()] : null;
  const left = [];
  for (let row = 0; row < rows; row += 1) {
    if (active.every(([name, , of]) => of(row) === controls[name].value)
      && (!change || (before[row] >= 0 && code(row) >= 0 && change(before[row], code(row))))) left.push(row);
  }
  return left;
}

function ordered(left) {
  const key = ORDERS[controls.order.value];
  if (!key) return left;
  const keys = new Map(left.map((row) => [row, key(row)]));
  // What has no such figure comes last.
  const rank = (row) => (Number.isNaN(keys.get(row)) ? Infinity : keys.get(row));
  return [...left].sort((a, b) => (rank(a) === rank(b) ? a - b : rank(a) - rank(b)));
}

function holds(row, texts, wanted) {
  const has = (text) => text !== undefined && text.toLowerCase().includes(wanted);
  if (has(data.ids[row]) || texts.query.some(([, text]) => has(text))) return true;
  if (texts.notes.some(([, found]) => found.some(has))) return true;
  return [shown(), other()].some((policy) => {
    const cell = policy < 0 ? null : texts.answers[policy];
    return cell && (has(cell.text) || has(cell.reason) || (cell.failure && has(cell.failure[1]))
      || (cell.suggestions || []).some((one) => has(one.reason)));
  });
}

// ------------------------------------------------------------ what is left of a choice

let found = [];
let at = 0;
let turn = 0;  // grows with every choice; a search that is overtaken stops

async function update() {
  turn += 1;
  const mine = turn;
  const before = found[at];
  count();
  for (const name of ["largest loss first", "largest gain first"]) {
    [...controls.order.options].find((o) => o.value === name).disabled = other() < 0;
  }
  let left = chosen();
  const wanted = controls.search.value.trim().toLowerCase();
  if (wanted) {
    byId("list").setAttribute("aria-busy", "true");
    await pause(150);  // until typing stops
    if (mine !== turn) return;
    try {
      left = await search(left, wanted, () => mine === turn);
    } catch (error) {
      byId("count").textContent = error.message;
      return;
    }
    if (mine !== turn) return;
  }
  byId("list").removeAttribute("aria-busy");
  found = ordered(left);
  at = Math.max(0, found.indexOf(before));
  byId("count").textContent = `${number.format(found.length)} of ${number.format(rows)}`;
  show();
}

async function search(left, wanted, current) {
  const hits = [];
  let texts = [];
  let n = -1;
  for (const row of left) {
    const of = partOf(row);
    if (of !== n) {
      n = of;
      for (let ahead = n + 1; ahead < Math.min(n + 6, data.starts.length); ahead += 1) part(ahead);
      texts = await part(n);
      byId("count").textContent = `searching: part ${number.format(n + 1)} of ${number.format(data.starts.length)}`;
      if (n % 4 === 3) await pause(0);  // keys and clicks come in between
      if (!current()) return hits;
    }
    if (holds(row, texts[row - data.starts[n]], wanted)) hits.push(row);
  }
  return hits;
}

// ------------------------------------------------------------ the list, of which only what is in sight exists

const list = byId("list");
const room = make("div", { class: "room", role: "presentation" });
list.append(room);
let drawn = "";

function entry(place) {
  const row = found[place];
  const nth = data.nth[row] ? ` #${data.nth[row] + 1}` : "";
  const labels = other() >= 0 && data.codes[other()][row] !== code(row)
    ? `${gist(data.codes[other()][row])} → ${gist(code(row))}` : gist(code(row));
  const element = make("div", { class: "entry", role: "option", id: `entry-${place}`, "aria-selected": String(place === at),
    "aria-setsize": found.length, "aria-posinset": place + 1 },
    make("div", { class: "top" }, make("span", {}, data.ids[row] + nth), make("span", {}, labels)),
    make("div", { class: "gist", dir: "auto" }, data.gists[row] || "(empty)"));
  element.style.transform = `translateY(${place * ROW}px)`;
  element.addEventListener("click", () => go(place));
  return element;
}

function drawList() {
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 6);
  const last = Math.min(found.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 6);
  const now = `${turn} ${first} ${last} ${at}`;
  if (now === drawn) return;
  drawn = now;
  const places = [];
  for (let place = first; place < last; place += 1) places.push(place);
  // The selected one must exist for whoever reads with a screen reader, also out of sight.
  if (found.length && (at < first || at >= last)) places.push(at);
  list.replaceChildren(room, ...places.map(entry));
}

function reveal() {
  const top = at * ROW;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
}

function show() {
  room.style.height = `${found.length * ROW}px`;
  list.hidden = found.length === 0;
  if (found.length) {
    reveal();
    drawList();
    list.setAttribute("aria-activedescendant", `entry-${at}`);
  } else {
    list.removeAttribute("aria-activedescendant");
    list.replaceChildren(room);
    drawn = "";
  }
  whole();
}

function go(to) {
  if (!found.length) return;
  at = Math.min(Math.max(0, to), found.length - 1);
  show();
}

// ------------------------------------------------------------ one question and its answers

let differences = false;
let opened = false;

async function whole() {
  const mine = turn;
  const row = found[at];
  const place = byId("answer");
  if (row === undefined) {
    place.replaceChildren(make("p", { class: "quiet" }, "No answer is left. Widen the choice above."));
    return;
  }
  let texts;
  try {
    texts = await textsOf(row);
  } catch (error) {
    if (mine === turn && found[at] === row) place.replaceChildren(make("p", { class: "notice warn" }, error.message));
    return;
  }
  if (mine !== turn || found[at] !== row) return;
  remember(row);
  const facts = [control(row) ? "control" : "hidden goal", value("source")(row), value("domain")(row),
    value("language")(row), data.nth[row] ? `answer ${data.nth[row] + 1}` : ""];
  const sides = [other(), shown()].filter((policy) => policy >= 0);
  const cells = sides.map((policy) => texts.answers[policy]);
  const both = sides.length === 2 && cells.every((cell) => cell && cell.text !== undefined);
  const compared = both && differences ? diff(cells[0].text, cells[1].text) : null;
  const toggle = make("button", { type: "button", id: "differences", "aria-pressed": String(differences) }, "differences");
  toggle.disabled = !both;
  toggle.addEventListener("click", switchDifferences);
  const previous = make("button", { type: "button" }, "previous");
  const next = make("button", { type: "button" }, "next");
  previous.disabled = at === 0;
  next.disabled = at === found.length - 1;
  previous.addEventListener("click", () => go(at - 1));
  next.addEventListener("click", () => go(at + 1));
  place.replaceChildren(
    make("h3", {}, data.ids[row]),
    make("p", { class: "facts" }, facts.filter(Boolean).join(" · ")),
    make("div", { class: "place" }, previous, next, both ? toggle : null),
    question(texts),
    notes(texts),
    make("div", { class: "sides" }, ...sides.map((policy, n) => side(policy, row, cells[n],
      n === 1 ? data.codes[sides[0]][row] : null, compared && compared[n]))));
}

function switchDifferences() {
  differences = !differences;
  const focused = document.activeElement && document.activeElement.id === "differences";
  whole().then(() => { if (focused) byId("differences").focus(); });
}

function question(texts) {
  if (!texts.query.length) return make("p", { class: "quiet" }, "The question is not in the run folder.");
  const turns = texts.query.flatMap(([role, text]) => [
    texts.query.length > 1 ? make("p", { class: "role" }, role) : null, make("div", { dir: "auto" }, text)]);
  return make("div", { class: "prompt" }, make("div", { class: "text", tabindex: "0", role: "region", "aria-label": "Question" }, ...turns.filter(Boolean)));
}

function notes(texts) {
  if (!texts.notes.length) return null;
  const pairs = texts.notes.flatMap(([heading, some]) => [make("dt", {}, heading), ...some.map((text) => make("dd", { dir: "auto" }, text))]);
  const box = make("details", {}, make("summary", {}, "what it is measured against"), make("dl", {}, ...pairs));
  box.open = opened;
  box.addEventListener("toggle", () => { opened = box.open; });
  return box;
}

function side(policy, row, cell, before, compared) {
  const mine = data.codes[policy][row];
  const reward = soft(policy, row);
  const box = make("section", { class: "side", "aria-label": `Answer of ${data.names[policy]}` },
    make("h4", {}, make("span", {}, data.names[policy]), make("span", {}, Number.isNaN(reward) ? "" : `soft reward ${reward.toFixed(2)}`)));
  if (!cell) {
    box.append(make("p", { class: "quiet" }, "Not in this evaluation."));
    return box;
  }
  if (cell.failure) box.append(make("p", { class: "notice warn", dir: "auto" }, `No verdict, ${failure(mine)}: ${cell.failure[1]}`));
  if (mine >= 0) box.append(labels(row, mine, before));
  if (cell.text === undefined) box.append(make("p", { class: "quiet" }, "Nothing was written: only picking or preference was evaluated."));
  else if (!cell.text.trim()) box.append(make("p", { class: "empty" }, "An empty answer."));
  else box.append(make("div", { class: "text", dir: "auto" }, ...(compared || marked(cell))));
  const left = data.lengths[policy][row] - data.cut;
  if (left > 0) box.append(make("p", { class: "more" }, `${number.format(left)} more characters are in the run folder's JSONL`));
  if (cell.suggestions) box.append(suggestions(cell.suggestions));
  if (cell.reason) box.append(make("p", { class: "said", dir: "auto" }, cell.reason));
  box.append(details(policy, row, cell));
  return box;
}

function labels(row, mine, before) {
  const out = make("ul", { class: "labels" });
  const add = (text, yes, was) => {
    const item = make("li", { class: `${yes ? "yes" : "no"}${was === null ? "" : " changed"}` }, text);
    if (was !== null) item.append(make("span", { class: "was" }, ` (was ${was})`));
    out.append(item);
  };
  for (const [name, of] of LABELS) {
    if (of === onIntended) {
      const was = before !== null && before >= 0 && focus(before) !== focus(mine) ? focus(before) : null;
      add(`focus: ${focus(mine)}`, true, was);
    } else {
      const was = before !== null && before >= 0 && of(before) !== of(mine) ? (of(before) ? "yes" : "no") : null;
      // Of a control it is one that is not there.
      const said = of === steers && control(row) ? "misconception invented" : name;
      add(of(mine) ? `✓ ${said}` : `✗ no ${said}`, of(mine), was);
    }
  }
  return out;
}

// The text with the judge's quotes marked by what they serve.
function marked(cell) {
  const text = cell.text;
  const spans = (cell.suggestions || []).flatMap((one, n) => (one.spans || []).map(([from, to], i, all) => ({ from, to, one, n, last: i === all.length - 1 })));
  spans.sort((a, b) => a.from - b.from || b.to - a.to);
  const out = [];
  let done = 0;
  for (const { from, to, one, n, last } of spans) {
    const start = Math.max(from, done);
    if (start < to) {
      if (start > done) out.push(text.slice(done, start));
      out.push(make("mark", { class: `serves-${one.serves}` }, text.slice(start, to)));
      done = to;
    }
    if (last) out.push(make("sup", {}, String(n + 1)));
  }
  out.push(text.slice(done));
  return out;
}

const SERVES = { stated: "the stated request", intended: "the intended request", both: "both requests", neither: "neither request" };

function suggestions(all) {
  return make("ol", { class: "suggestions", "aria-label": "Suggestions that the judge found" }, ...all.map((one) => {
    const item = make("li", { dir: "auto" }, make("mark", { class: `serves-${one.serves}` }, `serves ${SERVES[one.serves]}`));
    if (!(one.spans || []).length) item.append(` “${one.quote}”`);
    if (one.reason) item.append(` ${one.reason}`);
    return item;
  }));
}

function details(policy, row, cell) {
  const out = make("dl", {});
  const p = cell.p && cell.p.some((one) => one > 0 && one < 1)
    ? `stated ${cell.p[0]}, intended ${cell.p[1]}, misconception ${cell.p[2]}, this focus ${cell.p[3]}` : "";
  const length = data.lengths[policy][row];
  const share = data.picked[policy][row];
  const [better, worse] = control(row) ? ["direct", "overcorrecting"] : ["goal-focused", "literal"];
  const pairs = [
    ["reward", cell.reward === undefined ? "" : cell.reward.toFixed(2)],
    ["judge's P", p],
    ["votes", cell.votes],
    ["goal", cell.inferred ? "inferred by a model" : ""],
    ["odd", (cell.flags || []).join(", ")],
    ["length", length < 0 ? "" : `${number.format(length)} characters${cell.tokens === undefined ? "" : `, ${number.format(cell.tokens)} tokens`}${cell.truncated ? ", cut off" : ""}`],
    ["picks", share === null ? "" : `the ${better} answer ${{ 0: "never", 0.5: "in one of two orders", 1: "in both orders" }[share]}${cell.margin === undefined ? "" : `, margin ${cell.margin} nats`}`],
    ["prefers", cell.prefers === undefined ? "" : `the ${cell.prefers < 0 ? worse : better} answer by ${Math.abs(cell.prefers)} nats per token`],
    ["reply", cell.raw || ""],
  ];
  for (const [key, text] of pairs) {
    if (text) out.append(make("dt", {}, key), make("dd", { dir: "auto" }, String(text)));
  }
  return out;
}

// ------------------------------------------------------------ differences, by words

const segmenter = Intl.Segmenter ? new Intl.Segmenter("und", { granularity: "word" }) : null;
const words = (text) => (segmenter ? [...segmenter.segment(text)].map((one) => one.segment) : text.match(/\s+|[^\s]+/g) || []);
const FURTHEST = 3000;  // differing words up to which texts are aligned

// Two lists of nodes: the first text with what is gone marked, the second with what is new.
function diff(first, second) {
  const [a, b] = [words(first), words(second)];
  const same = aligned(a, b);
  return [pieces(a, same.map(([i]) => i), "del"), pieces(b, same.map(([, j]) => j), "ins")];
}

// Places of words that both have, in order: the longest such list (Myers 1986, doi:10.1007/BF01840446).
function aligned(a, b) {
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const same = [];
  for (let i = 0; i < head; i += 1) same.push([i, i]);
  same.push(...runs(middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail)), a, head));
  for (let i = tail; i > 0; i -= 1) same.push([a.length - i, b.length - i]);
  return same;
}

// Runs of blanks or of next to nothing between two changes say less than they confuse.
function runs(same, a, head) {
  const out = [];
  for (let i = 0; i < same.length;) {
    let end = i + 1;
    while (end < same.length && same[end][0] === same[end - 1][0] + 1 && same[end][1] === same[end - 1][1] + 1) end += 1;
    const run = same.slice(i, end).map(([x, y]) => [x + head, y + head]);
    if (run.map(([x]) => a[x]).join("").replace(/[^\p{L}\p{N}]/gu, "").length > 3) out.push(...run);
    i = end;
  }
  return out;
}

function middle(a, b) {
  const [n, m] = [a.length, b.length];
  const furthest = Math.min(n + m, FURTHEST);
  const ends = new Int32Array(2 * furthest + 3);
  const traces = [];
  const zero = furthest + 1;
  for (let d = 0; d <= furthest; d += 1) {
    traces.push(ends.slice(zero - d - 1, zero + d + 2));
    for (let k = -d; k <= d; k += 2) {
      let x = k === -d || (k !== d && ends[zero + k - 1] < ends[zero + k + 1]) ? ends[zero + k + 1] : ends[zero + k - 1] + 1;
      while (x < n && x - k < m && a[x] === b[x - k]) x += 1;
      ends[zero + k] = x;
      if (x >= n && x - k >= m) return back(traces, n, m);
    }
  }
  return [];
}

// The way back: traces[d] are the furthest ends on every diagonal before step d.
function back(traces, n, m) {
  const same = [];
  let [x, y] = [n, m];
  for (let d = traces.length - 1; d > 0; d -= 1) {
    const of = (k) => traces[d][k + d + 1];
    const k = x - y;
    const from = k === -d || (k !== d && of(k - 1) < of(k + 1)) ? k + 1 : k - 1;
    while (x > of(from) && y > of(from) - from) same.push([x -= 1, y -= 1]);
    [x, y] = [of(from), of(from) - from];
  }
  while (x > 0 && y > 0) same.push([x -= 1, y -= 1]);
  return same.reverse();
}

function pieces(all, kept, tag) {
  const out = [];
  const keeps = new Set(kept);
  for (let i = 0; i < all.length;) {
    let end = i;
    while (end < all.length && keeps.has(end) === keeps.has(i)) end += 1;
    const text = all.slice(i, end).join("");
    out.push(keeps.has(i) ? text : make(tag, {}, text));
    i = end;
  }
  return out;
}

// ------------------------------------------------------------ keys and addresses

function remember(row) {
  try {
    history.replaceState(null, "", `#item=${encodeURIComponent(data.ids[row])}${data.nth[row] ? `&n=${data.nth[row]}` : ""}`);
  } catch { /* a page inside another may have no address of its own */ }
}

function fromAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const id = wanted.get("item");
  if (id === null) return;
  const nth = Number(wanted.get("n") || 0);
  const place = found.findIndex((row) => data.ids[row] === id && data.nth[row] === nth);
  if (place >= 0) go(place);
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
  const inList = event.target === list;
  const page = Math.max(1, Math.floor(list.clientHeight / ROW) - 1);
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows, End: rows };
  if (event.key === "j") go(at + 1);
  else if (event.key === "k") go(at - 1);
  else if (event.key === "d") switchDifferences();
  else if (event.key === "/") controls.search.focus();
  else if (inList && event.key in steps) go(at + steps[event.key]);
  else return;
  event.preventDefault();
});
list.addEventListener("scroll", () => requestAnimationFrame(drawList), { passive: true });
window.addEventListener("resize", drawList);
window.addEventListener("hashchange", fromAddress);

buildFilters();
update();
fromAddress();
