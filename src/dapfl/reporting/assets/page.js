"use strict";
/* Draws the charts of the report from the data that the page carries. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  Dapfl.initTheme(document.getElementById("theme"));
  const AXES = {
    rounds: { title: "round", rangemode: "tozero" },
    seconds: { title: "simulated time, minutes", rangemode: "tozero" },
    bytes: { title: "traffic of all clients, MB", rangemode: "tozero" },
    epochs: { title: "epochs of all clients", rangemode: "tozero" },
  };
  const percent = (series) => series.map((value) => (value === null ? null : 100 * value));
  const same = (series) => series;

  function show(task, section) {
    const find = (name) => section.querySelector(`[data-chart="${name}"]`);
    const key = (name) => section.querySelector(`[data-legend="${name}"]`);
    const hidden = new Set();
    let x = "rounds";
    // Dap-FL is drawn last, so that nothing hides it.
    const order = [...task.groups].sort((a, b) => (a.setting === "dap-fl") - (b.setting === "dap-fl"));
    const shown = () => order.filter((group) => !hidden.has(group.label));

    function overRun(name, title, transform, format, y) {
      const element = find(name);
      const build = (c) => [
        shown().flatMap((group) =>
          Dapfl.curve(c, {
            name: group.label,
            x: group.x[x],
            mean: transform(group[name].mean),
            sd: transform(group[name].sd),
            ink: group.ink,
            format,
          }),
        ),
        Dapfl.layout(c, { x: AXES[x], y, hovermode: x === "rounds" ? "x unified" : "closest" }),
      ];
      Dapfl.chart(element, build, `${title} over the run. ${element.dataset.summary}`);
    }

    function agentLoss(name) {
      const element = find(name);
      if (!element) return;
      const build = (c) => [
        shown()
          .filter((group) => group[name])
          .flatMap((group) =>
            Dapfl.curve(c, { name: group.label, x: group.x.rounds, ...group[name], ink: group.ink, format: ".3g" }),
          ),
        Dapfl.layout(c, { x: AXES.rounds }),
      ];
      Dapfl.chart(element, build, `Loss of the ${name} of the strongest clients' agents over rounds`);
    }

    function drawSettings() {
      overRun("accuracy", "Test accuracy", percent, ".2f", { title: "accuracy, %" });
      overRun("loss", "Test loss", same, ".4f", { title: "loss", ...Dapfl.logAxis(...shown().map((group) => group.loss.mean)) });
      agentLoss("critic");
      agentLoss("actor");
    }

    function drawChoices(group) {
      for (const [name, title, format, y] of [
        ["eta", "Learning rate", ".3~g", { title: "η", ...Dapfl.logAxis(...group.choices.map((choice) => choice.eta)) }],
        ["alpha", "Epochs", ".1f", { title: "α", rangemode: "tozero" }],
      ]) {
        const build = (c) => [
          group.choices.flatMap((choice) =>
            Dapfl.curve(c, {
              name: `${choice.capability} %`,
              x: group.x.rounds,
              mean: choice[name],
              ink: choice.ink,
              format,
            }),
          ),
          Dapfl.layout(c, { x: AXES.rounds, y }),
        ];
        Dapfl.chart(find(name), build, `${title} chosen by the clients of ${group.label}, by capability, over rounds`);
      }
      Dapfl.legend(
        key("choices"),
        group.choices.map((choice) => ({ name: `${choice.capability} %`, ink: choice.ink })),
      );
    }

    /* Stacked bars: one for each setting, or one for each round when there is a single setting. */
    function stack(name, title, series, labels, unit, overRounds) {
      const element = find(name);
      if (!overRounds) element.style.height = `${56 + 30 * Math.max(labels.length, 2)}px`;
      const build = (c) => [
        series.map((each) => ({
          type: "bar",
          name: each.name,
          orientation: overRounds ? "v" : "h",
          x: overRounds ? labels : each.values,
          y: overRounds ? each.values : labels,
          marker: { color: c.pick(each.ink), line: { width: 0 } },
          hovertemplate: overRounds ? "%{y:.3~g}" : `%{x:.3~g}${unit}`,
        })),
        Dapfl.layout(c, {
          barmode: "stack",
          bargap: overRounds ? 0.1 : 0.38,
          hovermode: overRounds ? "x unified" : "y unified",
          x: overRounds ? { title: "round" } : { showgrid: true, ticksuffix: unit },
          y: overRounds
            ? { title: "clients" }
            : { autorange: "reversed", showgrid: false, ticks: "", tickfont: { color: c.text, size: 12 } },
        }),
      ];
      Dapfl.chart(element, build, title);
      Dapfl.legend(
        key(name),
        series.map((each) => ({ name: each.name, ink: each.ink, block: true })),
      );
    }

    drawSettings();
    if (key("settings")) {
      Dapfl.legend(
        key("settings"),
        task.groups.map((group) => ({ name: group.label, ink: group.ink })),
        (name, on) => {
          if (on) hidden.delete(name);
          else hidden.add(name);
          drawSettings();
        },
      );
    }
    Dapfl.segments(section.querySelector("[data-control='x']"), (value) => {
      x = value;
      drawSettings();
    });

    const choosing = task.groups.filter((group) => group.choices.length);
    const select = section.querySelector("select");
    if (choosing.length) drawChoices(choosing[0]);
    if (select) select.addEventListener("change", () => drawChoices(choosing[select.selectedIndex]));

    const labels = task.groups.map((group) => group.label);
    const single = labels.length === 1;
    stack("statuses", "What became of the contributions", task.statuses, single ? task.groups[0].x.rounds : labels, " %", single);
    stack("server", "Seconds of the server per round, by phase", task.server, labels, " s");
    stack("clients", "Seconds of all clients per round, by phase", task.clients, labels, " s");
    stack("traffic", "Traffic per round", task.traffic, labels, " MB");
  }

  data.tasks.forEach((task, place) => show(task, document.querySelector(`[data-task="${place}"]`)));
})();
