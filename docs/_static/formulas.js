// A formula inside of a sentence that is wider than its column becomes one that scrolls.
(() => {
  const mark = () => {
    for (const formula of document.querySelectorAll("span.math mjx-container")) {
      formula.classList.remove("wide");
      const column = formula.closest("p, dd, li, td, th, div");
      formula.classList.toggle("wide", formula.getBoundingClientRect().width > column.clientWidth);
    }
  };
  window.addEventListener("load", () => window.MathJax?.startup?.promise.then(mark));
  window.addEventListener("resize", mark);
})();
