// Shows named values in a list of definitions.
export function fill(list, rows) {
  list.replaceChildren(...Object.entries(rows).map(([name, value]) => {
    const box = document.createElement("div");
    for (const [tag, text] of [["dt", name], ["dd", value]]) {
      const part = document.createElement(tag);
      part.textContent = text;
      box.append(part);
    }
    return box;
  }));
}
