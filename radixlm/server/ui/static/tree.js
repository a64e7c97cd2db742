// The prefix tree as a drawing: depth to the right, one row per leaf, a parent in the row of its hottest child.

import { find, setText, short, svg, whole } from "./dom.js";

const ROW = 40;
const MARGIN = 26;
const LETTER = 7.3;

export class Tree {
  constructor() {
    this.reply = null;
    this.chosen = null;
    find("tree-most").addEventListener("change", () => this.draw());
  }

  show(reply) {
    this.reply = reply;
    this.draw();
  }

  refuse(message) {
    this.reply = null;
    setText("tree-size", "");
    const note = document.createElement("p");
    note.className = "empty";
    note.textContent = message;
    find("tree").replaceChildren(note);
  }

  draw() {
    if (!this.reply) return;
    const { nodes, total_nodes, total_tokens } = this.reply;
    setText("tree-size", `${whole(total_tokens)} tokens in ${whole(total_nodes)} ${total_nodes === 1 ? "node" : "nodes"}`);
    if (!nodes.length) {
      this.refuseEmpty();
      return;
    }
    const shown = nodes.slice(0, Number(find("tree-most").value)).map((node) => ({ ...node, below: [] }));
    const root = { below: [], depth: -1 };
    for (const node of shown) {
      const parent = node.parent < 0 ? root : shown[node.parent];
      node.depth = parent.depth + 1;
      node.path = node.parent < 0 ? node.text : `${parent.path}${node.text}`;
      node.before = node.parent < 0 ? 0 : parent.before + parent.tokens;
      parent.below.push(node);
    }
    let rows = 0;
    const place = (node) => {
      node.below.forEach(place);
      node.row = node.below.length ? node.below[0].row : rows++;
    };
    place(root);
    this.paint(shown, root, rows);
  }

  refuseEmpty() {
    const note = document.createElement("p");
    note.className = "empty";
    note.textContent = "Nothing is cached yet. Ask something, and its beginning appears here.";
    find("tree").replaceChildren(note);
  }

  paint(shown, root, rows) {
    this.letters = find("tree").clientWidth < 560 ? 17 : 25;
    const label = LETTER * this.letters + 24; // where a node's label has ended
    const column = label + 55;
    const hottest = Math.max(...shown.map((node) => node.uses), 1);
    const largest = Math.max(...shown.map((node) => node.tokens), 1);
    const x = (node) => MARGIN + 20 + node.depth * column;
    const y = (node) => MARGIN + node.row * ROW;
    const links = [];
    const draw = (parent) => {
      for (const child of parent.below) {
        const from = parent === root ? [MARGIN - 22, y(root)] : [x(parent) + label, y(parent)];
        const to = [x(child), y(child)];
        const bend = (from[0] + to[0]) / 2;
        const width = 1 + 3 * Math.sqrt(child.uses / hottest);
        links.push(svg("path", {
          class: "link",
          "stroke-width": width.toFixed(1),
          d: `M${from[0]},${from[1]}C${bend + 8},${from[1]} ${bend - 8},${to[1]} ${to[0]},${to[1]}`,
        }));
        draw(child);
      }
    };
    draw(root);
    const depth = Math.max(...shown.map((node) => node.depth));
    const width = MARGIN + (depth + 1) * column + 20;
    const height = 2 * MARGIN + Math.max(rows - 1, 0) * ROW;
    const said = `the ${shown.length} most used of ${this.reply.total_nodes} cached prefixes`;
    const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": said });
    drawing.append(...links, ...shown.map((node) => this.node(node, x(node), y(node), hottest, largest)));
    find("tree").replaceChildren(drawing);
  }

  node(node, x, y, hottest, largest) {
    const radius = 4 + 9 * Math.sqrt(node.tokens / largest);
    const heat = hottest <= 1 ? 0 : Math.min(3, Math.floor((4 * Math.log(node.uses || 1)) / Math.log(hottest * 1.01)));
    const text = visible(node.text);
    const more = node.children - node.below.length;
    const meta = `${short(node.tokens)} tok · ${short(node.uses)}×${more > 0 ? ` · +${short(more)} more` : ""}`;
    const said = `${node.tokens} tokens, used ${node.uses} times, ${node.locks} now: ${text}`;
    const group = svg(
      "g",
      { class: `node${node.path === this.chosen ? " chosen" : ""}`, tabindex: 0, role: "button", "aria-label": said },
      node.locks ? svg("circle", { class: "ring", cx: x, cy: y, r: radius + 3.5 }) : null,
      svg("circle", { class: `h${heat}`, cx: x, cy: y, r: radius }),
      svg("text", { x: x + radius + 7, y: y - 2 }, text.length > this.letters ? `${text.slice(0, this.letters - 1)}…` : text),
      svg("text", { class: "meta", x: x + radius + 7, y: y + 12 }, meta)
    );
    const choose = () => this.choose(node);
    group.addEventListener("click", choose);
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        choose();
      }
    });
    return group;
  }

  choose(node) {
    this.chosen = node.path;
    const place = `tokens ${whole(node.before)} to ${whole(node.before + node.tokens)}`;
    const used = `used ${whole(node.uses)} times, by ${whole(node.locks)} now, ${whole(node.children)} ways on`;
    find("tree-detail").textContent = `${place}, ${used}. It begins:\n${node.text}`;
    this.draw();
  }
}

// Special tokens would fill the short label; the detail shows them.
const visible = (text) =>
  text.replace(/<[|｜][^<>]*[|｜]>/g, " ▸ ").replace(/\s+/g, " ").replace(/^( ?▸)+ ?/, "▸ ").trim() || "(white space)";
