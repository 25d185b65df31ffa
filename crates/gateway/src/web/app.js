// Wires the page: storage, chat, list, composer, dialogs and keys.

import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { ConversationView } from "./conversation_view.js";
import { $, announce, download } from "./dom.js";
import { MemoryStorage } from "./memory_storage.js";
import { askForKey, chooseModel, chosenModel, loadModels, takesImages } from "./models.js";
import { preferences } from "./preferences.js";
import { CopiedStorage } from "./server_copy.js";
import { openSettingsWith, settings } from "./settings.js";
import { describeShortcuts, listen } from "./shortcuts.js";
import { Sidebar } from "./sidebar.js";
import { BrowserStorage } from "./storage.js";
import { exportText, importFile } from "./transfer.js";

const WIDE = matchMedia("(min-width: 62rem)");

async function openStorage() {
  if (!preferences.get("keep")) return new MemoryStorage();
  try { return withCopy(await BrowserStorage.open()); } catch {
    say("This browser keeps nothing: conversations end with the page.");
    return new MemoryStorage();
  }
}

function withCopy(storage) {
  if (!preferences.get("copy")) return storage;
  const onState = (text, isFault) => {
    $("copy-state").textContent = text;
    $("copy-state").classList.toggle("error", isFault);
  };
  const copied = new CopiedStorage(storage, { key: () => preferences.key, onState });
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "hidden") copied.flush();
    else copied.synchronize();
  });
  return copied;
}

const storage = await openStorage();

const view = new ConversationView({
  edit: (message, text) => ifReady(() => chat.edit(message, text)),
  regenerate: (message) => ifReady(() => chat.regenerate(message)),
  resume: (message) => ifReady(() => chat.resume(message)),
  choose: (message, idx, text) => ifReady(() => chat.choose(message, idx, text)),
  giveResults: (message, texts) => ifReady(() => chat.giveResults(message, texts)),
  select: (message) => {
    if (chat.isBusy) return;
    chat.select(message);
    view.viewOf(message)?.element.querySelector(".versions button:enabled")?.focus();
  },
});

const chat = new Chat(storage, view, {
  request: (conversation) => ({
    model: chosenModel(),
    key: preferences.key,
    system: conversation.record.system,
    settings: settings(),
  }),
  onList: () => sidebar.refresh(),
  onState: (finished) => {
    if (!chat.conversation) return;
    sidebar.current = chat.conversation.record.id;
    if (chat.last) showAddress(chat.conversation.record.id);
    composer.update();
    if (!finished) return;
    announce(finished.error ? `The answer failed: ${finished.error}` : "The answer is complete.");
    if (document.activeElement === document.body) composer.focus();
  },
  onNotKept: (error) => say(`This conversation is not kept: ${error.message}`),
  onRefused: (error) => { askForKey(error); composer.update(); },
});

const composer = new Composer({
  send: (text, images) => chat.send(text, images),
  stop: () => chat.stop(),
  editLast: () => editLast(),
  isBusy: () => chat.isBusy,
  isReady: () => Boolean(chosenModel()) && chat.isReady,
  takesImages,
});
$("model").addEventListener("change", () => composer.update());

const sidebar = new Sidebar(storage, {
  open: async (id, message) => {
    await openConversation(id, message);
    if (!WIDE.matches) showSidebar(false);
  },
  rename: (head, title) => chat.rename(head, title),
  remove: async (head) => {
    await chat.remove(head);
    if (chat.conversation.record.id === head.id) newChat();
  },
  exported: async (head) => download(`${head.title}.json`, await exportText(storage, [head]), "application/json"),
  isBusy: (id) => chat.isAnswering(id),
});
storage.onChange(() => sidebar.refresh());

function ifReady(act) {
  if (chosenModel() && chat.isReady) act();
}

function say(text) {
  $("message").textContent = text;
  $("message").hidden = !text;
}

// ---- conversations

function showAddress(id) {
  const address = id ? `#${id}` : location.pathname + location.search;
  if (location.hash !== (id ? address : "")) history.pushState(null, "", address);
}

