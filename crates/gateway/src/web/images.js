// Images of messages. A file is kept as a `data:` URL, as a request has it.

import { element } from "./dom.js";

export const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];
export const MAX_IMAGES = 8;
const MAX_BYTES = 20 * 1024 * 1024;
const DATA_URL = /^data:(image\/[a-z]+);base64,([A-Za-z0-9+/]+={0,2})$/;

/** The image in a file as a `data:` URL; null if it is none that models take. */
export function readImage(file) {
  if (!TYPES.includes(file.type) || file.size > MAX_BYTES) return null;
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => resolve(null));
    reader.readAsDataURL(file);
  });
}

/** Whether a text is the `data:` URL of an image. */
export function isImageUrl(text) {
  return typeof text === "string" && TYPES.includes(DATA_URL.exec(text)?.[1]);
}

/** A small view of an image. The page shows no `data:` URLs, so that no text can become an image. */
export function thumbnail(url, label) {
  const image = element("img", "thumbnail");
  image.alt = label;
  const [, type, data] = DATA_URL.exec(url) ?? [];
  if (!TYPES.includes(type)) return image;
  const bytes = Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
  image.src = URL.createObjectURL(new Blob([bytes], { type }));
  image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
  return image;
}
