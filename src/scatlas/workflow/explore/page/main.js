// Opens the page, or says why it cannot.
import { Atlas, readBlock } from "./atlas.js";
import { Explorer } from "./explorer.js";
import { byId } from "./legend.js";

async function openPage() {
  try {
    const explorer = new Explorer(await Atlas.open(readBlock));
    window.explorer = explorer; // for the console, and for tests
    await explorer.start();
  } catch (error) {
    const message = byId("message");
    message.hidden = false;
    message.textContent = `The page cannot be shown: ${error.message} It needs Chrome or Edge 103, `
      + "Firefox 113, or Safari 16.4, or a newer one.";
    throw error;
  }
}

openPage();
