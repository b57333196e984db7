"use strict";
/* Theme and charts that the report and the live page share. Needs plotly's bundle before it. */
const Dapfl = (() => {
  const charts = new Map(); // element → function(colours) that returns [traces, layout]
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
  const coarse = window.matchMedia("(pointer: coarse)");
  const root = document.documentElement;

  const remembered = () => {
    try {
      return window.localStorage.getItem("dapfl-theme");
    } catch {
      return null; // a page opened from an e-mail may have no storage
    }
  };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);

  function initTheme(button) {
    const chosen = remembered();
    if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
    const label = () => {
      button.textContent = isDark() ? "Light" : "Dark";
      button.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
    };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try {
        window.localStorage.setItem("dapfl-theme", root.dataset.theme);
      } catch {
        /* not remembered, still switched */
      }
      label();
      redrawAll();
    });
    systemDark.addEventListener("change", () => {
      label();
      redrawAll();
    });
    label();
  }

  function colours() {
    const style = getComputedStyle(root);
    const token = (name) => style.getPropertyValue(`--${name}`).trim();
    return {
      dark: isDark(),
      text: token("text"),
      muted: token("muted"),
      grid: token("grid"),
      line: token("strong-line"),
      surface: token("surface"),
      accent: token("accent"),
      bad: token("bad"),
      sans: token("sans"),
      pick: (ink) => (isDark() ? ink.dark : ink.light),
    };
  }

  function axis(c, more) {
    return {
      gridcolor: c.grid,
      linecolor: c.line,
      tickcolor: c.line,
      zeroline: false,
      automargin: true,
      fixedrange: coarse.matches,
      tickfont: { color: c.muted, size: 11 },
      title: { font: { color: c.muted, size: 12 }, standoff: 8 },
      ...more,
      ...(more && typeof more.title === "string"
        ? { title: { text: more.title, font: { color: c.muted, size: 12 }, standoff: 8 } }
        : {}),
    };
  }

  function layout(c, { x = {}, y = {}, ...more } = {}) {
    return {
      font: { family: c.sans, color: c.text, size: 12 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 8, r: 12, t: 8, b: 8 },
      hovermode: "x unified",
      hoverlabel: { bgcolor: c.surface, bordercolor: c.line, font: { family: c.sans, color: c.text, size: 12 } },
      dragmode: coarse.matches ? false : "zoom", // a finger scrolls the page, it does not zoom the chart
      showlegend: false, // legends are HTML: one for several charts, readable and reachable by keyboard
      xaxis: axis(c, { showgrid: false, ...x }),
      yaxis: axis(c, y),
      ...more,
    };
  }

  const config = { responsive: true, displayModeBar: false, displaylogo: false, showTips: false };

  function draw(element) {
    const [traces, plan] = charts.get(element)(colours());
    return window.Plotly.react(element, traces, plan, config);
  }

  /* Draws a chart and redraws it whenever the theme changes; call again when its data has changed. */
  function chart(element, build, label) {
    charts.set(element, build);
    element.setAttribute("role", "img");
    if (label) element.setAttribute("aria-label", label);
    return draw(element);
  }

  function redrawAll() {
    charts.forEach((_, element) => {
      if (element.offsetParent) draw(element);
    });
  }

  /* A curve, and the band of one standard deviation around it where there is one. */
  function curve(c, { name, x, mean, sd, ink, shape, format }) {
    const colour = c.pick(ink);
    const few = mean.filter((value) => value !== null).length < 3;
    const traces = [];
    if (sd && sd.some((value) => value > 0)) {
      const known = x.map((_, i) => i).filter((i) => mean[i] !== null);
      const edge = (sign) => known.map((i) => mean[i] + sign * sd[i]);
      traces.push({
        x: [...known.map((i) => x[i]), ...known.map((i) => x[i]).reverse()],
        y: [...edge(1), ...edge(-1).reverse()],
        fill: "toself",
        fillcolor: fade(colour, c.dark ? 0.16 : 0.12),
        line: { width: 0 },
        mode: "lines",
        hoverinfo: "skip",
        showlegend: false,
        legendgroup: name,
      });
    }
    traces.push({
      name,
      x,
      y: mean,
      legendgroup: name,
      mode: few ? "lines+markers" : "lines",
      line: { color: colour, width: ink.width || 1.8, dash: ink.dash || "solid", shape: shape || "linear" },
      marker: { color: colour, size: 6 },
      hovertemplate: format ? `%{y:${format}}` : undefined,
    });
    return traces;
  }

  function fade(hex, alpha) {
    const value = parseInt(hex.slice(1), 16);
    return `rgba(${value >> 16}, ${(value >> 8) & 255}, ${value & 255}, ${alpha})`;
  }

  /* Makes the clicked one of several buttons the pressed one and calls `choose` with its value. */
  function segments(container, choose) {
    container.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      for (const each of container.querySelectorAll("button")) {
        each.setAttribute("aria-pressed", String(each === button));
      }
      choose(button.dataset.value);
    });
  }

  /* The key to a chart's colours. With `toggle`, each entry is a button that hides and shows its curve. */
  function legend(container, entries, toggle) {
    container.replaceChildren(
      ...entries.map(({ name, ink, block }) => {
        const item = document.createElement(toggle ? "button" : "span");
        const swatch = document.createElement("span");
        swatch.className = `swatch ${block ? "block" : ink.dash || "solid"}`;
        swatch.style.setProperty("--ink-light", ink.light);
        swatch.style.setProperty("--ink-dark", ink.dark);
        item.append(swatch, name);
        if (toggle) {
          item.type = "button";
          item.setAttribute("aria-pressed", "true");
          item.addEventListener("click", () => {
            const shown = item.getAttribute("aria-pressed") !== "true";
            item.setAttribute("aria-pressed", String(shown));
            toggle(name, shown);
          });
        }
        return item;
      }),
    );
  }

  /* A logarithmic axis with plain numbers at 1, 2 and 5, where the values spread enough to need one. */
  function logAxis(...series) {
    const values = series.flat().filter((value) => value !== null && value > 0);
    if (Math.max(...values) < 4 * Math.min(...values)) return { type: "linear" };
    const ticks = [];
    for (let power = -6; power <= 4; power += 1) for (const digit of [1, 2, 5]) ticks.push(digit * 10 ** power);
    return { type: "log", tickvals: ticks, ticktext: ticks.map((value) => String(Number(value.toPrecision(1)))) };
  }

  return { logAxis, legend, initTheme, chart, layout, curve, colours, fade, segments, redrawAll };
})();
