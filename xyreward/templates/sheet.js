const units = data.units;
const byUnit = new Map(units.map((unit, index) => [unit.unit, index]));
const KEPT = `xyreward-sheet-${data.sheet}`;

const YES_NO = [[true, "yes", "y"], [false, "no", "n"]];
const FOCUS = data.focus.map((name) => [name, name, name[0]]);
const QUESTIONS = {
  has_stated_solution: ["Stated solution", YES_NO],
  has_intended_solution: ["Intended solution", YES_NO],
  focus: ["Focus", FOCUS],
  identifies_misconception: ["Misconception", YES_NO],
};
const options = (unit, label) => QUESTIONS[label][1].filter(([value]) =>
  // Where what is asked is what is wanted there is no other goal to concentrate on.
  !(label === "focus" && value === "intended" && !unit.ask.includes("has_intended_solution")));

let at = 0;
let labels = {};  // unit -> label -> value
let set = [];  // labels of this answer in the order in which they were set
let shown = true;

const of = (unit) => labels[unit.unit] || {};
const done = (unit) => unit.ask.every((label) => label in of(unit));
const current = (unit) => unit.ask.find((label) => !(label in of(unit)));

function say(text, bad) {
  byId("message").textContent = text;
  byId("message").className = bad ? "bad" : "";
}

// ------------------------------------------------------------ progress that is kept

function keep() {
  try {
    localStorage.setItem(KEPT, JSON.stringify({ annotator: byId("annotator").value, at, shown, labels }));
  } catch {
    say("This browser does not keep labels. Save them to a file before you close the page.", true);
  }
}

function valid(unit, label, value) {
  return unit.ask.includes(label) && options(unit, label).some(([one]) => one === value);
}

function recall() {
  let kept = null;
  try {
    kept = JSON.parse(localStorage.getItem(KEPT));
  } catch {
    say("Labels kept in this browser cannot be read.", true);
  }
  if (!kept || typeof kept !== "object") return;
  if (typeof kept.annotator === "string") byId("annotator").value = kept.annotator;
  if (Number.isInteger(kept.at) && kept.at >= 0 && kept.at < units.length) at = kept.at;
  shown = kept.shown !== false;
  for (const [name, given] of Object.entries(kept.labels || {})) {
    if (byUnit.has(name)) take(units[byUnit.get(name)], given);
  }
}

function take(unit, given) {
  const taken = Object.entries(given || {}).filter(([label, value]) => valid(unit, label, value));
  if (taken.length) labels[unit.unit] = Object.fromEntries(taken);
  return taken.length;
}

// ------------------------------------------------------------ what is shown

const text = (name, value) => make("p", { class: name, dir: "auto" }, value);

function show() {
  const unit = units[at];
  set = unit.ask.filter((label) => label in of(unit));
  byId("where").textContent = `Answer ${number.format(at + 1)} of ${number.format(units.length)}`;
  byId("previous").disabled = at === 0;
  byId("next").disabled = at === units.length - 1;
  byId("query").replaceChildren(...unit.query.flatMap((turn) => [
    ...(unit.query.length > 1 ? [make("p", { class: "role" }, turn.role)] : []), text("turn", turn.text)]));
  if (byId("notes")) {
    byId("notes").replaceChildren(...(unit.notes || []).flatMap(([heading, texts]) =>
      [make("h4", {}, heading), ...texts.map((one) => text("note", one))]));
    byId("notes").hidden = !shown || !unit.notes;
    byId("toggle").hidden = !unit.notes;
    byId("toggle").textContent = `${shown ? "Hide" : "Show"} notes on the question`;
    byId("toggle").setAttribute("aria-expanded", String(shown));
  }
  byId("answer").textContent = unit.shown === undefined ? unit.answer : unit.shown;
  byId("labels").replaceChildren(...unit.ask.map((label) => question(unit, label)));
  mark();
}

function question(unit, label) {
  const [title] = QUESTIONS[label];
  const box = make("fieldset", { id: `question-${label}` }, make("legend", {}, title));
  for (const [value, name, key] of options(unit, label)) {
    const input = make("input", { type: "radio", name: label, value: name, id: `${label}-${name}` });
    input.checked = of(unit)[label] === value;
    input.addEventListener("change", () => put(label, value));
    box.append(make("label", { for: input.id }, input, name, make("kbd", { "aria-hidden": "true" }, key)));
  }
  return box;
}

function mark() {
  const unit = units[at];
  const asked = current(unit);
  for (const box of document.querySelectorAll("fieldset")) {
    const here = box.id === `question-${asked}`;
    box.classList.toggle("current", here);
    if (here) box.setAttribute("aria-current", "step");
    else box.removeAttribute("aria-current");
    const label = box.id.slice("question-".length);
    for (const input of box.querySelectorAll("input")) {
      const [value] = QUESTIONS[label][1].find(([, name]) => name === input.value);
      input.checked = of(unit)[label] === value;
    }
  }
  const complete = units.filter(done).length;
  byId("progress").value = complete;
  byId("count").textContent = `${number.format(complete)} of ${number.format(units.length)}`;
}