function newChat() {
  showAddress(null);
  chat.create(preferences.get("system"));
  $("system").value = chat.conversation.record.system;
  sidebar.refresh();
  if (!WIDE.matches) showSidebar(false);
  composer.focus();
}

async function openConversation(id, message) {
  if (!(await chat.open(id, message))) {
    newChat();
    return;
  }
  $("system").value = chat.conversation.record.system;
  if (chat.conversation.record.model) chooseModel(chat.conversation.record.model);
  sidebar.refresh();
}

function openAddress() {
  const id = location.hash.slice(1);
  return id ? openConversation(id) : newChat();
}

function lastOf(role) {
  return chat.conversation.path.findLast((message) => message.role === role);
}

function editLast() {
  const last = lastOf("user");
  if (!last || chat.isBusy) return false;
  view.viewOf(last)?.edit();
  return true;
}

// ---- sidebar and dialogs

function showSidebar(isShown) {
  document.body.classList.toggle("with-sidebar", isShown);
  $("toggle-sidebar").setAttribute("aria-expanded", String(isShown));
  $("sidebar").inert = !isShown;
  $("main-part").inert = isShown && !WIDE.matches;
  if (WIDE.matches) preferences.set("sidebar", isShown);
}

const isSidebarShown = () => document.body.classList.contains("with-sidebar");

$("toggle-sidebar").addEventListener("click", () => {
  showSidebar(!isSidebarShown());
  if (isSidebarShown() && !WIDE.matches) $("search").focus();
});
$("scrim").addEventListener("click", () => showSidebar(false));
WIDE.addEventListener("change", () => showSidebar(WIDE.matches && preferences.get("sidebar")));
$("new").addEventListener("click", newChat);
$("open-settings").addEventListener("click", () => $("settings").showModal());
$("open-shortcuts").addEventListener("click", () => $("shortcuts").showModal());
$("shortcuts").addEventListener("close", () => composer.focus());
$("ideas").addEventListener("click", (event) => {
  if (event.target.tagName === "BUTTON") ifReady(() => chat.send(event.target.textContent));
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (isSidebarShown() && !WIDE.matches) {
    showSidebar(false);
    $("toggle-sidebar").focus();
  } else if (chat.isBusy) chat.stop();
});
addEventListener("popstate", openAddress);

openSettingsWith((isKeepingChanged) => {
  if (isKeepingChanged) location.reload();
  else storage.synchronize?.(true);
  chat.setSystem($("system").value);
  if (!chosenModel()) loadModels(() => composer.update());
  composer.focus();
});

// ---- conversations as files

$("export").addEventListener("click", async () => {
  const text = await exportText(storage, await storage.conversations());
  download("throng-conversations.json", text, "application/json");
});
$("import").addEventListener("click", () => $("import-file").click());
$("import-file").addEventListener("change", async () => {
  const [file] = $("import-file").files;
  if (!file) return;
  try {
    const read = await importFile(file);
    for (const { head, messages } of read) await storage.save(head, messages);
    $("transfer-state").textContent = `Imported: ${read.length}`;
  } catch (error) { $("transfer-state").textContent = error.message; }
  $("import-file").value = "";
  sidebar.refresh();
});
$("delete-all").addEventListener("click", async (event) => {
  const node = event.currentTarget;
  if (!node.dataset.sure) {
    node.dataset.sure = "true";
    node.textContent = "Delete all? Press again";
    node.addEventListener("blur", () => { delete node.dataset.sure; node.textContent = "Delete all"; }, { once: true });
    return;
  }
  await chat.removeAll();
  $("transfer-state").textContent = "All conversations are deleted.";
  newChat();
});

listen({
  search: () => { showSidebar(true); $("search").focus(); $("search").select(); },
  newChat,
  toggleSidebar: () => showSidebar(!isSidebarShown()),
  editLast,
  regenerate: () => { if (lastOf("assistant")) ifReady(() => chat.regenerate(lastOf("assistant"))); },
  settings: () => $("settings").showModal(),
  shortcuts: () => ($("shortcuts").open ? $("shortcuts").close() : $("shortcuts").showModal()),
});
describeShortcuts();
showSidebar(WIDE.matches && preferences.get("sidebar"));
await openAddress();
storage.synchronize?.(true);
loadModels(() => composer.update());
