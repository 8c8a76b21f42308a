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

  // walks: the paths are drawn in full; the script takes them back and lets them grow
  const walk = (figure) => {
    const series = JSON.parse(figure.dataset.walk).series.map(({ name, path, cost }) => {
      const line = figure.querySelector(`.${path} path`);
      const points = line.getAttribute("d").match(/-?[\d.]+ -?[\d.]+/g);
      const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
      dot.setAttribute("r", 4.5);
      dot.style.fill = line.style.stroke;
      line.after(dot);
      return { name, line, points, cost, dot };
    });
    const last = series[0].points.length - 1;
    const controls = document.createElement("div");
    const play = document.createElement("button");
    const slider = document.createElement("input");
    const said = document.createElement("span");
    controls.className = "controls";
    Object.assign(play, { type: "button", textContent: "Play" });
    Object.assign(slider, { type: "range", min: 0, max: last, value: last, ariaLabel: "step" });
    controls.append(play, slider, said);
    figure.querySelector(".pictures").before(controls);

    const show = (step) => {
      for (const { line, points, dot } of series) {
        const [x, y] = points[step].split(" ");
        line.setAttribute("d", `M ${points.slice(0, step + 1).join(" L ")}`);
        dot.setAttribute("cx", x);
        dot.setAttribute("cy", y);
      }
      slider.value = step;
      const costs = series.map(({ name, cost }) => `${name} ${cost[step].toFixed(0)}`);
      said.textContent = `step ${step} of ${last}, cost so far: ${costs.join(", ")}`;
    };
    let timer = null;
    const stop = () => { clearInterval(timer); timer = null; play.textContent = "Play"; };
    const start = () => {
      if (Number(slider.value) === last) show(0);
      play.textContent = "Pause";
      timer = setInterval(() => {
        show(Number(slider.value) + 1);
        if (Number(slider.value) === last) stop();
      }, 90);
    };
    play.addEventListener("click", () => (timer ? stop() : start()));
    slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
    addEventListener("beforeprint", () => { stop(); show(last); });
    show(last);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    new IntersectionObserver(([entry], observer) => {
      if (!entry.isIntersecting) return;
      observer.disconnect();
      start();
    }, { threshold: 0.6 }).observe(figure.querySelector(".picture"));
  };
  document.querySelectorAll("figure[data-walk]").forEach(walk);
})();
