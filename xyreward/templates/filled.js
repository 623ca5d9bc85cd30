// What pages have in common that a person fills in, one unit after the other. The page's own script follows, with
// MADE and THING (words), done(unit), state(), recallState(kept), row(unit, annotator, index), takeRow(unit, row)
// and show().
const units = data.units;
const byUnit = new Map(units.map((unit, index) => [unit.unit, index]));
const KEPT = `xyreward-sheet-${data.sheet}`;
const counted = (n, one) => `${number.format(n)} ${n === 1 ? one : `${one}s`}`;

let at = 0;

function say(text, bad) {
  byId("message").textContent = text;
  byId("message").className = bad ? "bad" : "";
}

// ------------------------------------------------------------ progress that is kept

function keep() {
  try {
    localStorage.setItem(KEPT, JSON.stringify({ annotator: byId("annotator").value, at, ...state() }));
  } catch {
    say(`This browser does not keep ${MADE}. Save them to a file before you close the page.`, true);
  }
}

function recall() {
  let kept = null;
  try {
    kept = JSON.parse(localStorage.getItem(KEPT));
  } catch {
    say(`${MADE[0].toUpperCase()}${MADE.slice(1)} kept in this browser cannot be read.`, true);
  }
  if (!kept || typeof kept !== "object") return;
  if (typeof kept.annotator === "string") byId("annotator").value = kept.annotator;
  if (Number.isInteger(kept.at) && kept.at >= 0 && kept.at < units.length) at = kept.at;
  recallState(kept);
}

// ------------------------------------------------------------ what is shown

const text = (name, value) => make("p", { class: name, dir: "auto" }, value);

function turns(query) {
  return query.flatMap((turn) => [
    ...(query.length > 1 ? [make("p", { class: "role" }, turn.role)] : []), text("turn", turn.text)]);
}

function texts(notes) {
  return notes.flatMap(([heading, given]) =>
    [make("h4", {}, heading), ...given.map((one) => text("note", one))]);
}

function showPlace() {
  byId("where").textContent =
    `${THING[0].toUpperCase()}${THING.slice(1)} ${number.format(at + 1)} of ${number.format(units.length)}`;
  byId("previous").disabled = at === 0;
  byId("next").disabled = at === units.length - 1;
}

function showProgress() {
  const complete = units.filter(done).length;
  byId("progress").value = complete;
  byId("count").textContent = `${number.format(complete)} of ${number.format(units.length)}`;
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
  return say(`All ${THING}s have their ${MADE}. Save them to a file.`);
}

// ------------------------------------------------------------ files

function save() {
  const annotator = byId("annotator").value.trim();
  if (!annotator) {
    say(`Write your name first: it tells your ${MADE} from those of others.`, true);
    byId("annotator").focus();
    return;
  }
  const rows = units.map((unit) => row(unit, annotator)).filter((one) => one !== null);
  if (!rows.length) {
    say(`There is no ${MADE.slice(0, -1)} to save yet.`, true);
    return;
  }
  const name = annotator.replace(/[^\p{L}\p{N}]+/gu, "-");
  const link = make("a", { download: `${MADE}-${name}-${data.sheet}.jsonl` });
  link.href = URL.createObjectURL(
    new Blob(rows.map((one) => `${JSON.stringify(one)}\n`), { type: "application/jsonl" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  const left = units.length - units.filter(done).length;
  say(`Saved ${MADE} of ${counted(rows.length, THING)}${left ? `; ${LEFT(left)}` : ""}.`);
}

async function load(file) {
  const rows = [];
  try {
    for (const line of (await file.text()).split("\n")) {
      if (line.trim()) rows.push(JSON.parse(line));
    }
  } catch {
    return say(`Not loaded: this is no file of ${MADE} (one JSON object per line).`, true);
  }
  const known = rows.filter((one) => one && byUnit.has(one.unit));
  const names = [...new Set(known.map((one) => String(one.annotator || "")))];
  const mine = byId("annotator").value.trim();
  if (!known.length) return say("Not loaded: no row of this file is of this sheet.", true);
  if (names.length > 1 || (mine && names[0] !== mine)) {
    return say(
      `Not loaded: these are the ${MADE} of ${names.join(", ")}. Everybody has a file of their own.`, true);
  }
  byId("annotator").value = names[0];
  const taken = known.filter((one) => takeRow(units[byUnit.get(one.unit)], one)).length;
  keep();
  show();
  const others = rows.length - taken;
  const of = `${counted(others, "row")} ${others === 1 ? "is" : "are"} not of this sheet or without ${MADE}`;
  return say(`Loaded ${MADE} of ${counted(taken, THING)}${others ? `; ${of}` : ""}.`);
}

// ------------------------------------------------------------ keys and buttons

// In a field letters are text; on a button or link Enter is its own.
function typing(target) {
  return target.tagName === "TEXTAREA" || (target.tagName === "INPUT" && target.type !== "radio");
}

function commonKey(pressed, target) {
  if (pressed === "j" || (pressed === "enter" && !["BUTTON", "A"].includes(target.tagName))) go(at + 1);
  else if (pressed === "k") go(at - 1);
  else if (pressed === "x") goOpen();
  else if (pressed === "d") save();
  else return false;
  return true;
}

function begin(onKey) {
  document.addEventListener("keydown", (event) => {
    const target = event.target;
    if (typing(target)) {
      if (event.key === "Escape") target.blur();
      else if (event.key === "Enter" && (target.id === "reason" || event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        target.blur();
        go(at + 1);
      }
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const pressed = event.key.toLowerCase();
    if (onKey(pressed) || commonKey(pressed, target)) event.preventDefault();
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
  recall();
  show();
}
