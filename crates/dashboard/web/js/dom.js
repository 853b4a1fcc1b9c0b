// Elements. All text is set as text: what a recording has is never HTML.
"use strict";

hikkoshi.dom = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  const fill = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "text") node.textContent = value;
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children);
    return node;
  };

  /** An element with attributes (`text`: its text) and children. */
  const el = (name, attributes = {}, ...children) =>
    fill(document.createElement(name), attributes, children);

  /** An element of SVG with attributes (`text`: its text) and children. */
  const svg = (name, attributes = {}, ...children) =>
    fill(document.createElementNS(SVG, name), attributes, children);

  /** Sets text, unless it is there already: nothing is laid out again then. */
  const setText = (node, text) => {
    if (node.shownText === text) return;
    node.shownText = text;
    node.textContent = text;
  };

  /** Sets or removes an attribute, unless it is so already. */
  const setAttribute = (node, name, value) => {
    if (value === null || value === undefined || value === false) {
      if (node.hasAttribute(name)) node.removeAttribute(name);
    } else if (node.getAttribute(name) !== String(value)) {
      node.setAttribute(name, value);
    }
  };

  /** A bar of which a part (0 to 1) is filled. */
  const bar = (kind) => {
    const filled = svg("rect", { height: "100%", width: "0", class: kind });
    const element = svg("svg", { class: "bar", "aria-hidden": "true" }, filled);
    return {
      element,
      set: (part) => setAttribute(filled, "width", `${(Math.min(Math.max(part, 0), 1) * 100).toFixed(1)}%`),
    };
  };

  let numbers = 0;
  /** A new id. */
  const id = (prefix) => `${prefix}-${(numbers += 1)}`;

  /** A part of the page with a heading. */
  const panel = (title, className = "") => {
    const heading = el("h3", { id: id("panel"), text: title });
    const element = el("section", { class: `panel ${className}`, "aria-labelledby": heading.id }, heading);
    return { element, heading };
  };

  /** Something that is folded until it is asked for. */
  const fold = (summary, ...children) =>
    el("details", {}, el("summary", { text: summary }), ...children);

  /**
   * A table whose cells change. `columns`: `{name, number, bar}`; the first column has the headings
   * of the rows. A cell is a text, or `{text, part, swatch, class}`: `part` (0 to 1) is drawn as a
   * bar in columns that have one, `swatch` is a class of colour.
   */
  class Table {
    constructor(caption, columns, className = "") {
      this.columns = columns;
      this.body = el("tbody");
      this.caption = el("caption", { text: caption });
      const heads = columns.map((column) =>
        el("th", { scope: "col", class: column.number ? "number" : null, text: column.name }),
      );
      const head = el("thead", {}, el("tr", {}, ...heads));
      this.table = el("table", { class: className }, this.caption, head, this.body);
      this.element = el("div", { class: "table" }, this.table);
      this.rows = [];
    }

    update(rows) {
      while (this.rows.length > rows.length) this.rows.pop().row.remove();
      while (this.rows.length < rows.length) this.rows.push(this.newRow());
      rows.forEach((cells, index) => this.rows[index].set(cells));
    }

    newRow() {
      const cells = this.columns.map((column, index) => {
        const node = index === 0 ? el("th", { scope: "row" }) : el("td");
        if (column.number) node.className = "number";
        return new Cell(node, column);
      });
      const row = el("tr", {}, ...cells.map((cell) => cell.node));
      this.body.append(row);
      return {
        row,
        set: (values) => {
          setAttribute(row, "class", values.rowClass);
          cells.forEach((cell, index) => cell.set(values[index]));
        },
      };
    }
  }

  class Cell {
    constructor(node, column) {
      this.node = node;
      this.text = el("span");
      this.swatch = null;
      node.append(this.text);
      if (column.bar) {
        this.bar = bar(column.bar);
        node.append(this.bar.element);
      }
    }

    set(value) {
      const { text, part, swatch } = typeof value === "object" && value !== null ? value : { text: value };
      setText(this.text, text ?? "");
      if (this.bar) {
        this.bar.element.toggleAttribute("hidden", part === undefined);
        this.bar.set(part ?? 0);
      }
      if (swatch && !this.swatch) {
        this.swatch = el("span", { "aria-hidden": "true" });
        this.node.prepend(this.swatch);
      }
      if (this.swatch) setAttribute(this.swatch, "class", swatch ? `swatch ${swatch}` : "swatch none");
    }
  }

  /** Rows that a paged table shows at once. */
  const ROWS = 60;

  /** A table of many rows, of which a page is shown. `what`: the plural of what a row is. */
  class PagedTable {
    constructor(caption, columns, what, className = "") {
      this.name = caption;
      this.what = what;
      this.table = new Table(caption, columns, className);
      this.page = 0;
      const button = (text, step) => {
        const element = el("button", { type: "button", text });
        element.addEventListener("click", () => this.show(this.page + step));
        return element;
      };
      this.before = button("Previous rows", -1);
      this.after = button("Next rows", 1);
      this.place = el("span", { role: "status" });
      this.pager = el("div", { class: "pager" }, this.before, this.after, this.place);
      this.element = el("div", {}, this.table.element, this.pager);
      this.count = 0;
    }

    /** `count` rows; `row(index)` makes one. */
    update(count, row) {
      this.count = count;
      this.row = row;
      this.show(this.page);
    }

    show(page) {
      const pages = Math.max(Math.ceil(this.count / ROWS), 1);
      this.page = Math.min(Math.max(page, 0), pages - 1);
      const first = this.page * ROWS;
      const shown = Array.from({ length: Math.min(ROWS, this.count - first) }, (_, index) => this.row(first + index));
      this.table.update(shown);
      this.pager.hidden = pages === 1;
      this.before.disabled = this.page === 0;
      this.after.disabled = this.page === pages - 1;
      setText(this.place, `${this.what} ${first + 1} to ${first + shown.length} of ${this.count}`);
    }
  }

  return { el, svg, setText, setAttribute, bar, id, panel, fold, Table, PagedTable };
})();