// ------------------------------------------------------------ what is done

function put(label, value) {
  const unit = units[at];
  labels[unit.unit] = { ...of(unit), [label]: value };
  set = [...set.filter((one) => one !== label), label];
  say(done(unit) ? "All labels are set; Enter goes on." : "");
  keep();
  mark();
}

function takeBack() {
  const last = set.pop();
  if (last === undefined) return;
  delete labels[units[at].unit][last];
  if (!Object.keys(labels[units[at].unit]).length) delete labels[units[at].unit];
  say("");
  keep();
  mark();
}

function go(to) {
  if (to < 0 || to >= units.length || to === at) return;
  at = to;
  say("");
  keep();
  show();
  window.scrollTo(0, 0);
  byId("where").focus({ preventScroll: true });
}

function goOpen() {
  for (let step = 1; step <= units.length; step += 1) {
    const place = (at + step) % units.length;
    if (!done(units[place])) return go(place);
  }
  return say("All answers have their labels. Save them to a file.");
}

function toggle() {
  if (!byId("notes")) return;
  shown = !shown;
  keep();
  show();
}

function row(unit, annotator) {
  const given = { ...of(unit) };
  // One request: its solution serves as both.
  if (!unit.ask.includes("has_intended_solution") && "has_stated_solution" in given) {
    given.has_intended_solution = given.has_stated_solution;
  }
  const ordered = Object.fromEntries(data.labels.filter((l) => l in given).map((l) => [l, given[l]]));
  return { ...unit.row, answer: unit.answer, annotator, labels: ordered, unit: unit.unit, sheet: data.sheet };
}

function save() {
  const annotator = byId("annotator").value.trim();
  if (!annotator) {
    say("Write your name first: it tells your labels from those of others.", true);
    byId("annotator").focus();
    return;
  }
  const some = units.filter((unit) => Object.keys(of(unit)).length);
  if (!some.length) {
    say("There is no label to save yet.", true);
    return;
  }
  const lines = some.map((unit) => `${JSON.stringify(row(unit, annotator))}\n`);
  const link = make("a", { download: `labels-${annotator.replace(/[^\p{L}\p{N}]+/gu, "-")}-${data.sheet}.jsonl` });
  link.href = URL.createObjectURL(new Blob(lines, { type: "application/jsonl" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  const left = units.length - units.filter(done).length;
  say(`Saved labels of ${number.format(some.length)} answers${left ? `; ${number.format(left)} are without all of theirs` : ""}.`);
}

async function load(file) {
  const rows = [];
  try {
    for (const line of (await file.text()).split("\n")) {
      if (line.trim()) rows.push(JSON.parse(line));
    }
  } catch {
    return say("Not loaded: this is no file of labels (one JSON object per line).", true);
  }
  const known = rows.filter((one) => one && byUnit.has(one.unit));
  const names = [...new Set(known.map((one) => String(one.annotator || "")))];
  const mine = byId("annotator").value.trim();
  if (!known.length) return say("Not loaded: no row of this file is of this sheet.", true);
  if (names.length > 1 || (mine && names[0] !== mine)) {
    return say(`Not loaded: these are the labels of ${names.join(", ")}. Everybody has a file of their own.`, true);
  }
  byId("annotator").value = names[0];
  const taken = known.filter((one) => take(units[byUnit.get(one.unit)], one.labels)).length;
  keep();
  show();
  const others = rows.length - taken;
  return say(`Loaded labels of ${number.format(taken)} answers${others ? `; ${number.format(others)} rows are not of this sheet or have no labels` : ""}.`);
}

document.addEventListener("keydown", (event) => {
  const target = event.target;
  const typing = target.tagName === "INPUT" && target.type !== "radio";
  if (typing && event.key === "Escape") target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const pressed = event.key.toLowerCase();
  const asked = current(units[at]);
  const option = asked && options(units[at], asked).find(([, , key]) => key === pressed);
  if (option) put(asked, option[0]);
  else if (pressed === "backspace") takeBack();
  else if (pressed === "j" || (pressed === "enter" && target.tagName !== "BUTTON" && target.tagName !== "A")) go(at + 1);
  else if (pressed === "k") go(at - 1);
  else if (pressed === "x") goOpen();
  else if (pressed === "g") toggle();
  else if (pressed === "d") save();
  else return;
  event.preventDefault();
});
byId("previous").addEventListener("click", () => go(at - 1));
byId("next").addEventListener("click", () => go(at + 1));
byId("open").addEventListener("click", goOpen);
byId("save").addEventListener("click", save);
byId("annotator").addEventListener("input", keep);
byId("labels").addEventListener("submit", (event) => event.preventDefault());
byId("load").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (file) await load(file);
  event.target.value = "";
});
if (byId("toggle")) byId("toggle").addEventListener("click", toggle);

recall();
show();
