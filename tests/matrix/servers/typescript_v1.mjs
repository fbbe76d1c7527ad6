// The matrix's server on a TypeScript SDK of the handshake era, over stdio: hosting.mjs SOCKET
// typescript_v1.mjs PACKAGE STORIES. What it says is what story.py wrote into that folder, in the words of the SDK's revision; what that revision lacks, it lacks.
import { appendFileSync, existsSync, readFileSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const packageName = process.argv[2];
const require = createRequire(new URL("../../node/", import.meta.url));
const { Server } = require(`${packageName}/server/index.js`);
const { StdioServerTransport } = require(`${packageName}/server/stdio.js`);
const t = require(`${packageName}/types.js`);

const revision = t.LATEST_PROTOCOL_VERSION;
const story = JSON.parse(readFileSync(`${process.argv[3]}/${revision}.json`));
const LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
const state = { executed: 0, extra: 0, level: 0, opened: false };
// A byte for each call that was cancelled. Such a call gets no answer from this SDK, and for a client without sessions another
// process takes over then: what is to be counted outlives this one.
const cancelled = `${process.argv[3]}/cancelled-${packageName.replaceAll("/", "-")}`;

const capabilities = {
  tools: { listChanged: true },
  resources: { subscribe: true },
  prompts: {},
  logging: {},
  ...(revision >= "2025-03-26" ? { completions: {} } : {}),
};
const server = new Server({ name: "matrix", version: "1.0.0" }, { capabilities });
const text = (value) => ({ type: "text", text: value });
const fail = (code, message, data) => {
  throw new t.McpError(code, message, data);
};

// Requests and notifications of a call go with it where the SDK can say so.
const ask = (extra, method, params, schema) =>
  (extra.sendRequest ?? ((request, result) => server.request(request, result)))({ method, params }, schema);
const notify = (extra, method, params) =>
  (extra.sendNotification ?? ((notification) => server.notification(notification)))({ method, params });

const elicited = (answer) => `${answer.action} ${answer.content?.color ?? ""}`.trim();

async function elicit(extra, url) {
  const { mode, ...form } = story.form;
  const params = url ? story.url : revision >= "2025-11-25" ? story.form : form;
  return elicited(await ask(extra, "elicitation/create", params, t.ElicitResultSchema));
}

async function step(extra, meta, progress) {
  const progressToken = meta?.progressToken;
  if (progressToken !== undefined) await notify(extra, "notifications/progress", { progressToken, progress, total: 3 });
}

const bodies = {
  async progress(extra, _, meta) {
    for (const progress of [1, 2, 3]) {
      await step(extra, meta, progress);
      await sleep(20);
    }
    return "done";
  },
  async logs(extra) {
    for (const level of ["debug", "warning"]) {
      if (LEVELS.indexOf(level) >= state.level) {
        await notify(extra, "notifications/message", { level, data: `a ${level}`, logger: "matrix" });
      }
    }
    await sleep(50);
    return "done";
  },
  async slow(extra, _, meta) {
    await step(extra, meta, 1);
    try {
      await sleep(30_000, undefined, { signal: extra.signal });
    } catch {
      appendFileSync(cancelled, "x");
    }
    return "too late";
  },
  async sample(extra, { tools }) {
    state.executed += 1;
    const schema = (tools && t.CreateMessageResultWithToolsSchema) || t.CreateMessageResultSchema;
    const answer = await ask(extra, "sampling/createMessage", story.sampling[tools ? 1 : 0], schema);
    return `sampled ${[answer.content].flat().map((block) => block.text ?? block.type).join(" ")}`;
  },
  async elicit(extra, { url }) {
    if (url && revision < "2025-11-25") fail(-32602, "no url mode");
    state.executed += 1;
    return elicit(extra, url);
  },
  async roots(extra) {
    const answer = await ask(extra, "roots/list", undefined, t.ListRootsResultSchema);
    return answer.roots.map((root) => root.uri).join(" ");
  },
  async needs_url() {
    state.opened = !state.opened;
    if (!state.opened) return "opened";
    return fail(-32042, "Open this page first", { elicitations: [story.url] });
  },
  async touch(extra) {
    await server.notification({ method: "notifications/resources/updated", params: { uri: story.memo } });
    return "touched";
  },
  async change() {
    state.extra = 1 - state.extra;
    await server.notification({ method: "notifications/tools/list_changed" });
    return "changed";
  },
  async metadata(_, __, meta) {
    return JSON.stringify(Object.keys(meta ?? {}).filter((key) => key.startsWith("trace")).sort());
  },
  async counted() {
    return JSON.stringify({ executed: state.executed, cancelled: existsSync(cancelled) ? statSync(cancelled).size : 0 });
  },
};

async function callTool({ params }, extra) {
  const { name, arguments: args = {}, _meta: meta } = params;
  if (!story.tools.includes(name)) fail(-32602, `Unknown tool: ${name}`);
  if (name in story.constants) {
    return JSON.parse(JSON.stringify(story.constants[name]).replace("%s", args.value));
  }
  try {
    return { content: [text(await bodies[name](extra, args, meta))] };
  } catch (error) {
    if (error.code === -32042) throw error;
    return { content: [text(`refused ${error.code}`)], isError: true };
  }
}

function read(uri) {
  const contents = (said) => ({ contents: [{ uri, mimeType: "text/plain", text: said }] });
  if (uri === story.memo) return contents("one");
  if (uri.startsWith("memo:///by-id/")) return contents(`id ${uri.slice(14)}`);
  return fail(-32002, "Resource not found", { uri });
}

async function getPrompt({ params }, extra) {
  if (!story.prompts.prompts.some((prompt) => prompt.name === params.name)) fail(-32602, "Unknown prompt");
  const topic = params.name === "asking" ? await elicit(extra, false) : params.arguments?.topic;
  return { messages: [{ role: "user", content: text(`About ${topic}`) }] };
}

function complete({ params }) {
  const values = ["music", "museum", "moon"].filter((word) => word.startsWith(params.argument.value));
  return { completion: { values, total: values.length, hasMore: false } };
}

const handlers = [
  [t.ListToolsRequestSchema, ({ params }) => story.pages[state.extra][params?.cursor === undefined ? 0 : 1]],
  [t.CallToolRequestSchema, callTool],
  [t.ListResourcesRequestSchema, () => story.resources],
  [t.ListResourceTemplatesRequestSchema, () => story.templates],
  [t.ReadResourceRequestSchema, ({ params }) => read(params.uri)],
  [t.SubscribeRequestSchema, () => ({})],
  [t.UnsubscribeRequestSchema, () => ({})],
  [t.ListPromptsRequestSchema, () => story.prompts],
  [t.GetPromptRequestSchema, getPrompt],
  [t.CompleteRequestSchema, complete],
  [
    t.SetLevelRequestSchema,
    ({ params }) => {
      state.level = LEVELS.indexOf(params.level);
      return {};
    },
  ],
];
for (const [schema, handler] of handlers) {
  server.setRequestHandler(schema, async (request, extra) => handler(request, extra));
}

export const serve = (input, output) => server.connect(new StdioServerTransport(input, output));
