// Tables that keep their rows between updates, so that selection and focus are preserved.

/** A table in a section: columns are [title, kind, text of a row, class of a row]. */
export class View {
  constructor(section, caption, columns) {
    this.columns = columns;
    this.rows = new Map();
    const scroll = document.createElement("div");
    scroll.className = "scroll";
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", caption);
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const [title, kind] of columns) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.className = kind;
      cell.textContent = title;
      head.append(cell);
    }
    this.body = table.createTBody();
    this.none = document.createElement("p");
    this.none.className = "none";
    this.none.textContent = "None.";
    scroll.append(table);
    section.append(scroll, this.none);
  }

  /** Show rows, identified by a unique key. */
  show(rows, key) {
    this.none.hidden = rows.length > 0;
    const wanted = new Set();
    rows.forEach((row, number) => {
      const id = key(row);
      wanted.add(id);
      let line = this.rows.get(id);
      if (!line) {
        line = this.body.insertRow();
        line.dataset.row = id;
        for (const [, kind] of this.columns) line.insertCell().className = kind;
        this.rows.set(id, line);
      }
      if (this.body.rows[number] !== line) this.body.insertBefore(line, this.body.rows[number] ?? null);
      this.columns.forEach(([, kind, text, look], column) => {
        const cell = line.cells[column];
        const content = text(row);
        if (cell.textContent !== content) cell.textContent = content;
        cell.className = look ? `${kind} ${look(row)}` : kind;
      });
    });
    for (const [id, line] of this.rows) {
      if (!wanted.has(id)) {
        line.remove();
        this.rows.delete(id);
      }
    }
  }
}
