// The health page refreshes itself every five seconds.
import { refresh } from "./replace.js";

setInterval(() => { if (!document.hidden) refresh(); }, 5000);
