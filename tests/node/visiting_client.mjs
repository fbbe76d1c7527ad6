// Drives an official TypeScript SDK's client to all places at once where the demo server is, and prints what it saw
// there as one JSON array.
// Usage: node visiting_client.mjs 1|2 PLACES, with the SDK's major version and an array of {kind, revision, where}: kind is
// http, sse, ws or stdio, where a URL, or a command as an array.
const [major, places] = process.argv.slice(2);

async function exported(...modules) {
  return Object.assign({}, ...(await Promise.all(modules.map((module) => import(module)))));
}
const V1 = ["index", "sse", "stdio", "streamableHttp", "websocket"];
const sdk =
  major === "1"
    ? await exported(...V1.map((name) => `@modelcontextprotocol/sdk/client/${name}.js`))
    : await exported("@modelcontextprotocol/client", "@modelcontextprotocol/client/stdio");

const TRANSPORTS = {
  http: (where) => new sdk.StreamableHTTPClientTransport(new URL(where)),
  sse: (where) => new sdk.SSEClientTransport(new URL(where)),
  ws: (where) => new sdk.WebSocketClientTransport(new URL(where)),
  stdio: ([command, ...args]) => new sdk.StdioClientTransport({ command, args, env: process.env }),
};

async function visit({ kind, revision, where }) {
  const options = revision === "2026-07-28" ? { versionNegotiation: { mode: { pin: revision } } } : {};
  const client = new sdk.Client({ name: "visitor", version: "1" }, { capabilities: {}, ...options });
  const transport = TRANSPORTS[kind](where);
  // What has arrived: the SDK drops progress that comes in one piece with the result, whose handling ends the call
  // before that of what came earlier has begun.
  const steps = [];
  transport.onmessage = ({ method, params }) => {
    if (method === "notifications/progress") steps.push(params.progress);
  };
  await client.connect(transport);
  const tools = (await client.listTools()).tools.map((tool) => tool.name);
  const named = (name) => tools.find((tool) => tool.endsWith(name));
  const added = await client.callTool({ name: named("add"), arguments: { terms: [2, 3] } });
  const failed = await client.callTool({ name: named("add"), arguments: { terms: "x" } });
  const counting = { name: named("slow_count"), arguments: { to: 3, pause: 0.1 } };
  const progress = { onprogress: () => {} };
  await (major === "1" ? client.callTool(counting, undefined, progress) : client.callTool(counting, progress));
  const resources = (await client.listResources()).resources.length;
  await client.close();
  return { tools: tools.length, sum: added.structuredContent, failed: failed.isError, steps: steps.slice(0, 2), resources };
}

console.log(JSON.stringify(await Promise.all(JSON.parse(places).map(visit))));
