// Drives the official TypeScript SDK's client against one endpoint and prints what it saw as one JSON object.
// Usage: node sdk_client.mjs URL PREFIX, where PREFIX stands before the names of server-everything's tools and prompts.
// A ws: URL is reached over WebSocket, sse+http: over HTTP+SSE, and stdio:[…] is a command as a JSON array.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { WebSocketClientTransport } from "@modelcontextprotocol/sdk/client/websocket.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
} from "@modelcontextprotocol/sdk/types.js";

const [url, prefix] = process.argv.slice(2);
const seen = { asked: [], progress: [] };

const client = new Client(
  { name: "typescript-sdk-client", version: "1.0.0" },
  { capabilities: { sampling: {}, elicitation: {}, roots: { listChanged: true } } },
);
client.setRequestHandler(CreateMessageRequestSchema, async () => {
  seen.asked.push("sampling");
  return { role: "assistant", model: "test-model", content: { type: "text", text: "sampled answer" } };
});
client.setRequestHandler(ElicitRequestSchema, async () => {
  seen.asked.push("elicitation");
  return { action: "decline" };
});
client.setRequestHandler(ListRootsRequestSchema, async () => {
  seen.asked.push("roots");
  return { roots: [{ uri: "file:///test/root", name: "test root" }] };
});

async function all(list, key) {
  const found = [];
  let cursor;
  do {
    const page = await list(cursor === undefined ? {} : { cursor });
    found.push(...page[key]);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return found;
}

async function call(name, args = {}, options = {}) {
  const result = await client.callTool({ name: prefix + name, arguments: args }, undefined, options);
  return result.content.map((part) => part.text ?? part.type).join("\n");
}

function transportTo(url) {
  if (url.startsWith("ws:")) return new WebSocketClientTransport(new URL(url));
  if (url.startsWith("sse+")) return new SSEClientTransport(new URL(url.slice("sse+".length)));
  if (!url.startsWith("stdio:")) return new StreamableHTTPClientTransport(new URL(url));
  const [command, ...args] = JSON.parse(url.slice("stdio:".length));
  return new StdioClientTransport({ command, args, env: process.env });
}

const transport = transportTo(url);
// What has arrived: the SDK drops progress that comes in one piece with the result.
transport.onmessage = ({ method, params }) => {
  if (method === "notifications/progress") seen.progress.push(params.progress);
};
await client.connect(transport);
seen.server = client.getServerVersion();
seen.session = transport.sessionId !== undefined;
seen.protocol = transport.protocolVersion;
seen.echo = await call("echo", { message: "hello" });
seen.tools = (await all((params) => client.listTools(params), "tools")).map((tool) => tool.name);
seen.long = await call(
  "trigger-long-running-operation",
  { duration: 0.6, steps: 3 },
  { onprogress: () => {} },
);
seen.sampling = await call("trigger-sampling-request", { prompt: "question", maxTokens: 10 });
seen.elicitation = await call("trigger-elicitation-request");
seen.prompt = (await client.getPrompt({ name: `${prefix}simple-prompt` })).messages.length;

const resources = await all((params) => client.listResources(params), "resources");
seen.resources = resources.length;
seen.read = (await client.readResource({ uri: resources[0].uri })).contents.length;
seen.templates = (await all((params) => client.listResourceTemplates(params), "resourceTemplates")).length;

seen.failure = await client.callTool({ name: `${prefix}no-such-tool`, arguments: {} }).then(
  (result) => ({ isError: result.isError }),
  (error) => ({ code: error.code }),
);
await client.ping();
await transport.terminateSession?.();
await client.close();
console.log(JSON.stringify(seen));
