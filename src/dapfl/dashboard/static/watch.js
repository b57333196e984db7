"use strict";
/* Keeps the live page up to date with what the server streams. */
(() => {
  const MOST_POINTS = 1200; // of a curve: more cannot be seen
  const MOST_BARS = 160; // of the rounds in the participation chart
  const MOST_EVENTS = 200;
  const AVERAGED = 20; // rounds in the times by phase

  const STATUSES = { "over-budget": "Over budget", unselected: "Not selected this round" };

  const because = (reason) => state.meanings[reason] || reason.replaceAll("-", " ");

  const at = (id) => document.getElementById(id);
  const state = { facts: null, palette: null, meanings: {}, rounds: [], clients: [], filter: "all", connected: false };

  /* ---- numbers as people read them ---- */
  const NONE = "–";
  const known = (value) => value !== null && value !== undefined;
  const fixed = (value, digits) => (known(value) ? value.toFixed(digits) : NONE);
  const percent = (value) => (known(value) ? `${(100 * value).toFixed(2)} %` : NONE);
  const count = (value) => value.toLocaleString("en");
  const short = (value) => (known(value) ? String(Number(value.toPrecision(2))) : NONE);
  function bytes(value) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let unit = 0;
    while (value >= 1000 && unit < units.length - 1) {
      value /= 1000;
      unit += 1;
    }
    return `${unit ? value.toPrecision(3) : value} ${units[unit]}`;
  }
  function duration(seconds) {
    if (seconds < 0.9995) return `${Math.round(1000 * seconds)} ms`;
    if (seconds < 90) return `${Number(seconds.toPrecision(3))} s`;
    if (seconds < 5400) return `${(seconds / 60).toPrecision(3)} min`;
    return `${(seconds / 3600).toPrecision(3)} h`;
  }
  const sum = (quantity) => state.rounds.reduce((total, row) => total + (quantity(row) || 0), 0);

  /* ---- what the server says ---- */
  function take(update) {
    if (update.fresh) {
      state.rounds = [];
      state.meanings = update.meanings;
    }
    state.rounds.push(...update.rounds);
    state.facts = update.facts;
    state.palette = update.palette;
    state.clients = update.clients;
    state.deadline = update.deadline;
    const early = update.facts && !state.rounds.length ? "The run has started; its first round is not complete yet." : "";
    const problem = at("problem");
    problem.textContent = update.problem || early;
    problem.hidden = !problem.textContent;
    showEvents(update.fresh ? state.rounds : update.rounds, update.fresh);
    schedule();
  }

  let scheduled = false;
  function schedule() {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      showHeader();
      showFacts();
      document.body.classList.toggle("early", !state.rounds.length); // before drawing: a hidden chart has no width
      if (state.rounds.length) {
        showFigures();
        showMeasures();
        showCharts();
        showPhases();
        showLost();
      }
      showClients();
      document.body.dataset.rounds = state.rounds.length;
    });
  }

  let stream;
  let streaming = false; // whether this stream has brought anything yet
  function connect() {
    stream = new EventSource("stream");
    stream.onmessage = (message) => {
      streaming = state.connected = true;
      take(JSON.parse(message.data));
    };
    stream.onerror = () => {
      // The browser tries again by itself, unless it has given up.
      streaming = state.connected = false;
      showHeader();
      if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
    };
  }
  /* Where something between us and the server holds the stream back, ask every second instead. */
  async function poll() {
    if (streaming || stream.readyState !== EventSource.OPEN) return;
    try {
      const answer = await fetch("snapshot", { cache: "no-store" });
      if (!answer.ok || streaming) return;
      state.connected = true;
      take(await answer.json());
    } catch {
      state.connected = false;
      showHeader();
    }
  }

  /* ---- parts of the page ---- */
  function showHeader() {
    const { facts, rounds } = state;
    const pill = at("status");
    const [words, kind] = !state.connected
      ? ["Connection lost, trying again", "bad"]
      : !facts
        ? ["Waiting for a run", "warn"]
        : { running: ["Running", "live"], finished: ["Finished", "good"], stopped: ["Stopped", "warn"], failed: ["Failed: nothing was aggregated", "bad"] }[facts.status];
    if (pill.textContent !== words) pill.textContent = words;
    pill.className = `pill ${kind}`;
    if (!facts) return;
    at("title").textContent = `${facts.setting} on ${facts.task}`;
    at("subtitle").textContent = `${facts.directory}, seed ${facts.seed}`;
    const done = rounds.length ? rounds[rounds.length - 1].round + 1 : 0;
    document.title = `${facts.planned_rounds ? `${done}/${facts.planned_rounds}` : done} · ${facts.setting} on ${facts.task}`;
    const bar = at("progress");
    bar.setAttribute("aria-valuenow", done);
    if (facts.planned_rounds) {
      bar.setAttribute("aria-valuemax", facts.planned_rounds);
      bar.firstElementChild.style.width = `${(100 * done) / facts.planned_rounds}%`;
    }
  }

  function showFigures() {
    const { facts, rounds } = state;
    const last = rounds[rounds.length - 1];
    const before = rounds[rounds.length - 2];
    const step = (now, then, scale, unit) => {
      if (!known(now) || !known(then)) return "";
      const change = scale * (now - then);
      return `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(scale === 1 ? 4 : 2)}${unit} this round`;
    };
    const set = (id, value, more) => {
      at(id).textContent = value;
      at(`${id}-more`).textContent = more;
    };
    const outOf = (id, whole) => {
      const small = document.createElement("small");
      small.textContent = ` of ${whole}`;
      at(id).append(small);
    };
    const worst = known(last.worst_accuracy) ? `worst tenth of clients ${percent(last.worst_accuracy)}` : "";
    const rise = step(last.accuracy, before && before.accuracy, 100, "");
    set("accuracy", percent(last.accuracy), [rise, worst].filter(Boolean).join(", "));
    set("loss", fixed(last.loss, 4), step(last.loss, before && before.loss, 1, ""));
    set("f1", percent(last.f1), step(last.f1, before && before.f1, 100, ""));
    const planned = facts && facts.planned_rounds;
    const recent = rounds.slice(-AVERAGED);
    const pace = recent.reduce((total, row) => total + (row.seconds.total || 0), 0) / recent.length;
    const left = planned ? planned - last.round - 1 : 0;
    set(
      "round",
      `${last.round + 1}`,
      facts && facts.status === "running" && left > 0 && pace ? `about ${duration(left * pace)} left` : pace ? `${duration(pace)} each` : "",
    );
    if (planned) outOf("round", planned);
    const lost = sum((row) => row.violations);
    set("cohort", `${last.participants}`, `${count(lost)} over budget in all`);
    outOf("cohort", last.of);
    const refused = sum((row) => row.rejected);
    set("rejected", String(refused), refused ? `${last.rejected} this round` : "none so far");
    const simulated = rounds.some((row) => known(row.simulated_seconds));
    set("simulated", simulated ? duration(sum((row) => row.simulated_seconds)) : NONE, `${count(sum((row) => row.wasted_epochs))} epochs wasted`);
    set("traffic", bytes(sum((row) => row.bytes_up + row.bytes_down)), `${bytes(last.bytes_up + last.bytes_down)} this round`);
  }

  function thinned(rows, most) {
    if (rows.length <= most) return rows;
    const stride = (rows.length - 1) / (most - 1);
    return Array.from({ length: most }, (_, i) => rows[Math.round(i * stride)]);
  }

  const ACCENT = { light: "#1b5fd9", dark: "#6aa6ff", width: 2.4 };
  const WORST = { light: "#6b7280", dark: "#9ca3af", width: 1.4, dash: "dot" };
  function showCharts() {
    const rows = thinned(state.rounds, MOST_POINTS);
    const x = rows.map((row) => row.round + 1);
    const axis = { title: "round", rangemode: "tozero" };
    const global = (id, name, y, format, plan, more = []) => {
      const build = (c) => [
        [...Dapfl.curve(c, { name, x, mean: y, ink: ACCENT, format }), ...more.flatMap((each) => Dapfl.curve(c, { x, format, ...each }))],
        Dapfl.layout(c, { x: axis, y: plan }),
      ];
      const latest = y[y.length - 1];
      Dapfl.chart(at(id), build, `${name} over ${state.rounds.length} rounds, now ${known(latest) ? latest.toPrecision(4) : "not known"}`);
    };
    const shares = (field) => rows.map((row) => (known(row[field]) ? 100 * row[field] : null));
    const worst = shares("worst_accuracy");
    const fairness = worst.some(known) ? [{ name: "worst tenth of clients, %", mean: worst, ink: WORST }] : [];
    global("chart-accuracy", "accuracy, %", shares("accuracy"), ".2f", { ticksuffix: " %" }, fairness);
    const losses = rows.map((row) => row.loss);
    global("chart-loss", "loss", losses, ".4f", Dapfl.logAxis(losses));
    showChoices(rows, x, axis);
    showStatuses();
  }

  function showChoices(rows, x, axis) {
    const inks = state.palette.capabilities;
    const steps = Object.keys(inks).sort((a, b) => b - a); // "all" is alone: devices have no capability
    const name = (step) => (step === "all" ? "all clients" : `${Number((100 * step).toPrecision(6))} %`);
    const belongs = (choice, step) => (step === "all" ? !known(choice.capability) : Math.abs(choice.capability - step) < 1e-5);
    const series = (step, field) =>
      rows.map((row) => {
        const choice = row.choices.find((each) => belongs(each, step));
        return choice && known(choice[field]) ? choice[field] : null;
      });
    for (const [id, field, title, format, plan] of [
      ["chart-eta", "eta", "Learning rate", ".3~g", Dapfl.logAxis(...steps.map((step) => series(step, "eta")))],
      ["chart-alpha", "alpha", "Epochs", ".1f", { rangemode: "tozero" }],
    ]) {
      const build = (c) => [
        steps.flatMap((step) => Dapfl.curve(c, { name: name(step), x, mean: series(step, field), ink: inks[step], format })),
        Dapfl.layout(c, { x: axis, y: plan }),
      ];
      Dapfl.chart(at(id), build, `${title} chosen by the clients over rounds`);
    }
    for (const legend of document.querySelectorAll("[data-legend='capabilities']")) {
      if (legend.childElementCount !== steps.length) {
        Dapfl.legend(legend, steps.map((step) => ({ name: name(step), ink: inks[step] })));
      }
    }
  }

  function showStatuses() {
    const rows = state.rounds.slice(-MOST_BARS);
    const all = Object.keys(state.palette.statuses);
    const met = all.filter((status) => status === "accepted" || state.rounds.some((row) => row.statuses[status]));
    const build = (c) => [
      met.map((status) => ({
        type: "bar",
        name: status,
        x: rows.map((row) => row.round + 1),
        y: rows.map((row) => row.statuses[status] || 0),
        marker: { color: c.pick(state.palette.statuses[status]), line: { width: 0 } },
        hovertemplate: "%{y}",
      })),
      Dapfl.layout(c, { barmode: "stack", bargap: 0.12, x: { title: "round" }, y: { title: "clients", rangemode: "tozero" } }),
    ];
    Dapfl.chart(at("chart-statuses"), build, `Clients in and out of C(t) in the last ${rows.length} rounds`);
    const legend = at("legend-statuses");
    if (legend.childElementCount !== met.length) {
      Dapfl.legend(legend, met.map((status) => ({ name: status, ink: state.palette.statuses[status], block: true })));
    }
  }

  function showPhases() {
    const rows = state.rounds.slice(-AVERAGED);
    const means = {};
    for (const row of rows) {
      for (const [phase, seconds] of Object.entries(row.seconds)) means[phase] = (means[phase] || 0) + seconds / rows.length;
    }
    const phases = Object.entries(means).filter(([phase]) => phase !== "total").sort((a, b) => b[1] - a[1]);
    const ofClients = phases.filter(([phase]) => phase.startsWith("client_"));
    bars(at("phases-server"), phases.filter(([phase]) => !phase.startsWith("client_")), duration);
    bars(at("phases-clients"), ofClients.map(([phase, seconds]) => [phase.slice(7), seconds]), duration);
    const last = state.rounds[state.rounds.length - 1];
    bars(at("phases-bytes"), [["to clients", last.bytes_down], ["from clients", last.bytes_up]], bytes);
  }

  /* Contributions that are in no model, by reason. */
  function showLost() {
    const total = {};
    for (const row of state.rounds) {
      for (const [reason, times] of Object.entries(row.lost)) total[reason] = (total[reason] || 0) + times;
    }
    const entries = Object.entries(total).sort((a, b) => b[1] - a[1]);
    bars(at("lost"), entries, count);
    at("lost-none").hidden = entries.length > 0;
    at("lost-count").textContent = entries.length ? `${count(entries.reduce((all, [, times]) => all + times, 0))} in all` : "";
    [...at("lost").children].forEach((item, i) => (item.title = because(entries[i][0])));
  }

  function bars(list, entries, words) {
    const most = Math.max(...entries.map(([, value]) => value), 1e-9);
    while (list.childElementCount > entries.length) list.lastElementChild.remove();
    entries.forEach(([name, value], i) => {
      let item = list.children[i];
      if (!item) {
        item = document.createElement("li");
        const [label, track, amount] = ["span", "span", "span"].map((tag) => document.createElement(tag));
        track.className = "track";
        track.append(document.createElement("span"));
        amount.className = "amount";
        item.append(label, track, amount);
        list.append(item);
      }
      item.children[0].textContent = name.replaceAll("_", " ");
      item.children[1].firstElementChild.style.width = `${(100 * value) / most}%`;
      item.children[2].textContent = words(value);
    });
  }

  /* 1, 2, 3 and 7 as "1–3, 7" */
  function ranges(numbers) {
    const spans = [];
    for (const number of [...new Set(numbers)].sort((a, b) => a - b)) {
      const last = spans[spans.length - 1];
      if (last && last[1] === number - 1) last[1] = number;
      else spans.push([number, number]);
    }
    return spans.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
  }

  /* What was refused in a round for the same reason is one entry: an attack hits many at once. */
  function grouped(events) {
    const groups = new Map();
    for (const event of events) {
      const key = `${event.at} ${event.reason}`;
      groups.set(key, [...(groups.get(key) || []), event]);
    }
    return [...groups.values()];
  }

  function showEvents(rows, fresh) {
    const list = at("events");
    if (fresh) list.replaceChildren();
    for (const events of rows.flatMap((row) => grouped(row.events)).slice(-MOST_EVENTS)) {
      const { round, reason, at: where } = events[0];
      const clients = `client${new Set(events.map((event) => event.client)).size > 1 ? "s" : ""} ${ranges(events.map((event) => event.client))}`;
      const many = events.length > 1 ? `${events.length} messages` : "A message";
      const item = document.createElement("li");
      const text = document.createElement("div");
      const what = document.createElement("strong");
      what.textContent = where === "client" ? `${many} refused by ${clients}` : `${many} of ${clients} refused`;
      const when = document.createElement("div");
      when.className = "when";
      const code = document.createElement("code");
      code.textContent = reason;
      when.append(`Round ${round + 1} · `, code);
      text.append(what, `: ${because(reason)}`, when);
      item.append(text);
      list.prepend(item);
    }
    while (list.childElementCount > MOST_EVENTS) list.lastElementChild.remove();
    const total = sum((row) => row.events.length);
    list.hidden = total === 0;
    at("events-none").hidden = total > 0;
    at("events-count").textContent = total ? `${count(total)} in all` : "";
  }

  function showFacts() {
    if (state.facts) showRows("facts", state.facts.rows);
  }

  function showMeasures() {
    const rows = Object.entries(state.rounds[state.rounds.length - 1].metrics);
    at("measures-card").hidden = !rows.length;
    showRows("measures", rows.map(([name, value]) => [name, fixed(value, 4)]));
  }

  function showRows(id, rows) {
    const list = at(id);
    const text = JSON.stringify(rows);
    if (list.dataset.shown === text) return;
    list.dataset.shown = text;
    list.replaceChildren(
      ...rows.flatMap(([name, value]) => {
        const term = document.createElement("dt");
        const detail = document.createElement("dd");
        term.textContent = name;
        detail.textContent = value;
        return [term, detail];
      }),
    );
  }

  const cards = new Map();
  /* A client by its name, where the data have one: "person 7", "Hamlet". */
  const named = (id) => (state.facts && state.facts.client_names[id - 1]) || `Client ${id}`;
  function makeCard(id) {
    const card = document.createElement("li");
    card.className = "card client";
    card.innerHTML =
      '<header><h3><span class="name"></span><span class="capability"></span></h3><span class="pill"></span></header>' +
      '<div class="budget"><div class="words"><span class="spent"></span><span class="has"></span></div>' +
      '<div class="track"><span class="cost"></span><span class="limit"></span></div></div>' +
      "<dl class='numbers'><div><dt>η</dt><dd class='eta'></dd></div><div><dt>α</dt><dd class='alpha'></dd></div>" +
      "<div><dt>λ</dt><dd class='lambda'></dd></div><div><dt>reward</dt><dd class='reward'></dd></div>" +
      "<div><dt>accuracy</dt><dd class='accuracy'></dd></div></dl><p class='why'></p><p class='device muted' hidden></p>";
    card.querySelector(".name").textContent = card.title = named(id);
    cards.set(id, card);
    return card;
  }

  function showClients() {
    const list = at("clients");
    const wanted = state.clients.filter((client) => state.filter === "all" || (client.status === "accepted") === (state.filter === "in"));
    const shown = wanted.map((client) => {
      const card = cards.get(client.id) || makeCard(client.id);
      fillCard(card, client);
      return card;
    });
    if (shown.length !== list.childElementCount || shown.some((card, i) => list.children[i] !== card)) list.replaceChildren(...shown);
    const last = state.rounds[state.rounds.length - 1];
    const all = last ? last.of : 0;
    const due = state.deadline ? `; answers are due by ${new Date(state.deadline).toLocaleTimeString()}` : "";
    const part = shown.length < all ? `${shown.length} of ${all} shown` : `${all} in all`;
    at("clients-count").textContent = last ? `after round ${last.round + 1}, ${part}${due}` : "no client has taken part yet";
  }

  function fillCard(card, client) {
    const [status, reason] = client.status.split(/:(.*)/s);
    const inside = status === "accepted";
    card.classList.toggle("out", !inside && status !== "rejected");
    card.classList.toggle("refused", status === "rejected");
    card.dataset.client = client.id;
    const set = (name, text) => {
      const place = card.querySelector(`.${name}`);
      if (place.textContent !== text) place.textContent = text;
    };
    set("capability", known(client.capability) ? `${Number((100 * client.capability).toPrecision(3))} %` : "");
    set("pill", inside ? "in C(t)" : status);
    card.querySelector(".pill").className = `pill ${inside ? "good" : status === "rejected" ? "bad" : "warn"}`;
    const scale = Math.max(client.budget || 0, client.cost || 0) * 1.04;
    set("spent", known(client.cost) ? `cost ${client.cost.toFixed(1)}` : "cost not known");
    set("has", known(client.budget) ? `budget ${client.budget.toFixed(1)}` : "");
    card.querySelector(".cost").style.width = scale ? `${(100 * (client.cost || 0)) / scale}%` : "0";
    const limit = card.querySelector(".limit");
    limit.hidden = !known(client.budget);
    limit.style.left = scale ? `calc(${(100 * (client.budget || 0)) / scale}% - 1px)` : "0";
    set("eta", short(client.eta));
    const capped = known(client.planned_alpha) && client.planned_alpha !== client.alpha;
    set("alpha", known(client.alpha) ? `${client.alpha}${capped ? ` of ${client.planned_alpha}` : ""}` : NONE);
    set("lambda", known(client.lambda_) ? fixed(client.lambda_, 2) : NONE);
    set("reward", known(client.reward) ? fixed(client.reward, 2) : NONE);
    set("accuracy", known(client.accuracy) ? `${(100 * client.accuracy).toFixed(1)} %` : NONE);
    const cause = reason || (state.meanings[status] ? status : ""); // some statuses are their own reasons
    const why = (STATUSES[status] || status[0].toUpperCase() + status.slice(1)) + (cause ? `: ${because(cause)}` : "");
    const last = state.rounds[state.rounds.length - 1];
    const decrypted = last && last.decrypted_by.includes(client.id) ? "Helped to decrypt the sum" : "";
    set("why", inside ? decrypted : why);
    const device = card.querySelector(".device");
    device.hidden = !client.device && !client.last_contact;
    const clock = (moment) => (moment ? new Date(moment).toLocaleString() : "never");
    const doing = client.device
      ? `Device ${client.device.doing}${client.device.doing === "gone" ? ` since ${clock(client.device.since)}` : ""}. `
      : "";
    set("device", `${doing}Last contact: ${clock(client.last_contact)}. dapfl ${client.software || "unknown"}`);
    device.classList.toggle("lost", !!client.device && ["gone", "late"].includes(client.device.doing));
  }

  Dapfl.initTheme(at("theme"));
  Dapfl.segments(at("filter"), (value) => {
    state.filter = value;
    showClients();
  });
  connect();
  setInterval(poll, 1000);
})();
