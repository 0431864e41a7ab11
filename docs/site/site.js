/* What the theme adds while a page is read, for keyboards and screen readers: wide tables scroll by the
   keyboard, the buttons at code are no part of the page's structure, an empty corner of a table is no heading. */
function forEverybody() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
  for (const nav of document.querySelectorAll(".md-code__nav")) nav.setAttribute("role", "none");
  for (const head of document.querySelectorAll("th:empty")) head.replaceWith(document.createElement("td"));
}
new MutationObserver(forEverybody).observe(document.documentElement, { childList: true, subtree: true });
window.addEventListener("resize", forEverybody);
forEverybody();
