// The choice of a model, its notice, and the question for a key.

import { $ } from "./dom.js";
import { preferences } from "./preferences.js";
import { listModels, ServerError } from "./server.js";

const RETRY_MS = 3_000;
const MAX_NOTICES = 100;

let models = [];

/** The chosen model; empty while there is none. */
export const chosenModel = () => ($("model").disabled ? "" : $("model").value);

/** Whether the chosen model takes images. */
export function takesImages() {
  const model = models.find(({ id }) => id === chosenModel());
  return Boolean(model?.input_modalities?.includes("image"));
}

/** Chooses a model if the server has it. */
export function chooseModel(id) {
  if (models.some((model) => model.id === id)) $("model").value = id;
  showChosen();
}

function showChosen() {
  const model = models.find(({ id }) => id === $("model").value);
  const seen = preferences.get("notices");
  $("welcome-model").textContent = $("model").value;
  $("notice").hidden = !model?.notice || seen.includes(model.id);
  $("notice").querySelector("p").textContent = model?.notice ?? "";
}

/** Opens the settings where the key is; says whether it is missing or wrong. */
export function askForKey(error) {
  const isWrong = error.code === "invalid_api_key";
  $("model").replaceChildren(new Option(isWrong ? "API key wrong" : "API key needed"));
  $("model").disabled = true;
  $("key-state").textContent = isWrong ? "The server does not accept this key." : "The server asks for a key.";
  if (!$("settings").open) $("settings").showModal();
  $("key").focus();
}

/** Asks the server for its models until it answers. */
export async function loadModels(onLoaded) {
  try {
    models = await listModels(preferences.key);
  } catch (error) {
    if (error instanceof ServerError && error.status === 401) {
      askForKey(error);
      onLoaded();
      return;
    }
    $("model").replaceChildren(new Option("server not reachable"));
    setTimeout(() => loadModels(onLoaded), RETRY_MS);
    return;
  }
  $("key-state").textContent = "";
  $("model").replaceChildren(...models.map(({ id }) => new Option(id, id)));
  $("model").disabled = models.length === 0;
  chooseModel(preferences.get("model"));
  onLoaded();
}

$("model").addEventListener("change", () => {
  preferences.set("model", $("model").value);
  showChosen();
});
$("notice").querySelector("button").addEventListener("click", () => {
  preferences.set("notices", [...preferences.get("notices"), $("model").value].slice(-MAX_NOTICES));
  showChosen();
});
