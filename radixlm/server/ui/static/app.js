// Ties the page together: views, the key, and the questions asked of the server every second.

import { getJson, Refused, storedKey, storeKey } from "./api.js";
import { Chat } from "./chat.js";
import { Dashboard } from "./dashboard.js";
import { find, setText } from "./dom.js";
import { Timeline } from "./timeline.js";
import { Tree } from "./tree.js";

const STATE_EVERY_MS = 1000;
const TREE_EVERY = 3; // states

const views = ["dashboard", "chat"];
const dashboard = new Dashboard();
const tree = new Tree();
const timeline = new Timeline();
new Chat(askForKey);

function choose(view, focus = false) {
  for (const name of views) {
    const tab = find(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === view));
    tab.tabIndex = name === view ? 0 : -1;
    find(name).hidden = name !== view;
    if (name === view && focus) tab.focus();
  }
  history.replaceState(null, "", `#${view}`);
  if (view === "chat" && !focus) find("prompt").focus();
}

for (const view of views) {
  find(`tab-${view}`).addEventListener("click", () => choose(view));
  find(`tab-${view}`).addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    choose(views[(views.indexOf(view) + 1) % views.length], true);
  });
}

let needsKey = false; // nothing more is asked until there is one

function askForKey() {
  needsKey = true;
  find("change-key").hidden = false;
  const dialog = find("key-dialog");
  if (dialog.open) return;
  find("key-error").textContent = storedKey() ? "The server does not accept this key." : "";
  find("key").value = "";
  dialog.showModal();
}

find("key-form").addEventListener("submit", () => {
  storeKey(find("key").value.trim());
  needsKey = false;
  refresh();
});
find("change-key").addEventListener("click", askForKey);

function say(kind, text) {
  find("status").className = `status ${kind}`;
  setText("status", text);
}

function show(state) {
  setText("model", state.model);
  document.title = `${state.model} · RadixLM`;
  find("change-key").hidden = !storedKey();
  if (state.draining) say("busy", "shutting down");
  else if (state.paused) say("busy", "paused");
  else say("good", "ready");
  dashboard.add(state);
  const clock = Math.max(state.now, ...state.requests.map((one) => one.created + (one.ended ?? one.last ?? 0)));
  timeline.show(state.requests, clock);
}

async function showTree() {
  try {
    tree.show(await getJson("ui/tree"));
  } catch (error) {
    if (error instanceof Refused) tree.refuse(error.message);
  }
}

let turn = 0;
let asking = false;

async function refresh() {
  if (asking || needsKey || document.hidden || find("dashboard").hidden) return;
  asking = true;
  try {
    show(await getJson("ui/state"));
    if (turn++ % TREE_EVERY === 0) await showTree();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) {
      say("bad", "needs a key");
      askForKey();
    } else {
      say("bad", error instanceof Refused ? error.message : "no answer");
    }
  } finally {
    asking = false;
  }
}

choose(views.find((view) => location.hash === `#${view}`) ?? "dashboard", true);
document.addEventListener("visibilitychange", refresh);
setInterval(refresh, STATE_EVERY_MS);
refresh();
