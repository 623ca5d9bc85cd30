const MADE = "labels", THING = "answer";
const LEFT = (n) => `${number.format(n)} ${n === 1 ? "is without all of its" : "are without all of theirs"}`;
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

let labels = {};  // unit -> label -> value
let set = [];  // labels of this answer in the order in which they were set
let shown = true;

const of = (unit) => labels[unit.unit] || {};
const done = (unit) => unit.ask.every((label) => label in of(unit));
const current = (unit) => unit.ask.find((label) => !(label in of(unit)));
const state = () => ({ shown, labels });

function recallState(kept) {
  shown = kept.shown !== false;
  for (const [name, given] of Object.entries(kept.labels || {})) {
    if (byUnit.has(name)) take(units[byUnit.get(name)], given);
  }
}

function valid(unit, label, value) {
  return unit.ask.includes(label) && options(unit, label).some(([one]) => one === value);
}

function take(unit, given) {
  const taken = Object.entries(given || {}).filter(([label, value]) => valid(unit, label, value));
  if (taken.length) labels[unit.unit] = Object.fromEntries(taken);
  return taken.length;
}

const takeRow = (unit, given) => take(unit, given.labels);

// ------------------------------------------------------------ what is shown

function show() {
  const unit = units[at];
  set = unit.ask.filter((label) => label in of(unit));
  showPlace();
  byId("query").replaceChildren(...turns(unit.query));
  if (byId("notes")) {
    byId("notes").replaceChildren(...texts(unit.notes || []));
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
  showProgress();
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

function toggle() {
  if (!byId("notes")) return;
  shown = !shown;
  keep();
  show();
}

function row(unit, annotator) {
  const given = { ...of(unit) };
  if (!Object.keys(given).length) return null;
  // One request: its solution serves as both.
  if (!unit.ask.includes("has_intended_solution") && "has_stated_solution" in given) {
    given.has_intended_solution = given.has_stated_solution;
  }
  const ordered = Object.fromEntries(data.labels.filter((l) => l in given).map((l) => [l, given[l]]));
  return { ...unit.row, answer: unit.answer, annotator, labels: ordered, unit: unit.unit, sheet: data.sheet };
}

if (byId("toggle")) byId("toggle").addEventListener("click", toggle);
begin((pressed) => {
  const asked = current(units[at]);
  const option = asked && options(units[at], asked).find(([, , key]) => key === pressed);
  if (option) put(asked, option[0]);
  else if (pressed === "backspace") takeBack();
  else if (pressed === "g") toggle();
  else return false;
  return true;
});
