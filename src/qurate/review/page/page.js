// The page of a run: its tabs, its start, and what it shows until the model is loaded.
import { showAnswer } from "./answer.js";
import { showImages } from "./images.js";
import { showBegin, showNext, showOutcome, showProgress } from "./runs.js";
import { $, afterwards, call, doing, element, pause, state } from "./shared.js";

const TABS = { progress: showProgress, outcome: showOutcome, images: showImages, answer: showAnswer, next: showNext };
const NEED_MODEL = ["images", "answer", "next"];

// The address keeps the tab, so that a reload and the back button do.
function show() {
  const wanted = location.hash.slice(1), { run } = state;
  state.tab = wanted in TABS ? wanted : run.state === "finished" ? "outcome" : "progress";
  const waits = !state.ready && NEED_MODEL.includes(state.tab);
  $("waiting").hidden = !waits;
  if (waits) $("waiting").replaceChildren(...whyNot(run));
  for (const name of Object.keys(TABS)) {
    $(`tab-${name}`).hidden = name !== state.tab || waits;
    if (name === state.tab) $(`to-${name}`).setAttribute("aria-current", "page");
    else $(`to-${name}`).removeAttribute("aria-current");
  }
  return waits ? null : afterwards(() => TABS[state.tab]($(`tab-${state.tab}`)));
}

function whyNot(run) {
  if (run.problem) return [run.problem];
  const [done, total] = run.loaded ?? [0, 0];
  if (run.loaded) return ["The model looks at the images", total ? `: ${done} of ${total}.` : " ..."];
  return ["The images and the questions are here when the run is finished. ", element("a", { href: "#progress", textContent: "See how far it is" }), "."];
}

async function start() {
  const { classes, examples, command } = await call("start");
  Object.assign(state, { classes, examples, command, ready: true });
}

// Until the run is finished and its model is loaded.
async function watch() {
  while (!(state.ready && state.run.state === "finished")) {
    await pause(1000);
    try {
      state.run = await call("status");
    } catch (error) {
      $("problem").textContent = error.message;
      $("problem").hidden = false;
      continue;
    }
    if (state.ready && !state.run.ready) return location.reload(); // the model was written again
    const isNew = state.run.ready && !state.ready;
    if (isNew) await doing(start);
    if (isNew || ["progress", "outcome"].includes(state.tab) || !$("waiting").hidden) await show();
  }
}

if (/\/\d+\/$/.test(location.pathname)) {
  await doing(async () => {
    state.run = await call("status");
    state.title = state.run.title;
    $("title").textContent = `· ${state.title}`;
    document.title = `${state.title} · qurate`;
    if (state.run.ready) await start();
  });
  if (state.run) {
    addEventListener("hashchange", show);
    await show();
    watch();
  }
} else {
  $("tabs").hidden = true;
  $("tab-begin").hidden = false;
  await doing(() => showBegin($("tab-begin")));
}
