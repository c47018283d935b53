"use strict";
// Sortable tables, the switch between model selections, and the list of runs. Text is inserted as text, never as markup.
(() => {
  const PAGE_SIZE = 50;
  const byId = (id) => document.getElementById(id);
  document.documentElement.classList.add("scripted");

  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };

  // Missing values come last in both directions.
  const compare = (one, other, sign) => {
    const isEmpty = (value) => value === null || value === undefined || value === "";
    if (isEmpty(one) || isEmpty(other)) return isEmpty(one) - isEmpty(other);
    if (typeof one === "number" && typeof other === "number") return sign * (one - other);
    return sign * String(one).localeCompare(String(other), undefined, { numeric: true });
  };

  // Puts a button into a header cell. Numbers are sorted from the highest at first, text from the first.
  const makeSortable = (header, isNumber, sort) => {
    const button = make("button", { type: "button" });
    button.append(...header.childNodes);
    header.append(button);
    header.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const now = header.getAttribute("aria-sort");
      const next = now === "none" ? (isNumber ? "descending" : "ascending")
        : now === "ascending" ? "descending" : "ascending";
      for (const other of header.parentElement.children) other.setAttribute("aria-sort", "none");
      header.setAttribute("aria-sort", next);
      sort(next === "ascending" ? 1 : -1);
    });
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const valueOf = (row, index) => {
      const cell = row.cells[index];
      if (cell.dataset.value === undefined) return cell.textContent;
      return cell.dataset.value === "" ? null : Number(cell.dataset.value);
    };
    [...table.tHead.rows[0].cells].forEach((header, index) => {
      makeSortable(header, index > 0, (sign) => {
        const rows = [...body.rows];
        rows.sort((one, other) => compare(valueOf(one, index), valueOf(other, index), sign));
        body.append(...rows);
      });
    });
  }

  const runs = JSON.parse(byId("run-data").textContent);
  const views = [...document.querySelectorAll(".view")];
  let selection = views.length ? views[0].dataset.selection : "";
  const percent = (value) => (typeof value === "number" ? value.toFixed(1) : "—");
  const COLUMNS = [
    { name: "folder", value: (run) => run.folder },
    { name: "method", value: (run) => run.method },
    { name: "dataset", value: (run) => run.dataset },
    { name: "test domain", value: (run) => run.test_domains, className: "domains" },
    { name: "trial", value: (run) => run.trial, isNumber: true },
    { name: "draw", value: (run) => run.draw, isNumber: true },
    { name: "state", value: (run) => (run.reason ? `${run.state} ${run.reason.split(":")[0]}` : run.state) },
    { name: "last", value: (run) => run.last, isNumber: true, format: percent },
    { name: "selected", value: (run) => run.selected[selection], isNumber: true, format: percent },
  ];
  const table = byId("run-table");
  const filters = { method: byId("run-method"), dataset: byId("run-dataset"), state: byId("run-state") };
  let order = null;
  let page = 0;

  const matchingRuns = () => {
    const words = byId("run-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = runs.filter((run) => {
      if (Object.entries(filters).some(([key, select]) => select.value && run[key] !== select.value)) return false;
      const text = `${run.folder} ${run.method} ${run.dataset} ${run.test_domains} ${run.state}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    if (order) matches.sort((one, other) => compare(order.column.value(one), order.column.value(other), order.sign));
    return matches;
  };

  const copy = async (text, pre) => {
    try {
      await navigator.clipboard.writeText(text);
      return "Copied";
    } catch {
      // Without access to the clipboard, select the text instead.
      getSelection().selectAllChildren(pre);
      return "Selected";
    }
  };

  const fillDetails = (details, run) => {
    if (run.error) details.append(make("p", { textContent: `Failed: ${run.error}` }));
    if (run.reason) details.append(make("p", { textContent: `Stopped early by racing ${run.reason}` }));
    const list = make("dl", { className: "settings" });
    for (const [name, value] of Object.entries(run.settings)) {
      list.append(make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value })));
    }
    details.append(list);
    if (!run.command) {
      details.append(make("p", { textContent: "The run folder does not contain the settings to repeat it." }));
      return;
    }
    const pre = make("pre", { textContent: run.command, tabIndex: 0 });
    const button = make("button", { type: "button", className: "copy", textContent: "Copy command" });
    const status = make("span", { role: "status" });
    button.addEventListener("click", async () => {
      status.textContent = ` ${await copy(run.command, pre)}`;
    });
    details.append(pre, button, status);
  };

  const makeRunBody = (run) => {
    const row = make("tr");
    COLUMNS.forEach((column, index) => {
      const text = (column.format || String)(column.value(run));
      const cell = make(index ? "td" : "th", { textContent: text, className: column.className || "" });
      if (!index) cell.scope = "row";
      if (column.isNumber) cell.classList.add("number");
      row.append(cell);
    });
    const details = make("details", {}, make("summary", { textContent: "Settings and command" }));
    details.addEventListener("toggle", () => details.children.length === 1 && fillDetails(details, run));
    const cell = make("td", { colSpan: COLUMNS.length }, make("div", { className: "more" }, details));
    return make("tbody", {}, row, make("tr", {}, cell));
  };

  const update = () => {
    const matches = matchingRuns();
    const pages = Math.max(1, Math.ceil(matches.length / PAGE_SIZE));
    page = Math.min(page, pages - 1);
    for (const body of [...table.tBodies]) body.remove();
    table.append(...matches.slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE).map(makeRunBody));
    byId("run-count").textContent = `${matches.length} of ${runs.length} runs`;
    byId("run-page").textContent = `Page ${page + 1} of ${pages}`;
    byId("run-back").disabled = page === 0;
    byId("run-next").disabled = page === pages - 1;
    document.querySelector(".pager").hidden = pages === 1;
  };

  for (const column of COLUMNS) {
    const header = make("th", { scope: "col", textContent: column.name });
    if (column.isNumber) header.classList.add("number");
    table.tHead.rows[0].append(header);
    makeSortable(header, column.isNumber, (sign) => {
      order = { column, sign };
      page = 0;
      update();
    });
  }
  for (const [key, select] of Object.entries(filters)) {
    const values = [...new Set(runs.map((run) => run[key]))];
    select.append(...values.map((value) => make("option", { value, textContent: value })));
    select.parentElement.hidden = values.length < 2;
  }
  const restart = () => {
    page = 0;
    update();
  };
  byId("run-search").addEventListener("input", restart);
  // Not on the whole form: a search field fires "change" again on blur, which would replace the row being clicked.
  for (const select of Object.values(filters)) select.addEventListener("change", restart);
  document.querySelector(".filters").addEventListener("submit", (event) => event.preventDefault());
  byId("run-back").addEventListener("click", () => { page -= 1; update(); });
  byId("run-next").addEventListener("click", () => { page += 1; update(); });

  for (const radio of document.querySelectorAll(".switch input")) {
    radio.addEventListener("change", () => {
      selection = radio.value;
      for (const view of views) view.hidden = view.dataset.selection !== selection;
      update();
    });
  }
  // A browser that navigates back keeps the checked option.
  document.querySelector(".switch input:checked")?.dispatchEvent(new Event("change"));
  update();
})();
