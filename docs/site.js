// Code and tables that are wider than the page can be scrolled with the keyboard, and every copy button says of which code it is.
// The theme makes the buttons, and takes the tabindex away, when a block comes into sight.
function mend() {
  for (const wide of document.querySelectorAll("pre > code:not([tabindex]), .md-typeset__scrollwrap:not([tabindex])")) wide.tabIndex = 0;
  document.querySelectorAll(".md-code__nav:not([aria-label])").forEach((nav, i) => {
    nav.setAttribute("aria-label", `Copy ${nav.parentElement.id || i}`);
  });
}
new MutationObserver(mend).observe(document.body, { attributeFilter: ["tabindex"], childList: true, subtree: true });
mend();
