// The matrix's client on a TypeScript SDK of the handshake era that has Streamable HTTP:
// node typescript_v1.mjs PACKAGE '{"name": "url", …}'.
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";
import { main, until } from "./visit.mjs";

const [packageName, endpoints] = process.argv.slice(2);
const require = createRequire(new URL("../../node/", import.meta.url));
const { Client } = require(`${packageName}/client/index.js`);
const { StreamableHTTPClientTransport } = require(`${packageName}/client/streamableHttp.js`);
const t = require(`${packageName}/types.js`);

const revision = t.LATEST_PROTOCOL_VERSION;
const withForms = revision >= "2025-06-18";
const withUrls = revision >= "2025-11-25";
const capabilities = {
  roots: { listChanged: true },
  sampling: withUrls ? { tools: {} } : {},
  ...(withForms ? { elicitation: withUrls ? { form: {}, url: {} } : {} } : {}),
};
const METHODS = {
  "tools/list": "listTools",
  "resources/list": "listResources",
  "resources/templates/list": "listResourceTemplates",
  "resources/read": "readResource",
  "prompts/list": "listPrompts",
  "prompts/get": "getPrompt",
  "completion/complete": "complete",
};

// Hears which revision the server answers with: the first SDKs do not tell.
class HearingTransport extends StreamableHTTPClientTransport {
  async start() {
    const take = this.onmessage;
    this.onmessage = (message, extra) => {
      this.revision ??= message.result?.protocolVersion;
      take(message, extra);
    };
    await super.start();
  }
}

class V1Peer {
  told = [];
  decline = false;
  #client = new Client({ name: "typescript", version: "1.0.0" }, { capabilities });
  #transport;

  async connect(url) {
    const client = this.#client;
    client.setRequestHandler(t.CreateMessageRequestSchema, async () => {
      return { role: "assistant", model: "m", content: { type: "text", text: "words" } };
    });
    client.setRequestHandler(t.ListRootsRequestSchema, async () => {
      return { roots: [{ uri: "file:///home", name: "home" }] };
    });
    if (withForms) client.setRequestHandler(t.ElicitRequestSchema, async ({ params }) => this.#elicited(params.mode));
    client.fallbackNotificationHandler = async ({ method, params }) => this.told.push([method, params]);
    this.#transport = new HearingTransport(new URL(url));
    await client.connect(this.#transport);
    this.revision = this.#transport.revision;
    await sleep(300); // the SDK opens its GET stream by and by
    return this;
  }

  #elicited(mode) {
    if (this.decline) return { action: "decline" };
    return mode === "url" ? { action: "accept" } : { action: "accept", content: { color: "red" } };
  }

  request(method, params, progress, options = {}) {
    if (progress !== undefined) options.onprogress = (step) => progress.push(step.progress);
    if (method === "tools/call") return this.#client.callTool(params, undefined, options);
    return this.#client[METHODS[method]](params, options);
  }

  async logAt(level = "emergency") {
    await this.#client.setLoggingLevel(level);
  }

  async watch(uri) {
    if (uri === undefined) return async () => {};
    await this.#client.subscribeResource({ uri });
    return () => this.#client.unsubscribeResource({ uri });
  }

  async abandon(method, params) {
    const abort = new AbortController();
    const steps = [];
    const request = this.request(method, params, steps, { signal: abort.signal });
    const ended = request.catch(() => {});
    await until(() => steps.length > 0);
    abort.abort("no longer wanted");
    await ended;
  }

  async close() {
    await this.#transport.terminateSession();
    await this.#client.close();
  }
}

await main((url) => new V1Peer().connect(url), endpoints);
