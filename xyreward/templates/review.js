const MADE = "decisions", THING = "item";
const LEFT = (n) => `${number.format(n)} ${n === 1 ? "is" : "are"} without one`;
const DECISIONS = [["keep", "keep as it is", "y"], ["edit", "keep with edits", "e"], ["reject", "reject", "r"]];

let decisions = {};  // unit -> { decision, reason, edits: field -> text, date }

const of = (unit) => decisions[unit.unit] || {};
const folded = (given) => given.replace(/\r\n?/g, "\n");  // as a field has it
const edits = (unit) => {
  const given = Object.entries(of(unit).edits || {});
  return given.filter(([name, value]) => unit.fields.some((f) => f.name === name && folded(f.text) !== value));
};
const state = () => ({ decisions });

function lacks(unit) {
  const { decision, reason } = of(unit);
  if (!decision) return "There is no decision yet.";
  if (decision === "reject" && !(reason || "").trim()) return "Say why it is rejected.";
  if (decision !== "edit") return "";
  if (!edits(unit).length) return "Nothing is edited yet.";
  return edits(unit).some(([, value]) => !value.trim()) ? "A field is empty; reject the item, or write something." : "";
}

const done = (unit) => !lacks(unit);

function take(unit, given) {
  if (!given || !DECISIONS.some(([name]) => name === given.decision)) return false;
  const known = Object.entries(given.edits || {}).filter(
    ([name, value]) => typeof value === "string" && unit.fields.some((field) => field.name === name));
  decisions[unit.unit] = {
    decision: given.decision,
    reason: typeof given.reason === "string" ? given.reason : "",
    edits: Object.fromEntries(known),
    date: typeof given.date === "string" ? given.date : today(),
  };
  return true;
}

function recallState(kept) {
  for (const [name, given] of Object.entries(kept.decisions || {})) {
    if (byUnit.has(name)) take(units[byUnit.get(name)], given);
  }
}

const today = () => new Date().toISOString().slice(0, 10);
const takeRow = (unit, given) => given.item_hash === unit.hash && take(unit, given);

function row(unit, annotator) {
  if (!done(unit)) return null;
  const { decision, reason, date } = of(unit);
  return {
    item_id: unit.id, item_hash: unit.hash, decision,
    ...(decision === "reject" ? { reason: reason.trim() } : {}),
    ...(decision === "edit" ? { edits: Object.fromEntries(edits(unit)) } : {}),
    annotator, date, unit: unit.unit, sheet: data.sheet,
  };
}

// ------------------------------------------------------------ what is shown

function show() {
  const unit = units[at];
  const editing = of(unit).decision === "edit";
  showPlace();
  byId("item").replaceChildren(
    text("about", unit.about),
    ...unit.fields.flatMap((field) => shownField(unit, field, editing)),
    ...texts(unit.notes));
  byId("sources").replaceChildren(...texts(unit.sources));
  byId("labels").replaceChildren(panel(unit));
  mark();
}

function shownField(unit, field, editing) {
  const heading = make("h3", { id: `heading-${field.name}` }, field.heading);
  const about = field.about ? [text("about", field.about)] : [];
  if (!editing || field.fixed) {
    const given = field.turns ? make("div", {}, ...turns(field.turns)) : text("text", field.shown || field.text);
    given.id = `field-${field.name}`;
    return [heading, ...about, given];
  }
  const area = make("textarea", {
    id: `field-${field.name}`, "aria-labelledby": heading.id, dir: "auto", spellcheck: "false" });
  const edited = (of(unit).edits || {})[field.name];
  area.value = edited === undefined ? field.text : edited;
  const changed = () => {
    const given = { ...of(unit).edits, [field.name]: area.value };
    if (area.value === folded(field.text)) delete given[field.name];
    decisions[unit.unit] = { ...of(unit), edits: given, date: today() };
    keep();
    mark();
  };
  for (const event of ["input", "change"]) area.addEventListener(event, changed);
  return [heading, ...about, area];
}

function panel(unit) {
  const box = make("fieldset", { id: "decision" }, make("legend", {}, "Decision"));
  for (const [name, words, key] of DECISIONS) {
    const input = make("input", { type: "radio", name: "decision", value: name, id: `decision-${name}` });
    input.checked = of(unit).decision === name;
    input.addEventListener("change", () => decide(name));
    box.append(make("label", { for: input.id }, input, words, make("kbd", { "aria-hidden": "true" }, key)));
  }
  const reason = make("input", { id: "reason", autocomplete: "off", maxlength: "500", list: "reasons" });
  reason.value = of(unit).reason || "";
  reason.addEventListener("input", () => {
    decisions[unit.unit] = { ...of(unit), reason: reason.value, date: today() };
    keep();
    mark();
  });
  const why = make("div", { id: "why" },
    make("label", { for: "reason" }, "Why it is rejected"), reason,
    make("datalist", { id: "reasons" }, ...data.reasons.map((one) => make("option", { value: one }))));
  box.append(why, make("p", { id: "lacks", class: "quiet", role: "status" }));
  return box;
}

function mark() {
  const unit = units[at];
  const { decision } = of(unit);
  byId("decision").classList.toggle("current", !done(unit));
  for (const input of byId("decision").querySelectorAll("input[type=radio]")) {
    input.checked = input.value === decision;
  }
  byId("why").hidden = decision !== "reject";
  byId("lacks").textContent = lacks(unit);
  for (const field of unit.fields) {
    const changed = decision === "edit" && edits(unit).some(([name]) => name === field.name);
    byId(`heading-${field.name}`).classList.toggle("edited", changed);
  }
  showProgress();
}

// ------------------------------------------------------------ what is done

function decide(name) {
  const unit = units[at];
  decisions[unit.unit] = { ...of(unit), decision: name, date: today() };
  keep();
  show();
  say(name === "keep" ? "Enter goes on." : "");
  if (name === "reject") byId("reason").focus();
  if (name === "edit") (document.querySelector("#item textarea") || byId("where")).focus();
}

function takeBack() {
  const unit = units[at];
  if (!of(unit).decision) return;
  delete decisions[unit.unit].decision;  // what was written stays, should the item be edited after all
  say("");
  keep();
  show();
}

begin((pressed) => {
  const option = DECISIONS.find(([, , key]) => key === pressed);
  if (option) decide(option[0]);
  else if (pressed === "backspace") takeBack();
  else return false;
  return true;
});
