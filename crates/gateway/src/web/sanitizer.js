// HTML made of a model's text to elements, by a list of allowed elements and attributes. Nothing else of the page makes
// elements of HTML, and the content security policy has browsers refuse it (`require-trusted-types-for`).

const { DOMPurify } = globalThis;

/** Links lead to the web or to mail; other schemes, `javascript:` among them, make no link. */
export const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;

const words = (text) => text.trim().split(/\s+/);
const HTML_TAGS = words(`p br hr em strong s a code pre blockquote ul ol li h3 div table thead tbody tr th td span`);
const HTML_ATTRIBUTES = words("href target rel dir class start role tabindex aria-label data-language data-style");
const MATH_TAGS = words(`math mrow mi mn mo ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover
  mmultiscripts mprescripts mtable mtr mtd mstyle menclose mpadded mphantom merror`);
const MATH_ATTRIBUTES = words(`display displaystyle scriptlevel stretchy fence form lspace rspace separator largeop
  movablelimits accent accentunder width height depth voffset linethickness mathsize mathvariant mathbackground minsize
  maxsize symmetric rowspan columnspan columnalign notation`);
const ATTRIBUTES = [...HTML_ATTRIBUTES, ...MATH_ATTRIBUTES];

const ALLOWED = {
  ALLOWED_TAGS: [...HTML_TAGS, ...MATH_TAGS],
  ALLOWED_ATTR: ATTRIBUTES,
  ADD_URI_SAFE_ATTR: ATTRIBUTES.filter((name) => name !== "href"),
  ALLOWED_URI_REGEXP: SAFE_LINK,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** A fragment with the allowed elements of some HTML. */
export function sanitize(html) {
  return DOMPurify.sanitize(html, ALLOWED);
}
