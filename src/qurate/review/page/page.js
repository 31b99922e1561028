// The page of a run: its tabs, and its start.
import { showAnswer } from "./answer.js";
import { showImages } from "./images.js";
import { showNext, showProgress } from "./runs.js";
import { $, afterwards, call, doing, state } from "./shared.js";

const TABS = { progress: showProgress, outcome: () => {}, images: showImages, answer: showAnswer, next: showNext };

// The address keeps the tab, so that a reload and the back button do.
function show() {
  const wanted = location.hash.slice(1);
  state.tab = wanted in TABS ? wanted : "outcome";
  for (const name of Object.keys(TABS)) {
    $(`tab-${name}`).hidden = name !== state.tab;
    if (name === state.tab) $(`to-${name}`).setAttribute("aria-current", "page");
    else $(`to-${name}`).removeAttribute("aria-current");
  }
  return afterwards(() => TABS[state.tab]($(`tab-${state.tab}`), state));
}

await doing(async () => {
  const { title, classes, examples, command } = await call("start");
  Object.assign(state, { title, classes, examples, command });
  $("title").textContent = title;
  $("command").textContent = command;
  document.title = `${title} · qurate`;
});
addEventListener("hashchange", show);
await show();
