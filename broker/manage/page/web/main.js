// Starts the page: loads the user, then shows the frame, or the login form first.

import { put } from "./parts/dom.js";
import { notice } from "./parts/panels.js";
import { learnReader } from "./parts/reader.js";
import { shell } from "./parts/shell.js";
import { SCREENS } from "./screens/all.js";
import { login } from "./screens/login.js";

async function begin() {
  try {
    await learnReader();
  } catch (error) {
    if (error.status === 401) return login(begin);
    put(document.body, notice("bad", "The broker does not answer this page", error.message));
    return setTimeout(begin, 3000); // it may still be starting
  }
  return shell(SCREENS);
}

begin();
