// Starts what the page can do with scripts. Without them it reads and prints as it is.
import { startTables } from "./tables.js";
import { startFigures } from "./figures.js";

document.documentElement.classList.add("scripted");
startTables();
startFigures();
document.documentElement.dataset.ready = "true";
