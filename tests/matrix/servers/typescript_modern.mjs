// The matrix's server of revision 2026-07-28, on the TypeScript SDK: node typescript_modern.mjs STORIES (stdio, by
// itself or by hosting.mjs), or typescript_modern.mjs STORIES --http PORT. It speaks the modern era alone; what it says is what story.py wrote into
// the folder STORIES.
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const require = createRequire(new URL("../../node/", import.meta.url));
const sdk = require("@modelcontextprotocol/server");
const { serveStdio, StdioServerTransport } = require("@modelcontextprotocol/server/stdio");
const { getRequestListener } = require("@hono/node-server");

const story = JSON.parse(readFileSync(`${process.argv[2]}/2026-07-28.json`));
const state = { executed: 0, cancelled: 0, extra: 0 };
const codec = sdk.createRequestStateCodec({ key: randomBytes(32) });
const capabilities = {
  tools: { listChanged: true },
  resources: { subscribe: true },
  prompts: {},
  logging: {},
  completions: {},
};
const text = (value) => ({ type: "text", text: value });
const unknown = (what) => new sdk.ProtocolError(sdk.ProtocolErrorCode.InvalidParams, `Unknown ${what}`);

// Tells those who listen: over HTTP the handler does, on stdio the server of the connection.
let tell;

// --- tools and prompts that ask

const { inputRequired, inputResponse } = sdk;
const elicited = (answer) => `${answer.action} ${answer.content?.color ?? ""}`.trim();

function elicitation(url) {
  const { mode, elicitationId, ...params } = url ? story.url : story.form;
  return url ? inputRequired.elicitUrl(params) : inputRequired.elicit(params);
}

const ASKING = {
  sample: {
    request: ({ tools }) => inputRequired.createMessage(story.sampling[tools ? 1 : 0]),
    say: ({ result }) => `sampled ${[result.content].flat().map((block) => block.text ?? block.type).join(" ")}`,
  },
  elicit: { request: ({ url }) => elicitation(url), say: elicited },
  roots: {
    request: () => inputRequired.listRoots(),
    say: ({ roots }) => roots.map((root) => root.uri).join(" "),
  },
};

// What was answered, in words; undefined: it is to be asked, with `question`. The SDK refuses what was not declared.
function answered({ say }, { mcpReq }) {
  const answer = inputResponse(mcpReq.inputResponses, "answer");
  return answer.kind === "missing" ? undefined : say(answer);
}

async function question({ request }, args) {
  const requestState = await codec.mint({ asked: true });
  return inputRequired({ inputRequests: { answer: request(args) }, requestState });
}

// --- tools that answer at once

async function step(mcpReq, progress) {
  const progressToken = mcpReq._meta?.progressToken;
  if (progressToken === undefined) return;
  await mcpReq.notify({ method: "notifications/progress", params: { progressToken, progress, total: 3 } });
}

const BODIES = {
  async progress({ mcpReq }) {
    for (const progress of [1, 2, 3]) {
      await step(mcpReq, progress);
      await sleep(20);
    }
    return "done";
  },
  async logs({ mcpReq }) {
    for (const level of ["debug", "warning"]) await mcpReq.log(level, `a ${level}`, "matrix");
    await sleep(50);
    return "done";
  },
  async slow({ mcpReq }) {
    await step(mcpReq, 1);
    try {
      await sleep(30_000, undefined, { signal: mcpReq.signal });
    } catch {
      state.cancelled += 1;
    }
    return "too late";
  },
  async touch() {
    await tell.resourceUpdated(story.memo);
    return "touched";
  },
  async change() {
    state.extra = 1 - state.extra;
    await tell.toolsChanged();
    return "changed";
  },
  async metadata({ mcpReq }) {
    return JSON.stringify(Object.keys(mcpReq._meta ?? {}).filter((key) => key.startsWith("trace")).sort());
  },
  async counted() {
    return JSON.stringify({ executed: state.executed, cancelled: state.cancelled });
  },
};

async function callTool({ params }, ctx) {
  const { name, arguments: args = {} } = params;
  if (!story.tools.includes(name)) throw unknown(`tool: ${name}`);
  if (name in story.constants) return JSON.parse(JSON.stringify(story.constants[name]).replace("%s", args.value));
  if (!(name in ASKING)) return { content: [text(await BODIES[name](ctx))] };
  const said = answered(ASKING[name], ctx);
  if (said !== undefined) return { content: [text(said)] };
  state.executed += 1;
  return question(ASKING[name], args);
}

async function getPrompt({ params }, ctx) {
  if (!story.prompts.prompts.some((prompt) => prompt.name === params.name)) throw unknown(`prompt: ${params.name}`);
  const topic = params.name === "asking" ? answered(ASKING.elicit, ctx) : params.arguments?.topic;
  if (topic === undefined) return question(ASKING.elicit, {});
  return { messages: [{ role: "user", content: text(`About ${topic}`) }] };
}

function read(uri) {
  const contents = (said) => ({ contents: [{ uri, mimeType: "text/plain", text: said }] });
  if (uri === story.memo) return contents("one");
  if (uri.startsWith("memo:///by-id/")) return contents(`id ${uri.slice(14)}`);
  throw new sdk.ResourceNotFoundError(uri);
}

function complete({ params }) {
  const values = ["music", "museum", "moon"].filter((word) => word.startsWith(params.argument.value));
  return { completion: { values, total: values.length, hasMore: false } };
}

const HANDLERS = {
  "tools/list": ({ params }) => story.pages[state.extra][params?.cursor === undefined ? 0 : 1],
  "tools/call": callTool,
  "resources/list": () => story.resources,
  "resources/templates/list": () => story.templates,
  "resources/read": ({ params }) => read(params.uri),
  "prompts/list": () => story.prompts,
  "prompts/get": getPrompt,
  "completion/complete": complete,
};

// One for each request over HTTP, one for the connection on stdio.
function makeServer() {
  const options = { capabilities, requestState: { verify: codec.verify } };
  const server = new sdk.Server({ name: "matrix", version: "1.0.0" }, options);
  for (const [method, handler] of Object.entries(HANDLERS)) {
    server.setRequestHandler(method, async (request, ctx) => handler(request, ctx));
  }
  return server;
}

// Over stdio, or over what stands for it.
export function serve(input, output) {
  const makeTelling = () => {
    const server = makeServer();
    tell = {
      resourceUpdated: (uri) => server.sendResourceUpdated({ uri }),
      toolsChanged: () => server.sendToolListChanged(),
    };
    return server;
  };
  serveStdio(makeTelling, { legacy: "reject", transport: new StdioServerTransport(input, output) });
}

if (process.argv[3] === "--http") {
  const handler = sdk.createMcpHandler(makeServer, { legacy: "reject" });
  tell = handler.notify;
  createServer(getRequestListener(handler.fetch)).listen(Number(process.argv[4]), "127.0.0.1");
} else if (process.argv[1] === fileURLToPath(import.meta.url)) {
  serve();
}
