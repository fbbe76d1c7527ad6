// The matrix's client of revision 2026-07-28, on the TypeScript SDK, pinned to it:
// node typescript_modern.mjs '{"name": "url", …}'.
import { createRequire } from "node:module";
import { main, until } from "./visit.mjs";

const require = createRequire(new URL("../../node/", import.meta.url));
const { Client, StreamableHTTPClientTransport, LOG_LEVEL_META_KEY } = require("@modelcontextprotocol/client");

const OPTIONS = {
  capabilities: { roots: {}, sampling: { tools: {} }, elicitation: { form: {}, url: {} } },
  versionNegotiation: { mode: { pin: "2026-07-28" } },
};
const METHODS = {
  "tools/call": "callTool",
  "tools/list": "listTools",
  "resources/list": "listResources",
  "resources/templates/list": "listResourceTemplates",
  "resources/read": "readResource",
  "prompts/list": "listPrompts",
  "prompts/get": "getPrompt",
  "completion/complete": "complete",
};

class ModernPeer {
  told = [];
  decline = false;
  #client = new Client({ name: "typescript", version: "1.0.0" }, OPTIONS);
  #level;

  async connect(url) {
    const client = this.#client;
    client.setRequestHandler("sampling/createMessage", async () => {
      return { role: "assistant", model: "m", content: { type: "text", text: "words" } };
    });
    client.setRequestHandler("roots/list", async () => ({ roots: [{ uri: "file:///home", name: "home" }] }));
    client.setRequestHandler("elicitation/create", async ({ params }) => this.#elicited(params.mode));
    client.fallbackNotificationHandler = async ({ method, params }) => this.told.push([method, params]);
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    this.revision = client.getNegotiatedProtocolVersion();
    return this;
  }

  #elicited(mode) {
    if (this.decline) return { action: "decline" };
    return mode === "url" ? { action: "accept" } : { action: "accept", content: { color: "red" } };
  }

  // Lists are the SDK's own, which are whole: it follows the pages.
  request(method, params, progress, options = {}) {
    const meta = { ...params._meta, ...(this.#level === undefined ? {} : { [LOG_LEVEL_META_KEY]: this.#level }) };
    if (progress !== undefined) options.onprogress = (step) => progress.push(step.progress);
    return this.#client[METHODS[method]]({ ...params, _meta: meta }, { cacheMode: "refresh", ...options });
  }

  async logAt(level) {
    this.#level = level;
  }

  async watch(uri) {
    const filter = uri === undefined ? { toolsListChanged: true } : { resourceSubscriptions: [uri] };
    const subscription = await this.#client.listen(filter);
    return () => subscription.close();
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

  close() {
    return this.#client.close();
  }
}

await main((url) => new ModernPeer().connect(url), process.argv[2]);
