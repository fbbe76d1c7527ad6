// A server on the TypeScript SDK, over stdio: `slow` goes on after its cancellation, and asks when `work` runs.
import { setTimeout as sleep } from "node:timers/promises";
import { createRequire } from "node:module";

const require = createRequire(new URL("../node/", import.meta.url));
const { Server } = require("@modelcontextprotocol/sdk/server/index.js");
const { StdioServerTransport } = require("@modelcontextprotocol/sdk/server/stdio.js");
const t = require("@modelcontextprotocol/sdk/types.js");

const server = new Server({ name: "late", version: "1.0.0" }, { capabilities: { tools: {} } });
const requestedSchema = { type: "object", properties: { name: { type: "string" } } };
const ask = async (message) => {
  const params = { message, requestedSchema };
  return (await server.request({ method: "elicitation/create", params }, t.ElicitResultSchema)).action;
};
let working = false;
let late;

const until = async (true_) => {
  while (!true_()) await sleep(10);
};
const tools = {
  async slow({ signal, sendNotification, _meta }) {
    const { progressToken } = _meta;
    await sendNotification({ method: "notifications/progress", params: { progressToken, progress: 1 } });
    await until(() => signal.aborted && working);
    late = await ask("late").catch((error) => `refused: ${error.message}`);
    return "too late";
  },
  async work() {
    working = true;
    await until(() => late);
    return late;
  },
  name: () => ask("name"),
};

const inputSchema = { type: "object" };
server.setRequestHandler(t.ListToolsRequestSchema, () => ({
  tools: Object.keys(tools).map((name) => ({ name, inputSchema })),
}));
server.setRequestHandler(t.CallToolRequestSchema, async ({ params }, extra) => ({
  content: [{ type: "text", text: await tools[params.name](extra) }],
}));
await server.connect(new StdioServerTransport());
