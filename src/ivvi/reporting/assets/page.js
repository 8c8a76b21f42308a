"use strict";
(() => {
  const root = document.documentElement;

  // light and dark: the system's choice until the reader makes one
  const theme = document.getElementById("theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const label = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; label(); });
  prefersDark.addEventListener("change", label);
  label();

  // tables: a heading sorts its column, once more turns it round; cells without a value stay last
  const compare = (one, two) => {
    const [a, b] = [Number(one), Number(two)];
    return Number.isNaN(a) || Number.isNaN(b) ? one.localeCompare(two, "en", { numeric: true }) : a - b;
  };
  const sort = (table, heading, column) => {
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.cells[column].dataset.value;
    const rows = [...table.tBodies[0].rows].sort((one, two) => {
      const [a, b] = [value(one), value(two)];
      if (a === "" || b === "") return (a === "") - (b === "");
      return down ? compare(b, a) : compare(a, b);
    });
    table.tBodies[0].append(...rows);
  };
  for (const table of document.querySelectorAll("table")) {
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      heading.firstElementChild.addEventListener("click", () => sort(table, heading, column));
    });
  }
})();
