// The page of health reads itself again from time to time.
import { refresh } from "./replace.js";

setInterval(() => { if (!document.hidden) refresh(); }, 5000);
