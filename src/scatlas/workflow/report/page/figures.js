// Figures that open large in a dialog: by a click or Enter; arrows lead to the next one, Esc closes.
import { element } from "./tables.js";

class LargeFigures {
  constructor(figures) {
    this.figures = figures;
    this.at = 0;
    this.picture = element("img", { alt: "" });
    this.frame = element("div", { class: "frame", tabindex: "0" }, this.picture);
    this.place = element("span", { class: "place", role: "status" });
    this.caption = element("div", { class: "large-caption" });
    const previous = this.button("Previous", () => this.move(-1));
    const next = this.button("Next", () => this.move(1));
    this.size = this.button("Full size", () => this.setFull(!this.isFull));
    this.size.setAttribute("aria-pressed", "false");
    const close = this.button("Close", () => this.dialog.close());
    const tools = element("div", { class: "tools" }, previous, next, this.place, this.size, close);
    this.dialog = element("dialog", { class: "large", "aria-label": "Large figure" });
    this.dialog.append(tools, this.frame, this.caption);
    document.body.append(this.dialog);
    this.listen();
  }

  button(name, action) {
    const made = element("button", { type: "button" }, name);
    made.addEventListener("click", action);
    return made;
  }

  listen() {
    this.dialog.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
      if (this.isFull && event.target === this.frame) return; // these keys move the picture
      event.preventDefault();
      this.move(step);
    });
    // A click beside the dialog's content.
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
    this.picture.addEventListener("click", () => this.setFull(!this.isFull));
    // The reader goes on at the figure that was seen last.
    this.dialog.addEventListener("close", () => {
      const { picture } = this.figures[this.at];
      picture.focus({ preventScroll: true });
      picture.scrollIntoView({ block: "nearest" });
    });
  }

  open(i) {
    this.show(i);
    this.dialog.showModal();
    this.frame.focus();
  }

  move(step) {
    this.show((this.at + step + this.figures.length) % this.figures.length);
  }

  show(i) {
    this.at = i;
    const { picture, image, caption } = this.figures[i];
    this.picture.src = image.src;
    this.picture.alt = image.alt;
    this.caption.replaceChildren(...caption.cloneNode(true).childNodes);
    this.place.textContent = `${i + 1} of ${this.figures.length}`;
    this.dialog.dataset.figure = picture.parentElement.id;
    this.setFull(false);
  }

  setFull(isFull) {
    this.isFull = isFull;
    this.frame.classList.toggle("full", isFull);
    this.size.setAttribute("aria-pressed", String(isFull));
  }
}

/** Make all figures of the page open large. */
export function startFigures() {
  const figures = [...document.querySelectorAll("figure")].map((figure) => ({
    picture: figure.querySelector(".picture"),
    image: figure.querySelector("img"),
    caption: figure.querySelector("figcaption"),
  }));
  let large = null;
  const open = (i) => {
    large ??= new LargeFigures(figures);
    large.open(i);
  };
  figures.forEach(({ picture, image }, i) => {
    picture.setAttribute("role", "button");
    picture.setAttribute("aria-label", `Enlarge: ${image.alt}`);
    picture.addEventListener("click", () => open(i));
    picture.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      open(i);
    });
  });
}
