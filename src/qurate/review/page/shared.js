// What all tabs share: the state of the page, requests to the server, and small parts of the page.
export const $ = id => document.getElementById(id);
export const state = { classes: [], added: [], examples: [], trusted: [], busy: false, tab: "", title: "", run: null, ready: false };
const SAVED = ["answers", "undo"];
const watchers = [];
// Called with every summary of the answers that the server sends.
export const onSummary = watcher => watchers.push(watcher);

export async function call(path, body) {
  if (path === "answers") body = { by: localStorage.getItem("by") ?? "", ...body }; // who answers, if they said so
  const options = body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("The server has ended, so nothing more is saved. Start `qurate open` again; all answers so far are kept.");
  }
  const text = await answer.text();
  let reply = { problem: text || `the server answers ${answer.status}` };
  try { reply = JSON.parse(text); } catch { /* a refusal is in plain text */ }
  if (!answer.ok) throw new Error(SAVED.includes(path) ? `Not saved: ${reply.problem}` : reply.problem);
  if (reply.trusted) state.trusted = reply.trusted;
  if (reply.summary) for (const watcher of watchers) watcher(reply.summary);
  return reply;
}

// Answers that can be undone, by any tab; a reload keeps them. With the token: another server on this port has others.
const ACTS = `acts ${location.pathname}`;
export const acts = JSON.parse(sessionStorage.getItem(ACTS) ?? "[]");
const keepActs = () => sessionStorage.setItem(ACTS, JSON.stringify(acts.slice(-500)));
export async function save(answers) {
  acts.push((await call("answers", { answers })).id);
  keepActs();
}
export async function undoLast() {
  const { undone } = await call("undo", { id: acts.at(-1) });
  acts.pop();
  keepActs();
  $("status").textContent = undone ? "Undone." : "It had been taken back already.";
}

// A screen reader waits for what is being drawn.
function setBusy(busy) {
  state.busy = busy;
  document.querySelector("main").setAttribute("aria-busy", busy);
}

// One thing at a time: a second key press while an answer is being saved is not an answer to the next image.
let running = Promise.resolve();
export async function doing(work) {
  if (!state.busy) running = run(work);
  await running;
}
// The same, after what is being done.
export const afterwards = work => running.then(() => doing(work));

async function run(work) {
  setBusy(true);
  try {
    await work();
    $("problem").hidden = true;
  } catch (error) {
    $("problem").textContent = error.message;
    $("problem").hidden = false;
  } finally {
    setBusy(false);
  }
}

export const pause = milliseconds => new Promise(done => setTimeout(done, milliseconds));
export const percent = share => share > 0 && share < .005 ? "under 1 %" : share < 1 && share >= .995 ? "over 99 %" : `${Math.round(100 * share)} %`;
export const short = share => percent(share).replace("under ", "<").replace("over ", ">");
export const plural = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
// The classes with a key come in the order of the keys: 1 to 9, then 0.
export const keyOf = place => (place + 1) % 10;
export const placeOf = key => /^[0-9]$/.test(key) ? (Number(key) + 9) % 10 : -1;
export const fileName = path => path.split(/[\\/]/).pop();

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// A name that is written from right to left must not turn the words around it.
export const isolated = name => `\u2068${name}\u2069`;
// A name that may be broken into lines after its underscores.
export const breakable = name => name.split("_").flatMap((part, i) => i ? ["_", element("wbr"), part] : [part]);

export function picture(path, alt, properties = {}) {
  const image = element("img", { alt, ...properties });
  image.addEventListener("load", () => image.classList.toggle("tiny", Math.max(image.naturalWidth, image.naturalHeight) <= 48));
  image.src = path;
  return image;
}
